"""The Lagrangian dual of the time budget: the lower bound, and two paths that straddle the budget.

For a multiplier m >= 0, L(m) = min over schedules of energy + m * (time - budget) is a lower bound
on the energy within the budget. L is concave and piecewise linear; it is maximised by intersecting
the lines of the best path over the budget and the best within it (Handler and Zang, Networks
10(4), 1980). The inner minimum is over closed walks: a step that repeats pays for the switch from
its end to its start. A sweep with a free start bounds the walk through each start state; the walk
is then closed for one start after another until no other can be cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .deadline import Deadline
from .instance import Instance
from .switch_cost import BIG
from .viterbi import Sweeper

__all__ = ["Closed", "Dual", "Point", "close", "maximise", "turn_at"]

Array = NDArray[np.float64]

# Rounding of a sum of N terms is at most N * 2^-52 of the sum (all terms are positive): bounds are
# lowered by it.
_EPS = 2.0**-52
_WINDOW = 10_000  # blocks of the stretch that stands for a longer step in guessing


@dataclass(frozen=True, eq=False)
class Point:
    """A path with its totals: ns without gaps, and mJ."""

    path: NDArray[np.int32]
    time_ns: float
    energy_mj: float


@dataclass(frozen=True, eq=False)
class Closed:
    """The cheapest closed walk at one cost.

    Attributes:
        bound: no closed walk costs less.
        path: the cheapest found (its cost is ``bound`` unless the deadline struck).
        turn: the block the walks were closed at.
        starts: (G,) a lower bound on the cost of a walk through each state there.
    """

    bound: float
    path: NDArray[np.int32]
    turn: int
    starts: Array


@dataclass(eq=False)
class Dual:
    """Where the search for the best multiplier ended.

    Attributes:
        bound_mj: the lower bound.
        multiplier: mJ per ns at the bound.
        under: the best path within the budget.
        over: the best path over it, or None where the budget does not bind.
    """

    bound_mj: float
    multiplier: float
    under: Point
    over: Point | None


def turn_at(sweeper: Sweeper) -> int:
    """The block at which one state beats all others by most: few starts need be closed there.

    A step that does not repeat is cut where it begins.
    """
    inst = sweeper.instance
    if not inst.cyclic:
        return 0
    rows = sweeper.a * inst.energy + sweeper.b * inst.time
    if rows.shape[1] < 2:
        return 0
    two = np.partition(rows, 1, axis=1)[:, :2]
    margin = (two[:, 1] - two[:, 0])[inst.row]
    if not inst.plain:
        margin = margin * np.minimum(inst.tscale, inst.escale)
    return int(np.argmax(margin))


def close(
    sweeper: Sweeper,
    turn: int,
    deadline: Deadline,
    *,
    stop_at: float = np.inf,
) -> Closed:
    """The cheapest closed walk, cut open at block ``turn``.

    Args:
        sweeper: the instance at one cost.
        turn: where to cut.
        deadline: when to leave the remaining starts at their free-start bounds.
        stop_at: starts are closed only while their bound is below this.
    """
    inst = sweeper.instance
    g = inst.n_states
    if not inst.cyclic:
        value, path = sweeper.path(np.zeros(g), 0, np.zeros(g))
        return Closed(value, path, 0, np.full(g, value))
    cost = sweeper.cost(turn)
    worst = sweeper.a * inst.stall.worst[1] + sweeper.b * inst.stall.worst[0]
    first = int(np.argmin(cost))
    rest = np.delete(cost, first)
    if rest.size == 0 or rest.min() - cost[first] >= 2 * worst:
        # A walk through another state saves by a detour through this one all but two switches.
        value, path = _close_one(sweeper, turn, first)
        return Closed(value, path, turn, value + np.maximum(0.0, cost - cost[first] - 2 * worst))
    starts = sweeper.run(np.zeros(g), turn, reverse=True)
    order = np.argsort(starts, kind="stable").tolist()
    best, best_path = np.inf, np.empty(0, dtype=np.int32)
    for s in order:
        if best_path.size and (starts[s] >= min(best, stop_at) or deadline.passed):
            continue
        starts[s], path = _close_one(sweeper, turn, s)
        if starts[s] < best:
            best, best_path = float(starts[s]), path
    return Closed(float(starts.min()), best_path, turn, starts)


def _close_one(sweeper: Sweeper, turn: int, start: int) -> tuple[float, NDArray[np.int32]]:
    states = np.arange(sweeper.instance.n_states, dtype=np.int32)
    v0 = np.full(len(states), BIG)
    v0[start] = 0.0
    return sweeper.path(v0, turn, sweeper.weight(states, np.full(1, start, dtype=np.int32)))


def maximise(
    inst: Instance, budget_ns: float, least: Point, deadline: Deadline, tolerance: float
) -> Dual:
    """The best multiplier, starting from ``least``, the path of least time, within the budget.

    Args:
        inst: the instance.
        budget_ns: the time budget less the gaps.
        least: the path of least time.
        deadline: when to stop with the bound reached.
        tolerance: relative distance between the bound and the best any multiplier could give, at
            which to stop.
    """
    dual = Dual(0.0, 0.0, least, None)
    multiplier, step = _guess(inst, budget_ns, deadline)
    within = _try(inst, budget_ns, multiplier, dual, deadline)
    while not deadline.passed:
        if within and step > 1e9:
            # Time is worth next to nothing: see whether the budget binds at all.
            if not _try(inst, budget_ns, 0.0, dual, deadline):
                break
            return dual
        multiplier *= 1 / step if within else step
        step *= step
        if _try(inst, budget_ns, multiplier, dual, deadline) != within:
            break
    for _ in range(60):
        if deadline.passed or dual.over is None:
            break
        rise = dual.under.energy_mj - dual.over.energy_mj
        multiplier = rise / (dual.over.time_ns - dual.under.time_ns)
        top = dual.over.energy_mj + multiplier * (dual.over.time_ns - budget_ns)
        if multiplier <= 0 or top - dual.bound_mj <= tolerance * abs(top):
            break
        before = dual.under, dual.over
        _try(inst, budget_ns, multiplier, dual, deadline)
        if before == (dual.under, dual.over):
            break
    return dual


def _try(
    inst: Instance,
    budget_ns: float,
    multiplier: float,
    dual: Dual,
    deadline: Deadline,
) -> bool:
    """Evaluate one multiplier; True if its path is within the budget.

    The better bound and tighter paths go into ``dual``.
    """
    sweeper = Sweeper(inst, 1.0, multiplier)
    turn = turn_at(sweeper)
    closed = close(sweeper, turn, deadline)
    time_ns, energy_mj = inst.total(closed.path)
    point = Point(closed.path, time_ns, energy_mj)
    slack = (inst.n_blocks + 4) * _EPS * abs(closed.bound)
    bound = closed.bound - slack - multiplier * budget_ns
    if bound > dual.bound_mj:
        dual.bound_mj, dual.multiplier = bound, multiplier
    if time_ns <= budget_ns:
        if energy_mj < dual.under.energy_mj:
            dual.under = point
    elif dual.over is None or time_ns < dual.over.time_ns:
        dual.over = point
    return time_ns <= budget_ns


def _guess(inst: Instance, budget_ns: float, deadline: Deadline) -> tuple[float, float]:
    """A multiplier near the best and the factor by which to step away from it."""
    if inst.n_blocks <= 2 * _WINDOW:
        # Without switches the dual is a search over rows, and close where switches are cheap.
        return _free_multiplier(inst, budget_ns), 1.02
    # A stretch of the step, with its share of the budget, costs little and is much like the whole.
    few = slice(0, _WINDOW)
    part = replace(
        inst,
        row=inst.row[few],
        tscale=inst.tscale if inst.plain else inst.tscale[few],
        escale=inst.escale if inst.plain else inst.escale[few],
        hold=inst.hold if inst.plain else inst.hold[few],
        first=inst.first[few],
    )
    sweeper = Sweeper(part, 0.0, 1.0)
    least = close(sweeper, turn_at(sweeper), deadline).path
    time_ns, energy_mj = part.total(least)
    per_row = inst.time.min(axis=1)
    share = per_row[part.row] if inst.plain else part.tscale * per_row[part.row]
    total = per_row[inst.row] if inst.plain else inst.tscale * per_row[inst.row]
    budget_part = max(time_ns, budget_ns * float(share.sum() / total.sum()))
    found = maximise(part, budget_part, Point(least, time_ns, energy_mj), deadline, 1e-9)
    return max(found.multiplier, 1e-12), 1.001


def _free_multiplier(inst: Instance, budget_ns: float) -> float:
    """The multiplier at which the cheapest cells, switches free, just meet the budget."""
    rows = len(inst.time)
    weight_t = np.bincount(inst.row, None if inst.plain else inst.tscale, rows)
    weight_e = np.bincount(inst.row, None if inst.plain else inst.escale, rows)
    used = np.flatnonzero(weight_t > 0)
    # A sample is enough for a guess.
    if used.size > 2000:
        used = used[:: used.size // 2000 + 1]
    time, energy = inst.time[used], inst.energy[used]
    ratio = (weight_e[used] / weight_t[used])[:, None]
    share = weight_t[used]
    whole = float(share @ time.min(axis=1))
    part = whole / max(1e-300, float(weight_t @ inst.time.min(axis=1)))
    lo, hi = 1e-12, 1e3  # mJ per ns: 1 uW to 1 GW
    for _ in range(60):
        mid = (lo * hi) ** 0.5
        pick = np.argmin(ratio * energy + mid * time, axis=1)
        if share @ time[np.arange(len(used)), pick] > budget_ns * part:
            lo = mid
        else:
            hi = mid
    return float(hi)
