"""Plays kernels on virtual time: clocks, governor, temperature, energy and sensors, compiled.

State is one float64 vector (`places`), so that a GPU's history carries from call to call. Time
advances in pieces that end at the next event: a request taking hold, the keeper becoming free, a
governor tick. A kernel that an event interrupts goes on with the share of its work that is left,
at the new clocks.

Governor: at each tick the mean power since the last one enters a running average, and the ceiling
of the core clock moves by a share of its distance from the cap. In the long run a kernel repeated
for ever settles within one clock step of `model.highest_core_index`; a step whose mean power meets
the cap is not throttled by its hottest kernel.

Keeper: one request at a time. While its driver call blocks, a newer request replaces one that
still waits, as it would in a mailbox.
"""

from __future__ import annotations

from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from . import places as at

__all__ = ["ask", "hold", "idle", "issue", "play", "refresh"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_AVERAGE_WEIGHT = 0.4
_GOVERNOR_GAIN = 0.25
_POWER_CAP = 0x4
_SW_THERMAL = 0x20


@numba.njit(cache=True)
def refresh(state: Floats, settings: Floats, core_mhz: Floats) -> None:
    """Recompute the running core clock and the throttle reasons from request, cap and heat."""
    over = max(0.0, state[at.TEMPERATURE_C] - settings[at.DROOP_START_C])
    droop_mhz = settings[at.TOP_MHZ] - settings[at.STEP_MHZ] * np.floor(
        over / settings[at.DROOP_STEP_C]
    )
    asked_mhz = min(core_mhz[int(state[at.CORE])], droop_mhz)
    allowed_mhz = min(state[at.CEILING_MHZ], settings[at.THERMAL_LIMIT_MHZ])
    running = np.searchsorted(core_mhz, min(asked_mhz, allowed_mhz) + 1e-6, side="right") - 1
    state[at.RUNNING_CORE] = max(running, 0)
    reasons = 0
    # A ceiling within the step of the clock asked for takes nothing away.
    if core_mhz[int(state[at.RUNNING_CORE])] + settings[at.STEP_MHZ] <= asked_mhz:
        if settings[at.THERMAL_LIMIT_MHZ] < asked_mhz:
            reasons |= _SW_THERMAL
        if state[at.CEILING_MHZ] < asked_mhz:
            reasons |= _POWER_CAP
    state[at.REASONS] = reasons


@numba.njit(cache=True)
def _pass(state: Floats, settings: Floats, span_ns: float, power_w: float, busy: bool) -> None:
    """Let time pass at one power; energy, temperature and the sensors that fall due follow."""
    left = span_ns
    while left > 0.0 or state[at.NEXT_SENSOR] <= state[at.NOW]:
        due = state[at.NEXT_SENSOR] - state[at.NOW]
        part = max(0.0, min(left, due))
        energy_mj = power_w * part * 1e-6
        state[at.ENERGY] += energy_mj
        state[at.WINDOW_ENERGY] += energy_mj
        if busy:
            state[at.BUSY_NS] += part
        steady_c = settings[at.AMBIENT_C] + settings[at.C_PER_W] * power_w
        near = -np.expm1(-part / settings[at.TIME_CONSTANT_NS])
        state[at.TEMPERATURE_C] += (steady_c - state[at.TEMPERATURE_C]) * near
        if due > left:
            state[at.NOW] += part
            return
        left -= part
        state[at.NOW] = state[at.NEXT_SENSOR]
        period_ns = settings[at.SENSOR_NS]
        state[at.SENSOR_W] = (state[at.ENERGY] - state[at.SENSOR_ENERGY]) * 1e6 / period_ns
        state[at.SENSOR_ENERGY] = state[at.ENERGY]
        state[at.SENSOR_CORE] = state[at.RUNNING_CORE]
        state[at.SENSOR_MEM] = state[at.MEM]
        state[at.SENSOR_REASONS] = state[at.REASONS]
        state[at.SENSOR_BUSY] = state[at.BUSY_NS] / period_ns
        state[at.BUSY_NS] = 0.0
        state[at.NEXT_SENSOR] += period_ns


@numba.njit(cache=True)
def issue(state: Floats, pending: Floats, request: Floats) -> None:
    """Hand one request to the driver now; it takes hold after its latency, in order."""
    count = int(state[at.PENDING])
    effect_ns = state[at.NOW] + request[at.REQUEST_DELAY]
    if count > 0:
        effect_ns = max(effect_ns, pending[count - 1, at.EFFECT_NS])
    if count == at.MAX_PENDING:  # the newest of a flood replaces the one before it
        count -= 1
        state[at.SUPERSEDED] += 1
    pending[count, at.EFFECT_NS] = effect_ns
    pending[count, at.EFFECT_CORE] = request[at.REQUEST_CORE]
    pending[count, at.EFFECT_MEM] = request[at.REQUEST_MEM]
    state[at.PENDING] = count + 1
    state[at.ISSUED] += 1


@numba.njit(cache=True)
def _events(state: Floats, pending: Floats, settings: Floats, core_mhz: Floats) -> float:
    """Handle every event that is due, and return the time of the next one."""
    if state[at.POSTED] > 0 and state[at.KEEPER_FREE] <= state[at.NOW]:
        request = np.zeros(at.REQUEST_COLUMNS)
        request[at.REQUEST_CORE] = state[at.POSTED_CORE]
        request[at.REQUEST_MEM] = state[at.POSTED_MEM]
        request[at.REQUEST_DELAY] = state[at.POSTED_DELAY]
        issue(state, pending, request)
        state[at.KEEPER_FREE] = state[at.NOW] + state[at.POSTED_CALL]
        state[at.POSTED] = 0
    while state[at.PENDING] > 0 and pending[0, at.EFFECT_NS] <= state[at.NOW]:
        state[at.CORE] = pending[0, at.EFFECT_CORE]
        state[at.MEM] = pending[0, at.EFFECT_MEM]
        count = int(state[at.PENDING])
        for row in range(1, count):
            pending[row - 1] = pending[row]
        state[at.PENDING] = count - 1
        refresh(state, settings, core_mhz)
    if state[at.NEXT_TICK] <= state[at.NOW]:
        span_ns = state[at.NOW] - state[at.LAST_TICK]
        if span_ns > 0.0:
            mean_w = state[at.WINDOW_ENERGY] * 1e6 / span_ns
            state[at.AVERAGE_W] += _AVERAGE_WEIGHT * (mean_w - state[at.AVERAGE_W])
            distance = (settings[at.CAP_W] - state[at.AVERAGE_W]) / settings[at.CAP_W]
            moved_mhz = state[at.CEILING_MHZ] * (1.0 + _GOVERNOR_GAIN * max(distance, -2.0))
            state[at.CEILING_MHZ] = min(max(moved_mhz, core_mhz[0]), core_mhz[-1])
        state[at.WINDOW_ENERGY] = 0.0
        state[at.LAST_TICK] = state[at.NOW]
        state[at.NEXT_TICK] = state[at.NOW] + settings[at.TICK_NS]
        refresh(state, settings, core_mhz)
    next_ns = state[at.NEXT_TICK]
    if state[at.PENDING] > 0:
        next_ns = min(next_ns, pending[0, at.EFFECT_NS])
    if state[at.POSTED] > 0:
        next_ns = min(next_ns, state[at.KEEPER_FREE])
    return float(next_ns)


@numba.njit(cache=True)
def idle(
    state: Floats,
    pending: Floats,
    settings: Floats,
    core_mhz: Floats,
    idle_w: Floats,
    leak_w_per_c: Floats,
    span_ns: float,
) -> None:
    """Let ``span_ns`` pass without a kernel; a stall owed passes meanwhile."""
    left = span_ns
    if state[at.STALL_NS] > 0.0 and left > 0.0:
        part = min(left, state[at.STALL_NS])
        energy_mj = state[at.STALL_ENERGY] * part / state[at.STALL_NS]
        _pass(state, settings, part, energy_mj * 1e6 / part, False)
        state[at.STALL_NS] -= part
        state[at.STALL_ENERGY] -= energy_mj
        left -= part
    while left > 0.0:
        next_ns = _events(state, pending, settings, core_mhz)
        core, mem = int(state[at.RUNNING_CORE]), int(state[at.MEM])
        warm_c = state[at.TEMPERATURE_C] - settings[at.REFERENCE_C]
        part = min(left, next_ns - state[at.NOW])
        _pass(state, settings, part, idle_w[core, mem] + leak_w_per_c[core] * warm_c, False)
        left -= part
        if left < 1e-3:  # below any clock: what rounding left over
            return


@numba.njit(cache=True)
def hold(state: Floats, settings: Floats, span_ns: float, power_w: float) -> None:
    """Let time pass as under a load of that mean power: heat and sensors follow, clocks stay.

    The governor does not look meanwhile; it would only see the mean it has settled on.
    """
    _pass(state, settings, span_ns, power_w, True)
    state[at.WINDOW_ENERGY] = 0.0
    state[at.LAST_TICK] = state[at.NOW]
    state[at.NEXT_TICK] = state[at.NOW] + settings[at.TICK_NS]


@numba.njit(cache=True)
def _pay_stall(state: Floats, settings: Floats) -> None:
    """Stop the GPU for the transitions it owes."""
    span_ns, energy_mj = state[at.STALL_NS], state[at.STALL_ENERGY]
    state[at.STALL_NS] = 0.0
    state[at.STALL_ENERGY] = 0.0
    if span_ns > 0.0:
        _pass(state, settings, span_ns, energy_mj * 1e6 / span_ns, False)
    else:
        state[at.ENERGY] += energy_mj


@numba.njit(cache=True)
def ask(
    state: Floats,
    pending: Floats,
    settings: Floats,
    core_mhz: Floats,
    request: Floats,
    stalls: bool,
) -> None:
    """A trigger fired: stall now, or put the request into the keeper's mailbox."""
    if stalls:
        state[at.STALL_NS] += request[at.REQUEST_DELAY]
        state[at.STALL_ENERGY] += request[at.REQUEST_ENERGY]
        state[at.CORE] = request[at.REQUEST_CORE]
        state[at.MEM] = request[at.REQUEST_MEM]
        state[at.ISSUED] += 1
        refresh(state, settings, core_mhz)
        return
    state[at.ENERGY] += request[at.REQUEST_ENERGY]
    if state[at.POSTED] > 0:
        state[at.SUPERSEDED] += 1
    state[at.POSTED] = 1
    state[at.POSTED_CORE] = request[at.REQUEST_CORE]
    state[at.POSTED_MEM] = request[at.REQUEST_MEM]
    state[at.POSTED_DELAY] = request[at.REQUEST_DELAY]
    state[at.POSTED_CALL] = request[at.REQUEST_CALL]
    _events(state, pending, settings, core_mhz)


@numba.njit(cache=True)
def play(
    state: Floats,
    pending: Floats,
    settings: Floats,
    core_mhz: Floats,
    idle_w: Floats,
    leak_w_per_c: Floats,
    time_ns: Floats,
    power_w: Floats,
    work: Ints,
    gap_ns: Floats,
    stretch: Floats,
    power_factor: float,
    trigger_ns: float,
    request_item: Ints,
    requests: Floats,
    stalls: bool,
    begun_ns: Ints,
    ended_ns: Ints,
    core: Ints,
    mem: Ints,
    reasons: Ints,
) -> None:
    """Play K kernels in order; the last five arrays, (K,) int64, are filled.

    Args:
        state: the GPU's history, changed in place.
        pending: requests issued and not yet in force, changed in place.
        settings: what the run does not change.
        core_mhz: (C,) core clocks, ascending.
        idle_w: (C, M) power without a kernel.
        leak_w_per_c: (C,) growth of power per degree over the reference temperature.
        time_ns: (S, C, M) kernel durations.
        power_w: (S, C, M) kernel powers.
        work: (K,) which kernel each item is.
        gap_ns: (K,) idle time before each item.
        stretch: (K,) factor on each item's duration.
        power_factor: factor on every kernel's power.
        trigger_ns: GPU time of one trigger.
        request_item: (R,) ascending; item before which each trigger fires.
        requests: (R, columns of `places`) what each asks for.
        stalls: True for the stall behaviour, False for lag.
        begun_ns: when each item began.
        ended_ns: when each item ended.
        core: index of the core clock it began at.
        mem: index of the memory clock it began at.
        reasons: throttle reasons it met, all of them.
    """
    row = 0
    for item in range(len(work)):
        idle(state, pending, settings, core_mhz, idle_w, leak_w_per_c, gap_ns[item])
        while row < len(request_item) and request_item[row] == item:
            idle(state, pending, settings, core_mhz, idle_w, leak_w_per_c, trigger_ns)
            ask(state, pending, settings, core_mhz, requests[row], stalls)
            row += 1
        _pay_stall(state, settings)
        begun_ns[item] = int(np.rint(state[at.NOW]))
        which, left, seen = work[item], 1.0, 0
        first = True
        while True:
            next_ns = _events(state, pending, settings, core_mhz)
            c, m = int(state[at.RUNNING_CORE]), int(state[at.MEM])
            if first:
                core[item], mem[item] = c, m
                first = False
            seen |= int(state[at.REASONS])
            warm_c = state[at.TEMPERATURE_C] - settings[at.REFERENCE_C]
            kernel_w = power_factor * (power_w[which, c, m] + leak_w_per_c[c] * warm_c)
            full_ns = time_ns[which, c, m] * stretch[item]
            span_ns = left * full_ns
            if state[at.NOW] + span_ns <= next_ns:
                _pass(state, settings, span_ns, kernel_w, True)
                break
            part = next_ns - state[at.NOW]
            _pass(state, settings, part, kernel_w, True)
            left -= part / full_ns
            if left <= 0.0:
                break
        ended_ns[item] = int(np.rint(state[at.NOW]))
        reasons[item] = seen
