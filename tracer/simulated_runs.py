"""Whole steps on a simulated GPU at one clock pair: settled, several times, and what they show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..data.units import ClockPair
from .gpu.protocol import ThrottleReason
from .gpu.simulated import SimulatedGpu, SimulatedRun
from .work import StepWork

__all__ = ["POWER_CAP", "AtPair", "run_at", "run_for", "works_of"]

Floats = npt.NDArray[np.float64]

POWER_CAP = int(ThrottleReason.SW_POWER_CAP)
# Steps run this long before any is measured: clocks, power cap and temperature settle under load,
# not while idle. Short steps after a rest would show more power than the cap lets a training hold.
_SETTLE_NS = 2_000_000_000
_WARM_STEPS = 2
# A call has a cost of its own; a step of microseconds is played many times in one.
_CALL_NS = 10_000_000
_PLAYED_NS, _HELD_NS = 500_000_000, 5_000_000_000


@dataclass(frozen=True)
class AtPair:
    """What one pair's runs gave: per-signature means over R runs, and the whole step."""

    duration_ns: Floats  # (R, S)
    gap_ns: float
    step_time_ns: Floats  # (R,)
    step_energy_mj: Floats  # (R,)
    core_mhz: float
    throttle_reasons: int
    temperature_c: float
    idle_power_w: float
    last: SimulatedRun

    @property
    def capped(self) -> bool:
        """True if the power cap took clocks away."""
        return bool(self.throttle_reasons & POWER_CAP)


def run_at(
    step: StepWork,
    gpu: SimulatedGpu,
    pair: ClockPair,
    repeats: int,
    gap_ns: Floats | None = None,
) -> AtPair:
    """Runs of the step at a pair, settled; ``gap_ns`` (K,) replaces the usual idle gaps."""
    if pair.is_governor:
        gpu.release()
    else:
        gpu.lock(pair)
    run_for(step, gpu, _SETTLE_NS, gap_ns=gap_ns)
    runs = [gpu.run(step, gap_ns=gap_ns) for _ in range(repeats)]
    duration = np.stack([_mean_by_work(step, run, rested=gap_ns is not None) for run in runs])
    busy = np.array([run.duration_ns.sum() for run in runs])
    time_ns = np.array([run.time_ns for run in runs], dtype=float)
    return AtPair(
        duration_ns=duration,
        gap_ns=float((time_ns - busy).mean()),
        step_time_ns=time_ns,
        step_energy_mj=np.array([run.energy_mj for run in runs]),
        core_mhz=float(np.average(runs[-1].core_mhz, weights=np.maximum(runs[-1].duration_ns, 1))),
        throttle_reasons=int(np.bitwise_or.reduce(runs[-1].throttle_reasons)),
        temperature_c=runs[-1].mean_temperature_c,
        idle_power_w=gpu.idle_power_w(pair),
        last=runs[-1],
    )


def run_for(
    step: StepWork, gpu: SimulatedGpu, duration_ns: int, *, gap_ns: Floats | None = None
) -> None:
    """Run the step again and again, at least so long and twice.

    A stretch of half a second is played kernel by kernel, the next 5 s pass at its mean power.
    """
    until_ns = gpu.now_ns() + duration_ns
    took_ns = 1
    for _ in range(_WARM_STEPS):
        took_ns = max(1, gpu.run(step, gap_ns=gap_ns).time_ns)
    count = max(1, round(_CALL_NS / took_ns))
    block = replace(step, items=step.items * count)
    gaps = None if gap_ns is None else np.tile(gap_ns, count)
    while gpu.now_ns() < until_ns:
        begin_ns, energy_mj = gpu.now_ns(), 0.0
        while gpu.now_ns() < min(until_ns, begin_ns + _PLAYED_NS):
            energy_mj += gpu.run(block, gap_ns=gaps).energy_mj
        power_w = energy_mj / (gpu.now_ns() - begin_ns) * 1e6
        gpu.hold(min(_HELD_NS, max(0, until_ns - _PLAYED_NS - gpu.now_ns())), power_w)


def _mean_by_work(step: StepWork, run: SimulatedRun, *, rested: bool) -> Floats:
    """(S,) mean duration of each kernel; between rests, of its launches that were not capped."""
    work, size = works_of(step), len(step.works)
    counted = np.ones(len(work), dtype=bool)
    if rested:
        free = (run.throttle_reasons & POWER_CAP) == 0
        counted = free | (np.bincount(work, free, size)[work] == 0)
    total = np.bincount(work[counted], run.duration_ns[counted], size)
    return np.asarray(total / np.bincount(work[counted], minlength=size))


def works_of(step: StepWork) -> npt.NDArray[np.int64]:
    """(K,) which of the step's works each item is."""
    return np.fromiter((item.work for item in step.items), np.int64, len(step.items))
