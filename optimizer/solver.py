"""The way from a problem to a proven schedule.

Stall and free switches: drop dominated cells, bound by the Lagrangian dual, splice its two paths,
then close the gap. Where switches cost, that is to fix cells by reduced cost, to branch on blocks
that no multiplier settles, and to search labels under rising caps; where they are free, a knapsack
search. What the caps leave open goes to an integer program. Each step is taken only if the gap is
still over the tolerance and time is left. Lag has its own module with the same steps.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from ..data.errors import InputError
from .branching import Node, branch
from .certificate import evaluate
from .deadline import Deadline
from .dual import Dual, Point, close, maximise, turn_at
from .fixing import Network, build_network
from .ilp import Backend
from .incumbent import Incumbent
from .instance import Instance, build_instance
from .knapsack import close_free
from .labels import search_labels
from .problem import Problem
from .prune import prune
from .restricted_ilp import solve_network
from .solution import Solution
from .splice import splice
from .switch_cost import BIG
from .switch_model import Lag
from .viterbi import Sweeper

__all__ = ["Method", "solve"]

Method = Literal["auto", "full-ilp-highs", "full-ilp-cpsat", "full-ilp-scip"]
_BACKENDS: dict[str, Backend] = {
    "full-ilp-highs": "highs",
    "full-ilp-cpsat": "cpsat",
    "full-ilp-scip": "scip",
}

# Labels kept at one position; 0 is the integer program. The rounds after the first go over the
# parts that branching makes.
_CAPS = (300, 3_000, 0, 20_000)
_MOST_ILP_CELLS = 4_000
# The budget less the gaps is rounded, and so are running sums: bounds are proven for a budget
# looser by this fraction, schedules are admitted by the certificate's exact sums alone.
_LOOSE = 2.0**-52


def solve(
    problem: Problem, budget: float, *, time_limit_s: float, tolerance: float, method: Method
) -> Solution:
    """See `clockwright.optimizer.solve`."""
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if not np.isfinite(time_limit_s) or time_limit_s <= 0:
        raise InputError(f"time_limit_s must be finite and positive, got {time_limit_s!r}")
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance must be at least 0 and under 1, got {tolerance!r}")
    deadline = Deadline(time_limit_s)
    hold = Incumbent(problem, budget, tolerance)
    if isinstance(problem.switch, Lag):
        from .lag import solve_lag

        return solve_lag(problem, hold, deadline, method)
    if method != "auto":
        from .full_ilp import solve_full

        return solve_full(problem, hold, deadline, _BACKENDS[method])
    inst = prune(build_instance(problem))
    budget_ns = (hold.budget_time_ns - inst.gap_ns) * (1 + (inst.n_blocks + 8) * _LOOSE)
    least = _single_pair(inst, hold, budget_ns) or _least_time(inst, hold)
    dual = maximise(inst, budget_ns, least, deadline, tolerance / 20)
    hold.offer(inst.choice(dual.under.path), "dual")
    hold.prove(dual.bound_mj, "dual", dual.multiplier)
    if dual.over is None:
        # The cheapest schedule of all is within the budget: only rounding parts it from its bound.
        hold.tolerance = max(tolerance, (inst.n_blocks + 8) * 2.0**-50)
        return hold.solution(deadline)
    if not hold.closed:
        for room_ns in (budget_ns, budget_ns * (1 - 4 * inst.n_blocks * _LOOSE)):
            if hold.offer(inst.choice(splice(inst, dual.under, dual.over, room_ns)), "splice"):
                break
    if not hold.closed and not deadline.passed:
        _close_gap(inst, hold, dual, budget_ns, deadline)
    return hold.solution(deadline)


def _single_pair(inst: Instance, hold: Incumbent, budget_ns: float) -> Point | None:
    """The best single pair within the budget, if there is one: in hand whatever strikes later."""
    rows = len(inst.time)
    energy = np.bincount(inst.row, None if inst.plain else inst.escale, rows) @ inst.energy
    time = np.bincount(inst.row, None if inst.plain else inst.tscale, rows) @ inst.time
    if not inst.plain:
        energy = energy + inst.hold.sum() * inst.idle
    energy[(time > budget_ns * (1 + 1e-9)) | (energy >= BIG / 2)] = np.inf
    for f in np.argsort(energy, kind="stable"):
        path = np.full(inst.n_blocks, f, dtype=np.int32)
        if np.isfinite(energy[f]) and hold.offer(inst.choice(path), "single pair"):
            return Point(path, float(time[f]), float(energy[f]))
    return None


def _least_time(inst: Instance, hold: Incumbent) -> Point:
    """The path of least time.

    The deadline does not stop this: without it nothing can be said of the budget.

    Raises:
        InfeasibleError: even that path is over the budget.
    """
    sweeper = Sweeper(inst, 0.0, 1.0)
    path = close(sweeper, turn_at(sweeper), Deadline(np.inf)).path
    choice = inst.choice(path)
    if not hold.offer(choice, "least time"):
        raise hold.infeasible(evaluate(hold.problem, choice).time_ns)
    return Point(path, *inst.total(path))


def _close_gap(
    inst: Instance, hold: Incumbent, dual: Dual, budget_ns: float, deadline: Deadline
) -> None:
    """Fixing, labels under rising caps, and the integer program on what they leave open."""
    root = Node(hold.bound_mj, 0, inst, dual)
    if inst.stall.worst == (0.0, 0.0):
        close_free(inst, hold, dual.multiplier, budget_ns, deadline)
        if not hold.closed and not deadline.passed:
            _round([root], hold, budget_ns, 0, deadline)
        return
    nodes = [root]
    for number, cap in enumerate(_CAPS):
        if number == 1:
            nodes = branch(root, hold, budget_ns, deadline)
        _round(nodes, hold, budget_ns, cap, deadline)
        if hold.closed or deadline.passed:
            return


def _round(
    nodes: list[Node], hold: Incumbent, budget_ns: float, cap: int, deadline: Deadline
) -> None:
    """One cap over all parts of the problem; the least of their bounds holds for the whole."""
    for node in nodes:
        bound_mj = _one_round(node, hold, budget_ns, cap, deadline)
        bound_mj *= 1 - node.inst.n_blocks * 2.0**-50
        node.bound_mj = max(node.bound_mj, bound_mj)
    if nodes:
        hold.prove(min(node.bound_mj for node in nodes), "labels" if cap else "ilp")


def _one_round(
    node: Node, hold: Incumbent, budget_ns: float, cap: int, deadline: Deadline
) -> float:
    """A bound from one pass over the start states that may still win; cap 0 asks the ILP."""
    inst, multiplier = node.inst, node.dual.multiplier
    gain, share = hold.tolerance * 0.9, multiplier * budget_ns
    sweeper = Sweeper(inst, 1.0, multiplier)
    turn = turn_at(sweeper)
    closed = close(sweeper, turn, deadline, stop_at=hold.energy_mj * (1 - gain) + share)
    bound = np.inf
    for s in np.argsort(closed.starts, kind="stable") if inst.cyclic else [0]:
        limit = hold.energy_mj * (1 - gain)
        # A start whose walk was not closed is no cheaper than its bound.
        least = float(closed.starts[s]) - share
        if least >= limit:
            break
        net = None
        if not deadline.passed:
            start = int(s) if inst.cyclic else None
            net = build_network(inst, multiplier, turn, start, limit + share)
        if net is None:
            bound = min(bound, least)
        elif cap == 0:
            found_mj = -np.inf
            if net.n_cells and net.n_cells <= _MOST_ILP_CELLS:
                found_mj = solve_network(inst, net, hold, budget_ns, deadline)
            bound = min(bound, max(least, found_mj))
        else:
            bound = min(
                bound, max(least, _label(inst, net, hold, budget_ns, multiplier, cap, deadline))
            )
    return min(bound, hold.energy_mj * (1 - gain))


def _label(
    inst: Instance,
    net: Network,
    hold: Incumbent,
    budget_ns: float,
    multiplier: float,
    cap: int,
    deadline: Deadline,
) -> float:
    """A labelling search's bound; its schedule, if exactly within the budget, goes to ``hold``."""
    gain = hold.tolerance * 0.9
    beat_mj = hold.energy_mj
    found = search_labels(net, inst.stall, budget_ns, multiplier, beat_mj, gain, cap, deadline)
    if found.path is not None and not hold.offer(inst.choice(found.path), "labels"):
        # Within the loosened budget only: the bound holds, the schedule is asked for again.
        tight_ns = budget_ns * (1 - 4 * inst.n_blocks * _LOOSE)
        again = search_labels(net, inst.stall, tight_ns, multiplier, beat_mj, gain, cap, deadline)
        if again.path is not None:
            hold.offer(inst.choice(again.path), "labels")
    return found.bound_mj
