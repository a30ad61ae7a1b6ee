"""Places in the engine's vectors, as plain integers that compiled code can read.

The state vector is a GPU's whole history; the settings vector is what a run does not change.
Times are ns, energies mJ, powers W, clocks indexes unless the name says MHz.
"""

from __future__ import annotations

# --- state
NOW = 0
TEMPERATURE_C = 1
ENERGY = 2  # since the start, noiseless sum of power x time
CEILING_MHZ = 3  # what the governor allows under the power cap
WINDOW_ENERGY = 4  # since the last governor tick
LAST_TICK = 5
NEXT_TICK = 6
AVERAGE_W = 7  # the governor's running average
NEXT_SENSOR = 8
SENSOR_ENERGY = 9  # as of the last sensor update, like every SENSOR_ place
SENSOR_W = 10
SENSOR_CORE = 11
SENSOR_MEM = 12
SENSOR_REASONS = 13
SENSOR_BUSY = 14
BUSY_NS = 15  # since the last sensor update
CORE = 16  # asked for
MEM = 17
RUNNING_CORE = 18  # in force, after cap and temperature
REASONS = 19
STALL_NS = 20  # owed before the next kernel
STALL_ENERGY = 21
KEEPER_FREE = 22  # when the keeper's present driver call returns
POSTED = 23  # 1 if a request waits in the keeper's mailbox
POSTED_CORE = 24
POSTED_MEM = 25
POSTED_DELAY = 26
POSTED_CALL = 27
PENDING = 28  # how many issued requests have not taken hold
ISSUED = 29
SUPERSEDED = 30
STATE_SIZE = 31

# --- settings
AMBIENT_C = 0
C_PER_W = 1
TIME_CONSTANT_NS = 2
REFERENCE_C = 3
CAP_W = 4
TICK_NS = 5
SENSOR_NS = 6
DROOP_START_C = 7
DROOP_STEP_C = 8
TOP_MHZ = 9
STEP_MHZ = 10
THERMAL_LIMIT_MHZ = 11
SETTINGS_SIZE = 12

# --- columns of the list of issued requests
EFFECT_NS = 0
EFFECT_CORE = 1
EFFECT_MEM = 2
MAX_PENDING = 64

# --- columns of a run's request table
REQUEST_CORE = 0
REQUEST_MEM = 1
REQUEST_DELAY = 2  # stall: how long the GPU stops; lag: latency
REQUEST_ENERGY = 3
REQUEST_CALL = 4
REQUEST_COLUMNS = 5
