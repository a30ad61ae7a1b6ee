"""A labelling search over the cells that survive fixing: the exact end of the proof.

A label is a walk from the cut to one cell, with its time and energy. It is dropped if another label
at the cell is no slower and no dearer, if it cannot finish within the budget, or if a Lagrangian
bound on its completion, at any of several multipliers, reaches the schedule in hand. Whatever
is dropped to keep a position within its cap lowers the bound to that label's own bound, so the cap
costs tightness, never truth (resource-constrained shortest paths: Dumitrescu and Boland, Networks
42(3), 2003). Each label is also completed along the cheapest walks onward, which is how better
schedules are found on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .deadline import Deadline
from .fixing import Network
from .label_steps import advance, bounds, completions, finish
from .switch_cost import StallCost

__all__ = ["LabelResult", "search_labels"]

_MOST_LABELS = 20_000_000  # 16 bytes each, for the way back
_MOST_CELLS = 1_000_000  # completions take 28 bytes a cell and multiplier
_SPREAD = (1.0, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 3.0)  # multipliers, relative to the dual's


@dataclass(frozen=True, eq=False)
class LabelResult:
    """What one search proved.

    Attributes:
        bound_mj: no walk of this network within the budget takes less than this or, where less,
            than the energy asked to beat; minus infinity if nothing was looked at.
        path: (N,) states by block, of the best walk found under the energy to beat, or None.
        complete: True if no cap and no limit struck.
    """

    bound_mj: float
    path: NDArray[np.int32] | None
    complete: bool


def search_labels(
    net: Network,
    stall: StallCost,
    budget_ns: float,
    multiplier: float,
    beat_mj: float,
    gain: float,
    cap: int,
    deadline: Deadline,
) -> LabelResult:
    """Search a network for walks within ``budget_ns`` that take less than ``beat_mj``.

    Args:
        net: the surviving cells.
        stall: switch costs between states.
        budget_ns: time budget less the gaps.
        multiplier: the dual's, mJ a ns.
        beat_mj: energy of the schedule in hand.
        gain: walks that would gain less than this fraction are not looked for.
        cap: labels kept at one position.
        deadline: when to stop.
    """
    n = len(net.ptr) - 1
    if np.any(np.diff(net.ptr) == 0):
        return LabelResult(np.inf, None, True)
    if net.n_cells > _MOST_CELLS:
        return LabelResult(-np.inf, None, False)
    states = np.arange(stall.n_states, dtype=np.int32)
    weights = np.stack(stall.between(states[:, None], states[None, :]))
    multipliers = multiplier * np.array(_SPREAD)
    end = -1 if net.start is None else net.start
    cells = net.ptr, net.state, net.time_ns, net.energy_mj
    cost, done_t, done_e, following = _complete(net, end, weights, multipliers)
    least = _complete(net, end, weights, np.array([-1.0]))[0][0]
    first = int(net.ptr[1])
    t, e = net.time_ns[:first].copy(), net.energy_mj[:first].copy()
    at, label0 = np.arange(first + 1), 0
    parents = [np.full(first, -1, dtype=np.int64)]
    owners = [np.arange(first)]
    made = first
    best = np.array([beat_mj, -1.0, -1.0, np.inf])  # mJ, label, multiplier, bound of the dropped
    finish(0, t, e, 0, at, done_t, done_e, budget_ns, best)
    i, complete = 0, True
    while i < n - 1 and len(t):
        if deadline.passed or made > _MOST_LABELS:
            z = bounds(int(net.ptr[i]), t, e, at, multipliers, cost, budget_ns)
            best[3], complete = min(best[3], float(z.min())), False
            break
        i, t, e, at, label0, parent, owner = advance(
            i, *cells, weights, stall.worst, multipliers, cost, done_t, done_e, least, budget_ns,
            gain, cap, t, e, at, label0, made, best,
        )  # fmt: skip
        parents.append(parent)
        owners.append(owner)
        made += len(parent)
    path = None
    if best[1] >= 0:
        onward = following[int(best[2])]
        path = _walk(net, np.concatenate(parents), np.concatenate(owners), onward, int(best[1]))
    bound = min(float(best[3]), float(best[0]) * (1 - gain))
    return LabelResult(bound, path, complete and best[3] == np.inf)


def _complete(
    net: Network, end: int, weights: NDArray[np.float64], multipliers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]:
    shape = len(multipliers), net.n_cells
    cost, done_t, done_e = np.empty(shape), np.empty(shape), np.empty(shape)
    following = np.empty(shape, dtype=np.int32)
    completions(
        net.ptr, net.state, net.time_ns, net.energy_mj, end, weights, multipliers,
        cost, done_t, done_e, following,
    )  # fmt: skip
    return cost, done_t, done_e, following


def _walk(
    net: Network,
    parent: NDArray[np.int64],
    owner: NDArray[np.int64],
    onward: NDArray[np.int32],
    label: int,
) -> NDArray[np.int32]:
    """(N,) states by block of a label's walk, completed along ``onward``."""
    after = []
    cell = int(onward[owner[label]])
    while cell >= 0:
        after.append(cell)
        cell = int(onward[cell])
    before = []
    while label >= 0:
        before.append(int(owner[label]))
        label = int(parent[label])
    return np.roll(net.state[np.array(before[::-1] + after)], net.turn)
