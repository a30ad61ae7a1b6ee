"""Measure a GPU's clock switches: pick the transitions, hold the lease, probe, give back.

On a simulated GPU probes are kernels on virtual time. On a real one every clock is set by the clock
keeper under a lease, and the probes are kernels too where PyTorch can launch them there. Otherwise
the probe is the clock that the driver reports; latencies are then upper bounds, as fine as the
driver's own refresh.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pandas as pd

from ..data.errors import InputError, ReadOnlyError
from ..data.units import ClockPair
from .clocks import KeeperClient, numbered
from .gpu import Gpu
from .gpu.simulated import SimulatedGpu
from .measure.spin_bench import CudaProbes, SpinSwitchBench
from .measure.switch_benches import ReportedClockBench, SimulatedSwitchBench
from .measure.switching import SwitchBench, measure_switches

__all__ = ["few_pairs", "record_switches"]


def few_pairs(pairs: Sequence[ClockPair]) -> tuple[ClockPair, ...]:
    """The highest, middle and lowest core clock at the two outermost memory clocks.

    At most six pairs, thirty transitions: enough to tell the core's part, the memory's part and
    the direction apart; the optimizer takes the nearest measured one for the rest.
    """
    locked = [pair for pair in pairs if pair.core_mhz is not None]
    if len(locked) < 2:
        raise InputError("measuring switches needs at least two lockable clock pairs")
    mems = sorted({pair.mem_mhz for pair in locked}, key=lambda mem: mem or 0)
    chosen: list[ClockPair] = []
    # A memory clock that few core clocks go with is a corner of its own; leave it out.
    counts = {mem: sum(pair.mem_mhz == mem for pair in locked) for mem in mems}
    usable = [mem for mem in mems if counts[mem] >= 0.5 * max(counts.values())]
    for mem in dict.fromkeys((usable[-1], usable[0])):
        cores = sorted(pair.core_mhz or 0 for pair in locked if pair.mem_mhz == mem)
        outer = dict.fromkeys((cores[-1], cores[len(cores) // 2], cores[0]))
        chosen += [ClockPair(core, mem) for core in outer]
    return tuple(chosen)


def record_switches(
    gpu: Gpu,
    *,
    pairs: Sequence[ClockPair] | None = None,
    repeats: int = 20,
    set_clocks: bool = False,
    device: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Measure every transition between ``pairs`` (`few_pairs` of the GPU's own if None).

    Args:
        gpu: the GPU; a real one is only read through this object.
        pairs: locked pairs.
        repeats: observations of each transition.
        set_clocks: the user said that clocks may be set; needed on real hardware.
        device: a real GPU as PyTorch names it; None where PyTorch cannot use it.
        on_done: called with (transitions done, in all).

    Returns:
        A frame as `clockwright.data.tables.SWITCHES` declares.

    Raises:
        ReadOnlyError: a real GPU, without ``set_clocks``.
        RightsError, DeviceBusyError, KeeperError: the keeper cannot set clocks here.
        LockNotHeldError: a requested clock never arrives.
    """
    chosen = few_pairs(gpu.pairs()) if pairs is None else tuple(pairs)
    transitions = list(itertools.permutations(chosen, 2))
    if isinstance(gpu, SimulatedGpu):
        table = measure_switches(
            SimulatedSwitchBench(gpu), transitions, repeats=repeats, on_done=on_done
        )
        gpu.release()
        return table
    if not set_clocks:
        raise ReadOnlyError("measuring switches sets clocks; say --set-clocks to allow it")
    with KeeperClient.start(f"nvml:{gpu.info.uuid}") as keeper:
        keeper.acquire(gpu.info.uuid, numbered(chosen))
        bench: SwitchBench = ReportedClockBench(gpu, lock=keeper.lock)
        if device is not None:
            bench = SpinSwitchBench(gpu, lock=keeper.lock, probes=CudaProbes(gpu, device))
        return measure_switches(bench, transitions, repeats=repeats, on_done=on_done)
