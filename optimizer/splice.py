"""A schedule from two: the paths on both sides of the budget, spliced where they meet.

At the best multiplier the path over the budget and the path within it cost the same. Wherever they
agree one can pass from one to the other for nothing, so each run of blocks in which they differ may
be taken from either; taking runs until the budget is full leaves at most one run's time unused.
What is left goes to windows: stretches of the path over the budget from any block to any other, at
the price of a switch in and a switch out. Without them a step of equal layers, whose two paths
differ everywhere, could only be taken whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .dual import Point
from .instance import Instance

__all__ = ["splice"]

Array = NDArray[np.float64]

_WINDOWS = 4
_WINDOW_WORK = 20_000_000  # windows looked at; beyond, not every block may begin one


def splice(inst: Instance, under: Point, over: Point, budget_ns: float) -> NDArray[np.int32]:
    """A path within the budget, no dearer than ``under``: (N,) states.

    Args:
        inst: the instance.
        under: a path within the budget.
        over: a path over it that takes less energy.
        budget_ns: the time budget less the gaps.
    """
    path = _take_runs(inst, under, over, budget_ns)
    for _ in range(_WINDOWS):
        wider = _take_window(inst, path, over.path, budget_ns)
        if wider is None:
            break
        path = wider
    return path


def _take_runs(inst: Instance, under: Point, over: Point, budget_ns: float) -> NDArray[np.int32]:
    """Runs from ``over``, best energy for its time first, while the budget lasts."""
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


def _take_window(
    inst: Instance, path: NDArray[np.int32], other: NDArray[np.int32], budget_ns: float
) -> NDArray[np.int32] | None:
    """The path with the window of ``other`` that saves most energy within the budget, or None."""
    n = inst.n_blocks
    before, before_other = np.roll(path, 1), np.roll(other, 1)
    tables = []
    for which in (0, 1):
        cells = inst.cells(other)[which] - inst.cells(path)[which]
        own = inst.stall.between(before, path)[which]
        theirs = inst.stall.between(before_other, other)[which]
        enter = inst.stall.between(before, other)[which] - theirs
        leave = inst.stall.between(before_other, path)[which] - own
        if not inst.cyclic:
            own[0] = theirs[0] = enter[0] = leave[0] = 0.0
        step = cells + theirs - own
        total = np.concatenate([[0.0], np.cumsum(np.concatenate([step, step]))])
        tables.append((total, enter, leave))
    room = budget_ns - inst.total(path)[0]
    stride = max(1, n * n // _WINDOW_WORK)
    begin, length = _best_window(tables[0], tables[1], room, stride, inst.cyclic)
    if length == 0:
        return None
    at = (begin + np.arange(length)) % n
    new = path.copy()
    new[at] = other[at]
    return new


@compiled()
def _best_window(
    ns: tuple[Array, Array, Array],
    mj: tuple[Array, Array, Array],
    room: float,
    stride: int,
    cyclic: bool,
) -> tuple[int, int]:
    """First block and length of the window that saves most within ``room`` ns; length 0 if none.

    ``ns`` and ``mj`` hold what the other path takes more: running sums over two rounds, and the
    switches into a window at each block and out of it there.
    """
    sum_ns, enter_ns, leave_ns = ns
    sum_mj, enter_mj, leave_mj = mj
    n = enter_ns.size
    best, begin, length = 0.0, 0, 0
    for i in range(0, n, stride):
        base_ns, base_mj = enter_ns[i] - sum_ns[i], enter_mj[i] - sum_mj[i]
        for j in range(i + 1, i + n if cyclic else n + 1):
            k = j % n
            gain = base_mj + sum_mj[j] + leave_mj[k]
            if gain < best and base_ns + sum_ns[j] + leave_ns[k] <= room:
                best, begin, length = gain, i, j - i
    return begin, length


def _runs(
    inst: Instance,
    path: NDArray[np.int32],
    turn: int,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[Array, Array]:
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
