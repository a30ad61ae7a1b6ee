"""Branching on the block that keeps the Lagrangian bound loose.

The dual's two paths straddle the budget, and where one long block makes most of the difference (the
head of a language model, say), no multiplier can settle it: the bound mixes the block's two states.
The states are then split by time into two halves, each a problem of its own with its own dual; the
bound is the lesser of theirs (Land and Doig, Econometrica 28(3), 1960). Blocks that matter less are
left to the searches that follow.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from .deadline import Deadline
from .dual import Dual, Point, close, maximise, turn_at
from .incumbent import Incumbent
from .instance import Instance
from .splice import splice
from .switch_cost import BIG
from .viterbi import Sweeper

__all__ = ["Node", "branch"]

_MOST_NODES = 60
_MOST_CELLS = 2_000_000  # each split copies the tables
_SHARE = 0.3  # of the node's gap: a block whose two states differ by less is not split
_TIME = 0.3  # of the time left


@dataclass(order=True)
class Node:
    """A part of the problem: some blocks may take only some of their states.

    Attributes:
        bound_mj: no schedule in it takes less.
        number: breaks ties by age.
        inst: its cells.
        dual: its dual.
    """

    bound_mj: float
    number: int
    inst: Instance = field(compare=False)
    dual: Dual = field(compare=False)


def branch(root: Node, hold: Incumbent, budget_ns: float, deadline: Deadline) -> list[Node]:
    """Parts that hold every schedule which could still gain; better schedules go to ``hold``.

    Args:
        root: the whole problem.
        hold: the schedule in hand and the bound.
        budget_ns: time budget less the gaps.
        deadline: of the whole solve, of which a share is used.
    """
    number = count(1)
    limit = deadline.share(_TIME)
    open_nodes = [root]
    leaves: list[Node] = []
    while open_nodes:
        node = heapq.heappop(open_nodes)
        enough_mj = hold.energy_mj * (1 - 0.9 * hold.tolerance)
        if node.bound_mj >= enough_mj:
            continue
        halves = None
        if not limit.passed and len(open_nodes) + len(leaves) < _MOST_NODES:
            halves = _halves(node, hold.energy_mj)
        if halves is None:
            leaves.append(node)
            continue
        for half in halves:
            found = _child(half, hold, budget_ns, deadline)
            if found is not None:
                bound_mj = max(node.bound_mj, found.bound_mj)
                heapq.heappush(open_nodes, Node(bound_mj, next(number), half, found))
    enough_mj = hold.energy_mj * (1 - 0.9 * hold.tolerance)
    leaves = [leaf for leaf in leaves if leaf.bound_mj < enough_mj]
    hold.prove(min([enough_mj, *(leaf.bound_mj for leaf in leaves)]), "branching")
    return leaves


def _halves(node: Node, energy_mj: float) -> tuple[Instance, Instance] | None:
    """The node with one block's states split by time, or None if no block is worth it."""
    inst, dual = node.inst, node.dual
    if dual.over is None or inst.time.size > _MOST_CELLS:
        return None
    apart = np.abs(inst.cells(dual.over.path)[0] - inst.cells(dual.under.path)[0])
    k = int(np.argmax(apart))
    if dual.multiplier * apart[k] < _SHARE * (energy_mj - node.bound_mj):
        return None
    ends = [inst.time[inst.row[k], point.path[k]] for point in (dual.under, dual.over)]
    fast = inst.time[inst.row[k]] <= sum(ends) / 2
    return _restrict(inst, k, fast), _restrict(inst, k, ~fast)


def _restrict(inst: Instance, k: int, keep: NDArray[np.bool_]) -> Instance:
    """The instance with block ``k`` confined to the states of ``keep``, in a row of its own."""
    time = np.vstack([inst.time, np.where(keep, inst.time[inst.row[k]], BIG)])
    energy = np.vstack([inst.energy, np.where(keep, inst.energy[inst.row[k]], BIG)])
    row = inst.row.copy()
    row[k] = len(time) - 1
    return replace(inst, time=time, energy=energy, row=row)


def _child(inst: Instance, hold: Incumbent, budget_ns: float, deadline: Deadline) -> Dual | None:
    """A part's dual; None if no schedule in it meets the budget."""
    sweeper = Sweeper(inst, 0.0, 1.0)
    path = close(sweeper, turn_at(sweeper), deadline).path
    least = Point(path, *inst.total(path))
    if least.time_ns > budget_ns * (1 + 1e-12):
        return None
    dual = maximise(inst, budget_ns, least, deadline, hold.tolerance / 20)
    hold.offer(inst.choice(dual.under.path), "branching")
    if dual.over is not None:
        hold.offer(inst.choice(splice(inst, dual.under, dual.over, budget_ns)), "branching")
    return dual
