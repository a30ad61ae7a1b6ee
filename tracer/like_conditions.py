"""Bring what a sweep measured under unlike conditions, power cap and temperature, to like ones.

A kernel's cell must say what it costs among other kernels that run at other pairs. So cells of
pairs that the cap does not let a whole step hold come from a step with rests, and energies are
brought to the temperature of the baseline, at which the step will run whatever pair it visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..data.units import GOVERNOR, ClockPair
from .gpu.simulated import SimulatedGpu, SimulatedRun
from .simulated_runs import AtPair, run_at, run_for, works_of
from .work import StepWork

__all__ = [
    "HeatSlope",
    "governor_power",
    "measure_heat_slope",
    "pairs_at_the_cap",
    "rested",
    "warm_up",
]

Floats = npt.NDArray[np.float64]

# Mean power of a step with rests, as a share of the cap: its hungriest stretch must pass as well.
_RESTED = 0.85
# About three time constants of a cooler, and one to cool down.
_HEAT_NS = 120_000_000_000
_COOL_NS = 40_000_000_000
_SLOPE_REPEATS = 8


@dataclass(frozen=True)
class HeatSlope:
    """How power grows with temperature, by core clock.

    Attributes:
        core_mhz: core clocks, ascending.
        w_per_c: growth of the step's mean power at each.
    """

    core_mhz: tuple[float, ...]
    w_per_c: tuple[float, ...]

    def at_temperature(self, at: AtPair, temperature_c: float) -> AtPair:
        """What was measured at a pair, its energy brought to another temperature."""
        slope = float(np.interp(at.core_mhz, self.core_mhz, self.w_per_c))
        more_mj = slope * (temperature_c - at.temperature_c) * at.step_time_ns * 1e-6
        return replace(at, step_energy_mj=at.step_energy_mj + more_mj)


def warm_up(step: StepWork, gpu: SimulatedGpu) -> None:
    """Run the step under the governor until the temperature has settled."""
    gpu.release()
    run_for(step, gpu, _HEAT_NS)


def measure_heat_slope(
    step: StepWork, gpu: SimulatedGpu, visit: Sequence[ClockPair], seen: Sequence[AtPair]
) -> HeatSlope | None:
    """The step's power hot and cooled down, at the locked pairs that held and draw most and least.

    None where no locked pair held.
    """
    held = [
        (pair, at)
        for pair, at in zip(visit, seen, strict=True)
        if pair != GOVERNOR and not at.capped
    ]
    if not held:
        return None
    # By power, not by clock: near the top, heat takes clock away, and power with it.
    ends = {pick(held, key=lambda one: _power_w(one[1]))[0] for pick in (min, max)}
    found = []
    for pair in sorted(ends, key=str):
        warm_up(step, gpu)
        hot = run_at(step, gpu, pair, _SLOPE_REPEATS)
        gpu.sleep_ns(_COOL_NS)
        cool = run_at(step, gpu, pair, _SLOPE_REPEATS)
        slope = (_power_w(hot) - _power_w(cool)) / (hot.temperature_c - cool.temperature_c)
        found.append((hot.core_mhz, slope))
    found.sort()
    return HeatSlope(tuple(clock for clock, _ in found), tuple(slope for _, slope in found))


def _power_w(at: AtPair) -> float:
    return float(at.step_energy_mj.sum() / at.step_time_ns.sum()) * 1e6


def pairs_at_the_cap(
    gpu: SimulatedGpu, visit: Sequence[ClockPair], seen: Sequence[AtPair]
) -> list[ClockPair]:
    """Listed pairs between the highest core clock that held under the cap and the lowest not."""
    found = []
    for mem in dict.fromkeys(pair.mem_mhz for pair in visit[1:]):
        held: list[int] = []
        cut: list[int] = []
        for pair, at in zip(visit, seen, strict=True):
            if pair.mem_mhz == mem and pair.core_mhz is not None:
                (cut if at.capped else held).append(pair.core_mhz)
        if held and cut:
            low, high = max(held), min(cut)
            found += [p for p in gpu.pairs() if p.mem_mhz == mem and low < (p.core_mhz or 0) < high]
    return found


def rested(
    step: StepWork, gpu: SimulatedGpu, pair: ClockPair, at: AtPair, burst_power: Floats
) -> AtPair:
    """The step at a pair with rests between its kernels, so that the cap takes nothing away.

    Args:
        step: the captured work.
        gpu: the simulated GPU.
        pair: the pair, at which the step without rests is capped.
        at: what it showed there.
        burst_power: (R, S) power of each kernel alone, mJ a ns.
    """
    work = works_of(step)
    took = at.last.duration_ns.astype(np.float64)
    busy_w = float(burst_power.mean(axis=0)[work] @ took / took.sum()) * 1e6
    wanted_w = _RESTED * (gpu.info.power_limit_w or busy_w)
    share = max(0.0, busy_w - wanted_w) / max(wanted_w - at.idle_power_w, 1.0)
    usual_ns = at.gap_ns / len(work)
    return run_at(step, gpu, pair, len(at.step_time_ns), gap_ns=usual_ns + share * np.roll(took, 1))


def governor_power(
    step: StepWork, locked: Sequence[ClockPair], run: SimulatedRun, power: Floats
) -> Floats | None:
    """(R, S) power of each kernel at the core clock it had under the governor.

    Interpolated between the bursts at locked pairs of the same memory clock; None where they do not
    reach that far.
    """
    mem = int(run.mem_mhz[0])
    columns = [k for k, p in enumerate(locked) if p.mem_mhz == mem and p.core_mhz is not None]
    columns.sort(key=lambda k: locked[k].core_mhz or 0)
    clocks = np.array([locked[k].core_mhz for k in columns], dtype=np.float64)
    work, size = works_of(step), len(step.works)
    took = run.duration_ns.astype(np.float64)
    ran = np.bincount(work, run.core_mhz * took, size) / np.bincount(work, took, size)
    if len(clocks) < 2 or ran.max() > clocks[-1] or ran.min() < clocks[0]:
        return None
    return np.array(
        [[np.interp(ran[s], clocks, row[s, columns]) for s in range(size)] for row in power]
    )
