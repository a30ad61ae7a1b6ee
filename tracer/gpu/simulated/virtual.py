"""The `Gpu` protocol on virtual time, over tables of kernel time and power.

`VirtualGpu` owns the state, the clocks asked for, switches, sensors and noise; what the clocks are
and what kernels cost comes from its two kinds, `SimulatedGpu` (a model) and `TablePlayer` (a
measured or traced table). Time passes only in `play`, `spin`, `sleep_ns`, reads and driver calls.

``CLOCKWRIGHT_READ_ONLY`` guards real hardware; a simulated GPU may be set under it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....data.errors import InputError, NotSupportedError, RightsError
from ....data.units import GOVERNOR, ClockPair
from ..protocol import Capabilities, Capability, GpuInfo, Reading, ThrottleReason
from . import engine
from . import places as at
from .behaviour import Faults, Noise
from .result import SimulatedRun
from .switching import SwitchBehaviour

__all__ = ["Axes", "VirtualGpu"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_QUICK_READ_NS = 2_000
_UTILIZATION_IDLE = 0.005


@dataclass(frozen=True)
class Axes:
    """The clock axes of a virtual GPU and what they draw without a kernel.

    Attributes:
        core_mhz: (C,) ascending.
        mem_mhz: (M,) as listed.
        idle_w: (C, M) power without a kernel at the reference temperature.
        leak_w_per_c: (C,) growth of power per degree.
        settings: the engine's settings vector (`places`).
    """

    core_mhz: Floats
    mem_mhz: Floats
    idle_w: Floats
    leak_w_per_c: Floats
    settings: Floats


class VirtualGpu:
    """Base of the simulated GPUs; see the module docstring."""

    def __init__(
        self,
        info: GpuInfo,
        axes: Axes,
        *,
        switch: SwitchBehaviour,
        noise: Noise,
        faults: Faults,
        seed: int,
        rest: ClockPair = GOVERNOR,
        mem_lockable: bool = True,
        energy_read_ns: int = 3_000_000,
    ) -> None:
        self._info = info
        self._axes = axes
        self._switch = switch
        self._noise = noise
        self._faults = faults
        self._rest = rest
        self._asked = rest
        self._locked: ClockPair | None = None
        self._mem_lockable = mem_lockable
        self._energy_read_ns = energy_read_ns
        self._counter_start_mj = 0.0
        streams = (np.random.default_rng([seed, stream]) for stream in range(3))
        self._rng_run, self._rng_switch, self._rng_read = streams
        self._pending = np.zeros((at.MAX_PENDING, 3))
        self._state = self._fresh_state()

    def _fresh_state(self) -> Floats:
        state = np.zeros(at.STATE_SIZE)
        settings = self._axes.settings
        core, mem = self._index(self._rest)
        state[at.TEMPERATURE_C] = settings[at.REFERENCE_C]
        state[at.CEILING_MHZ] = self._axes.core_mhz[-1]
        state[at.NEXT_TICK] = settings[at.TICK_NS]
        state[at.NEXT_SENSOR] = settings[at.SENSOR_NS] * self._rng_read.random()
        state[at.CORE], state[at.MEM] = core, mem
        settings[at.THERMAL_LIMIT_MHZ] = self._faults.limit_mhz
        engine.refresh(state, settings, self._axes.core_mhz)
        running = int(state[at.RUNNING_CORE])
        state[at.SENSOR_CORE], state[at.SENSOR_MEM] = running, mem
        state[at.SENSOR_W] = state[at.AVERAGE_W] = self._axes.idle_w[running, mem]
        return state

    def _index(self, pair: ClockPair) -> tuple[int, int]:
        """Core and memory index that a request leads to; InputError if unsupported."""
        raise NotImplementedError

    def _clocks_mhz(self, core: Ints, mem: Ints) -> tuple[Ints, Ints, Ints | None]:
        """Core MHz, memory MHz and, if there is one, the row of the pair table."""
        raise NotImplementedError

    def pairs(self) -> tuple[ClockPair, ...]:
        """Every supported pair, memory clock descending, then core clock descending."""
        raise NotImplementedError

    # --- the Gpu protocol

    @property
    def info(self) -> GpuInfo:
        """Who it is; ``simulated`` is True."""
        return self._info

    @property
    def switch(self) -> SwitchBehaviour:
        """How it changes clocks."""
        return self._switch

    def set_faults(self, faults: Faults) -> None:
        """Break it, or mend it, from now on."""
        self._faults = faults
        self._axes.settings[at.THERMAL_LIMIT_MHZ] = faults.limit_mhz
        engine.refresh(self._state, self._axes.settings, self._axes.core_mhz)

    def capabilities(self) -> Capabilities:
        """What can be done here, faults included."""
        setter = Capability.YES if self._faults.rights else Capability.NO_RIGHTS
        memory = setter if self._mem_lockable else Capability.NOT_SUPPORTED
        counter = Capability.YES if self._faults.energy_counter else Capability.NOT_SUPPORTED
        reasons = {}
        if setter is not Capability.YES:
            reasons["lock_core"] = reasons["power_limit"] = "simulated: this user has no rights"
        if memory is Capability.NOT_SUPPORTED:
            reasons["lock_memory"] = "simulated: one memory clock only"
        if counter is Capability.NOT_SUPPORTED:
            reasons["energy_counter"] = "simulated: the driver has no energy counter"
        return Capabilities(
            lock_core=setter,
            lock_memory=memory,
            power_limit=setter,
            energy_counter=counter,
            power_reading=Capability.YES,
            throttle_reasons=Capability.YES,
            reasons=reasons,
        )

    def read(self, *, energy: bool = True) -> Reading:
        """One look, as of the last 100 ms update; reading the counter takes virtual time."""
        with_counter = energy and self._faults.energy_counter
        self._idle(self._energy_read_ns if with_counter else _QUICK_READ_NS)
        state = self._state
        core, mem = int(state[at.SENSOR_CORE]), int(state[at.SENSOR_MEM])
        core_mhz, mem_mhz, _ = self._clocks_mhz(np.array([core]), np.array([mem]))
        scatter = 1.0 + self._noise.power_reading * self._rng_read.standard_normal()
        reasons = int(state[at.SENSOR_REASONS])
        if state[at.SENSOR_BUSY] < _UTILIZATION_IDLE:
            reasons |= ThrottleReason.GPU_IDLE
        return Reading(
            at_ns=self.now_ns(),
            core_mhz=int(core_mhz[0]) if core_mhz[0] >= 0 else None,
            mem_mhz=int(mem_mhz[0]) if mem_mhz[0] >= 0 else None,
            power_w=round(float(state[at.SENSOR_W]) * scatter, 3),
            energy_mj=self._counter_mj() if with_counter else None,
            temperature_c=float(round(state[at.TEMPERATURE_C])),
            throttle_reasons=reasons,
            utilization_percent=float(round(100.0 * min(state[at.SENSOR_BUSY], 1.0))),
        )

    def locked(self) -> ClockPair | None:
        """The pair last locked, or None since `release`."""
        return self._locked

    def lock(self, pair: ClockPair) -> None:
        """Request a pair; the call blocks in virtual time, and the pair may take hold later.

        ``mem_mhz`` None leaves the memory clock to the driver.

        Raises:
            InputError: the pair is not supported.
            NotSupportedError: it names a memory clock and this GPU has only one to run.
            RightsError: the fault says so.
        """
        self._check_rights("lock clocks")
        self._index(pair)
        self._change(pair)
        self._locked = pair

    def release(self) -> None:
        """Give both clocks back to the governor (for a table: to its baseline)."""
        self._check_rights("release clocks")
        self._change(self._rest)
        self._locked = None

    def request(self, pair: ClockPair) -> None:
        """Ask for a pair as the clock keeper does: another process blocks, time here does not."""
        self._check_rights("lock clocks")
        request = self._requests([pair])[0]
        self._locked = pair
        if self._faults.locks_hold:
            engine.ask(*self._world()[:4], request, self._switch.kind == "stall")

    def set_power_limit_w(self, limit_w: float) -> None:
        """Set the board power cap.

        Raises:
            InputError: outside the GPU's range.
            NotSupportedError: a table player has no cap to set.
            RightsError: the fault says so.
        """
        self._check_rights("set the power limit")
        if self._info.power_limit_range_w is None:
            raise NotSupportedError(f"{self._info.name} has no power limit to set")
        least, most = self._info.power_limit_range_w
        if not least <= limit_w <= most:
            raise InputError(f"power limit must lie in {least:g}..{most:g} W, got {limit_w!r}")
        self._axes.settings[at.CAP_W] = limit_w

    def reset_power_limit(self) -> None:
        """Set the cap back to the default."""
        if self._info.default_power_limit_w is None:
            raise NotSupportedError(f"{self._info.name} has no power limit to set")
        self.set_power_limit_w(self._info.default_power_limit_w)

    def busy_processes(self) -> tuple[int, ...] | None:
        """Nobody else computes here."""
        return ()

    def now_ns(self) -> int:
        """Virtual time since the simulated GPU was opened."""
        return round(float(self._state[at.NOW]))

    def sleep_ns(self, duration_ns: int) -> None:
        """Idle that long; a GPU left to the governor rests at its idle clocks."""
        if duration_ns < 0:
            raise InputError(f"cannot sleep {duration_ns} ns")
        self._idle(duration_ns)

    def close(self) -> None:
        """Nothing to free."""

    def idle_power_w(self, pair: ClockPair) -> float:
        """Power between kernels while ``pair`` is locked, at the reference temperature."""
        core, mem = self._index(pair)
        return float(self._axes.idle_w[core, mem])

    def hold(self, duration_ns: int, power_w: float) -> None:
        """Let time pass as under a load of that mean power, in one stride; see `engine.hold`."""
        engine.hold(self._state, self._axes.settings, float(duration_ns), power_w)

    def switch_truth(self, before: ClockPair, after: ClockPair) -> tuple[float, float]:
        """Median latency or stall in ns of one switch, and its energy in mJ, without scatter."""
        nominal_ns = self._switch.nominal_ns(before, after)
        return nominal_ns, self._switch_mj(before, after, nominal_ns)

    def reset_energy_counter(self) -> None:
        """Start the energy counter at 0 again, as a reloaded driver does."""
        self._counter_start_mj = float(self._state[at.ENERGY])

    def true_energy_mj(self) -> float:
        """All energy since it was opened, without sensors."""
        return float(self._state[at.ENERGY])

    @property
    def temperature_c(self) -> float:
        """True temperature."""
        return float(self._state[at.TEMPERATURE_C])

    def _world(self) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
        axes = self._axes
        return (
            self._state,
            self._pending,
            axes.settings,
            axes.core_mhz,
            axes.idle_w,
            axes.leak_w_per_c,
        )

    def _check_rights(self, what: str) -> None:
        if not self._faults.rights:
            raise RightsError(f"{self._info.name}: this user may not {what}")

    def _counter_mj(self) -> int:
        return max(0, int(self._state[at.SENSOR_ENERGY] - self._counter_start_mj))

    def _idle(self, span_ns: float) -> None:
        engine.idle(*self._world(), float(span_ns))

    def _switch_mj(self, before: ClockPair, after: ClockPair, span_ns: float) -> float:
        """Energy of one switch that takes ``span_ns``: a stall draws idle power meanwhile."""
        if before == after:
            return 0.0
        if self._switch.kind == "lag":
            return self._switch.energy_mj
        mean_w = 0.5 * (self.idle_power_w(before) + self.idle_power_w(after))
        return self._switch.energy_mj + mean_w * span_ns * 1e-6

    def _requests(self, pairs: Sequence[ClockPair]) -> Floats:
        """The engine's request table for pairs asked one after the other; moves `_asked` on."""
        chain = [self._asked, *pairs]
        steps = list(itertools.pairwise(chain))
        nominal_ns = np.array([self._switch.nominal_ns(a, b) for a, b in steps])
        span_ns = self._switch.sample_ns(nominal_ns, self._rng_switch)
        table = np.zeros((len(pairs), at.REQUEST_COLUMNS))
        for row, (before, after) in enumerate(steps):
            table[row, at.REQUEST_CORE], table[row, at.REQUEST_MEM] = self._index(after)
            table[row, at.REQUEST_ENERGY] = self._switch_mj(before, after, span_ns[row])
        table[:, at.REQUEST_DELAY] = span_ns
        table[:, at.REQUEST_CALL] = self._switch.sample_call_ns(len(pairs), self._rng_switch)
        if self._faults.locks_hold:
            self._asked = chain[-1]
        return table

    def _change(self, pair: ClockPair) -> None:
        """A blocking driver call."""
        request = self._requests([pair])[0]
        call_ns = request[at.REQUEST_CALL]
        if not self._faults.locks_hold:
            self._idle(call_ns)
        elif self._switch.kind == "stall":
            self._idle(call_ns)
            engine.ask(*self._world()[:4], request, True)
        else:
            self._state[at.POSTED] = 0  # a direct call overtakes what waits in the mailbox
            engine.issue(self._state, self._pending, request)
            self._idle(call_ns)

    def _play(
        self,
        time_ns: Floats,
        power_w: Floats,
        work: Ints,
        gap_ns: Floats,
        scale: Floats | None,
        requests: Mapping[int, ClockPair] | None,
        *,
        noisy: bool = True,
    ) -> SimulatedRun:
        """Play K items against (S, C, M) tables; see `engine.play`."""
        count = len(work)
        items = sorted(requests) if requests else []
        if items and not 0 <= items[0] <= items[-1] < count:
            raise InputError(f"a request's item must lie in 0..{count - 1}, got {items}")
        if requests:
            self._check_rights("lock clocks")
            self._locked = None if requests[items[-1]].is_governor else requests[items[-1]]
        table = self._requests([requests[item] for item in items] if requests else [])
        if not self._faults.locks_hold:
            items, table = [], table[:0]
        stretch = np.ones(count) if scale is None else scale.astype(np.float64)
        power_factor = 1.0
        if noisy:
            stretch = stretch * np.exp(self._noise.kernel * self._rng_run.standard_normal(count))
            both = self._rng_run.standard_normal(2)
            stretch *= 1.0 + self._noise.run_time * both[0]
            power_factor = 1.0 + self._noise.run_power * both[1]
        state = self._state
        before = state.copy()
        counter_before = self._counter_mj()
        out = np.zeros((5, count), dtype=np.int64)
        engine.play(
            *self._world(),
            time_ns,
            power_w,
            work,
            gap_ns,
            stretch,
            power_factor,
            float(self._switch.trigger_ns),
            np.array(items, dtype=np.int64),
            table,
            self._switch.kind == "stall",
            *out,
        )
        core_mhz, mem_mhz, pair_index = self._clocks_mhz(out[2], out[3])
        counted = self._counter_mj() - counter_before if self._faults.energy_counter else None
        return SimulatedRun(
            begin_ns=round(before[at.NOW]),
            end_ns=round(state[at.NOW]),
            start_ns=out[0],
            duration_ns=out[1] - out[0],
            core_mhz=core_mhz,
            mem_mhz=mem_mhz,
            throttle_reasons=out[4],
            energy_mj=float(state[at.ENERGY] - before[at.ENERGY]),
            counter_mj=counted,
            mean_temperature_c=float(before[at.TEMPERATURE_C] + state[at.TEMPERATURE_C]) / 2,
            requests_issued=int(state[at.ISSUED] - before[at.ISSUED]),
            requests_superseded=int(state[at.SUPERSEDED] - before[at.SUPERSEDED]),
            pair_index=pair_index,
        )
