"""A schedule from two: the paths on both sides of the budget, spliced where they meet.

At the best multiplier the path over the budget and the path within it cost the same. Wherever they
agree one can pass from one to the other for nothing, so each run of blocks in which they differ may
be taken from either; taking runs until the budget is full leaves at most one run's time unused.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .dual import Point
from .instance import Instance

__all__ = ["splice"]


def splice(inst: Instance, under: Point, over: Point, budget_ns: float) -> NDArray[np.int32]:
    """A path within the budget, no dearer than ``under``: (N,) states.

    Args:
        inst: the instance.
        under: a path within the budget.
        over: a path over it that takes less energy.
        budget_ns: the time budget less the gaps.
    """
    differ = under.path != over.path
    if differ.all():
        return under.path
    # Start where the paths agree, so that no run wraps around the end.
    turn = int(np.flatnonzero(~differ)[0]) if inst.cyclic else 0
    apart = np.roll(differ, -turn)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], apart, [False]]).astype(np.int8)))
    begin, end = edges[::2], edges[1::2]
    gain_ns, gain_mj = (
        new - old
        for new, old in zip(
            _runs(inst, over.path, turn, begin, end),
            _runs(inst, under.path, turn, begin, end),
            strict=True,
        )
    )
    path = np.roll(under.path, -turn)
    other = np.roll(over.path, -turn)
    room = budget_ns - under.time_ns
    useful = gain_mj < 0
    order = np.flatnonzero(useful)
    # Best energy for its time first; runs that save both come before any that cost time.
    order = order[np.argsort(gain_mj[order] / np.maximum(gain_ns[order], 1e-9), kind="stable")]
    for r in order.tolist():
        if gain_ns[r] <= room:
            room -= gain_ns[r]
            path[begin[r] : end[r]] = other[begin[r] : end[r]]
    return np.roll(path, turn)


def _runs(
    inst: Instance,
    path: NDArray[np.int32],
    turn: int,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ns and mJ of each run of positions begin .. end - 1, the switches into and out of it too."""
    into = inst.stall.between(np.roll(path, 1), path)
    if not inst.cyclic:
        into[0][0] = into[1][0] = 0.0
    sums = []
    for cells, stalls in zip(inst.cells(path), into, strict=True):
        block = np.concatenate([[0.0], np.cumsum(np.roll(cells, -turn))])
        stall = np.roll(stalls, -turn)
        stall = np.concatenate([[0.0], np.cumsum(np.append(stall, stall[0]))])
        if not inst.cyclic:
            stall[-1] = stall[-2]
        sums.append(block[end] - block[begin] + stall[end + 1] - stall[begin])
    return sums[0], sums[1]
