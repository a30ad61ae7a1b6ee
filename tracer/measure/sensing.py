"""The SM clock, sensed by kernels of a known number of cycles.

``torch.cuda._sleep(cycles)`` launches one thread that waits for ``cycles`` ticks of its
multiprocessor's clock. Its duration is (cycles + overhead) / clock; two lengths give the overhead,
or their difference cancels it. Unlike the clock the driver reports (refreshed every 100 ms) this
sees the clock of the moment, within microseconds.

Left out: differences between multiprocessors (one domain on the GPUs known to us).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .cuda import spin

if TYPE_CHECKING:
    from .timeline import StepTimeline

__all__ = [
    "LONG_CYCLES",
    "SHORT_CYCLES",
    "clock_from_pair_mhz",
    "clocks_at",
    "make_spin_mode",
    "overhead_cycles",
]

Floats = npt.NDArray[np.float64]

SHORT_CYCLES, LONG_CYCLES = 6_000, 24_000
"""A timeline's probes alternate between these: about 4 and 15 us."""

_NS_PER_US = 1_000.0
_SMOOTH = 5


def clock_from_pair_mhz(
    short_ns: Floats, long_ns: Floats, short_cycles: int, long_cycles: int
) -> Floats:
    """The clock from spins of two lengths run one after the other; their overhead cancels."""
    difference: Floats = np.asarray(long_ns, dtype=float) - np.asarray(short_ns, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            difference > 0, (long_cycles - short_cycles) / difference * _NS_PER_US, np.nan
        )


def overhead_cycles(duration_ns: Floats, cycles: Floats) -> float:
    """Cycles a spin takes beyond those asked for, from neighbours of two lengths.

    Neighbours run at the same clock but for its drift, so their durations are as (c + o) is to
    (C + o); the median over all neighbours is taken.

    Args:
        duration_ns: (N,) spins in order of start.
        cycles: (N,) cycles asked of each.
    """
    first, second = np.asarray(cycles[:-1], float), np.asarray(cycles[1:], float)
    ratio = np.asarray(duration_ns[:-1], float) / np.asarray(duration_ns[1:], float)
    unlike = (first != second) & (ratio != 1)
    if not unlike.any():
        return 0.0
    ratio, first, second = ratio[unlike], first[unlike], second[unlike]
    return float(np.median((ratio * second - first) / (1 - ratio)))


def clocks_at(timeline: StepTimeline) -> Floats | None:
    """(R, K) sensed SM clock of each kernel in MHz; None if the steps hold no probe.

    A probe's own clock carries the recorder's resolution (tens of ns in a few us), so each is
    replaced by the median of its neighbours in the step before kernels are interpolated.
    """
    probes = timeline.probes
    if len(probes.start_ns) < 2:
        return None
    order = np.argsort(probes.start_ns, kind="stable")
    start, duration = probes.start_ns[order], probes.duration_ns[order].astype(float)
    step = probes.step[order]
    # Two lengths by turns, far enough apart that a threshold between their bulks always tells;
    # the extremes would not do, since one disturbed probe is enough to move them.
    short = float(np.quantile(duration, 0.25, method="lower"))
    long_one = float(np.quantile(duration, 0.75, method="higher"))
    cycles = np.where(duration > np.sqrt(short * long_one), LONG_CYCLES, SHORT_CYCLES).astype(float)
    if long_one < 2 * short:
        cycles[:] = LONG_CYCLES
    extra = overhead_cycles(duration, cycles)
    clock = (cycles + extra) / duration * _NS_PER_US
    long = cycles == LONG_CYCLES
    found = np.full(timeline.duration_ns.shape, np.nan)
    for row in range(len(found)):
        mine = (step == row) & long
        if not mine.any():
            continue
        middle = timeline.start_ns[row] + timeline.duration_ns[row] / 2
        values = _running_median(clock[mine])
        found[row] = np.interp(middle, start[mine] + duration[mine] / 2, values)
    return found


def _running_median(values: Floats) -> Floats:
    half = _SMOOTH // 2
    return np.array(
        [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    )


def make_spin_mode(every: int) -> Any:
    """A dispatch mode that launches a probe before every ``every``-th operator it sees.

    It costs host time at each operator (15% of a step was seen), so it is for sensing only; kernel
    durations are those of the GPU and stay what they are.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class SpinMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.seen = self.probes = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if self.seen % every == 0:
                cycles = LONG_CYCLES if self.probes % 2 else SHORT_CYCLES
                spin(cycles)
                self.probes += 1
            self.seen += 1
            return func(*args, **(kwargs or {}))

    return SpinMode()
