"""Schedules for switches that lag: the same bound, search and proof over another graph.

See `switch_model.Lag` for the semantics, `lag_steps` for the graph and `lag_track` for the walks
that bound a step which repeats. The Lagrangian dual over those gives the bound and a multiplier.
Arcs that no walk near the bound uses are fixed by reduced cost. What is left is searched for closed
walks through each gate (`lag_net`) by a dual of its own and labels. The search starts close above
the bound and is widened until the schedule it finds is within what was searched: then the bound is
that of all closed walks. Every schedule is played and summed by the certificate before it counts.

Left out: dominance pruning and the integer program, which this graph has no compact form of.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ..data.errors import InputError
from .certificate import play_requests
from .deadline import Deadline
from .incumbent import Incumbent
from .lag_net import Net, build_net
from .lag_track import OutOfTimeError, Track, Walk, build_track
from .problem import Problem
from .solution import Solution

__all__ = ["solve_lag"]

Cheapest = Callable[[float, float], tuple[float, Walk | None]]

# Of the search, relative to the gap at its start.
_FIRST_WIDTH, _LEAST_WIDTH, _WIDER = 0.02, 1e-5, 7.0
_CAPS = (100, 1_000, 10_000)  # labels kept at one item
_STEPS_PER_S = 1e7  # arcs that labels are tried on
_LOOSE = 2.0**-52


@dataclass(frozen=True, eq=False)
class _Dual:
    """A Lagrangian bound, its multiplier, the best walk within the budget and the best over it.

    ``infeasible`` is True if no walk is within the budget; both walks are None if time ran out.
    """

    bound_mj: float
    multiplier: float
    under: Walk | None = None
    over: Walk | None = None
    infeasible: bool = False


class _Search:
    """What all steps of one solve share."""

    def __init__(self, track: Track, hold: Incumbent, deadline: Deadline) -> None:
        self.track, self.hold, self.deadline = track, hold, deadline
        n = track.n
        self.budget_ns = (hold.budget_time_ns - track.before_ns) * (1 + 4 * n * _LOOSE)
        self.tight_ns = (hold.budget_time_ns - track.before_ns) * (1 - 4 * n * _LOOSE)
        hold.tolerance = max(hold.tolerance, 2 * track.slack)
        self.gain = hold.tolerance * 0.5

    @property
    def goal_mj(self) -> float:
        """Only schedules under this are looked for."""
        return self.hold.energy_mj * (1 - self.gain)


def solve_lag(problem: Problem, hold: Incumbent, deadline: Deadline, method: str) -> Solution:
    """Solve a problem whose switch model is `Lag`; see `clockwright.optimizer.solve`.

    Raises:
        InputError: a method was asked for that does not cover lag, or the problem is too large.
        InfeasibleError: no schedule meets the budget.
    """
    if method != "auto":
        raise InputError(f"method {method} does not cover lagging switches; use method auto")
    search = _Search(build_track(problem), hold, deadline)
    _offer_single_pairs(search)
    if hold.choice is not None and _too_short(search, search.budget_ns):
        hold.prove(hold.energy_mj, "single pair")
        return hold.solution(deadline)
    free = _dual(search, lambda a, b: _free(search.track, a, b))
    hold.prove(min(free.bound_mj, hold.energy_mj), "free switches", free.multiplier)
    relaxed = _dual(search, lambda a, b: search.track.cheapest(a, b, deadline))
    if relaxed.under is not None and not problem.cyclic:
        _offer(search, relaxed.under, "dual")
    if hold.choice is None:
        _least_time(search)
    if not relaxed.infeasible:
        hold.prove(min(relaxed.bound_mj, hold.energy_mj), "dual", relaxed.multiplier)
    if relaxed.under is not None and not hold.closed:
        # When the deadline strikes, what was found and proven until then stands.
        with suppress(OutOfTimeError):
            _close_gap(search, relaxed)
    _ask_late(search)
    return hold.solution(deadline)


def _ask_late(search: _Search) -> None:
    """Move each request to the last item from which it is still in time.

    The schedule stays the same. But a real clock changes the moment the latency is over, in the
    middle of a kernel that is counted at the old pair: the later the request, the less of it.
    """
    track, hold = search.track, search.hold
    assert hold.choice is not None and hold.requests is not None
    item, pair = (part.copy() for part in hold.requests)
    n, m = track.n, len(item)
    if m < 1 + track.problem.cyclic:
        return
    state = np.searchsorted(track.pair, hold.choice)
    own_ns = np.diff(track.ts, axis=0)[np.arange(n), state]
    start = np.concatenate([[0.0], np.cumsum(np.concatenate([own_ns, own_ns]))])
    asked = np.searchsorted(track.pair, pair)
    for i in range(m - 1, -1, -1):
        lands = int(item[i])
        old = int(asked[i - 1]) if i or track.problem.cyclic else int(state[0])
        while lands < 2 * n and state[lands % n] != asked[i]:
            lands += 1
        following = int(item[(i + 1) % m]) + (n if i == m - 1 else 0)
        latest = start[lands] - track.latency[old, asked[i]]
        if i < m - 1 or track.problem.cyclic:
            latest = min(latest, start[following] - track.dwell)
        # Not into the next lap, where the order of requests would be another.
        last = min(int(np.searchsorted(start, latest, side="right")) - 1, lands, n - 1)
        while last > item[i] and not track.can[last]:
            last -= 1
        item[i] = max(last, int(item[i]))
    with suppress(ValueError):  # a tie at the last bit: the requests stay as they were found
        first = int(hold.choice[0])
        if np.array_equal(play_requests(track.problem, first, item, pair), hold.choice):
            hold.requests = item, pair


def _offer_single_pairs(search: _Search) -> None:
    track = search.track
    none = np.empty(0, dtype=np.int32)
    for s in np.argsort(track.es[-1] + track.before_mj, kind="stable"):
        choice = np.full(track.n, track.pair[s], dtype=np.int32)
        if search.hold.offer(choice, "single pair", (none, none)):
            return


def _too_short(search: _Search, time_ns: float) -> bool:
    """Whether no step that repeats within a time has the two requests a change and back takes."""
    track = search.track
    size = len(track.pair)
    if not track.problem.cyclic or size == 1:
        return size == 1
    least = track.latency[~np.eye(size, dtype=np.bool_)].min()
    return bool(time_ns < 2 * max(track.dwell, least))


def _offer(search: _Search, walk: Walk, method: str) -> bool:
    """Take a walk if the certificate, playing its requests, finds it valid and better."""
    track = search.track
    order = np.argsort(walk.item, kind="stable")
    item, pair = walk.item[order].astype(np.int32), track.pair[walk.state[order]]
    try:
        choice = play_requests(track.problem, int(track.pair[walk.first]), item, pair)
    except ValueError:
        # Running sums and the certificate's exact ones part on a tie at the last bit.
        return False
    return search.hold.offer(choice, method, (item, pair))


def _free(track: Track, a: float, b: float) -> tuple[float, Walk]:
    """Every item at its cheapest pair, as if switches took no time."""
    time, energy = np.diff(track.ts, axis=0), np.diff(track.es, axis=0)
    best = (a * energy + b * time).argmin(axis=1)
    rows = np.arange(track.n)
    none = np.empty(0, dtype=np.int64)
    t = float(time[rows, best].sum())
    e = float(energy[rows, best].sum()) + float(track.before_mj.min())
    return a * e + b * t, Walk(t, e, 0, none, none)


def _dual(search: _Search, cheapest: Cheapest) -> _Dual:
    """Raise the bound along its two best walks; stop where they agree or the deadline strikes."""
    budget_ns, slack = search.budget_ns, search.track.slack
    bound, multiplier = 0.0, 0.0
    under: Walk | None = None
    try:
        over = cheapest(1.0, 0.0)[1]
        if over is None:
            return _Dual(np.inf, 0.0, infeasible=True)
        bound = over.energy_mj * (1 - slack)
        if over.time_ns <= budget_ns:
            return _Dual(bound, 0.0, over)
        under = cheapest(0.0, 1.0)[1]
        assert under is not None
        if under.time_ns > budget_ns:
            return _Dual(np.inf, 0.0, None, over, infeasible=True)
        for _ in range(60):
            if search.deadline.passed or under.energy_mj <= over.energy_mj:
                break
            trial = (under.energy_mj - over.energy_mj) / (over.time_ns - under.time_ns)
            cost, walk = cheapest(1.0, trial)
            assert walk is not None
            level = cost - slack * abs(cost) - trial * budget_ns
            if level > bound:
                bound, multiplier = level, trial
            top = over.energy_mj + trial * over.time_ns
            if top - cost <= 1e-10 * abs(top):
                break
            if walk.time_ns <= budget_ns:
                under = walk
            else:
                over = walk
    except OutOfTimeError:
        return _Dual(bound, multiplier)
    return _Dual(bound, multiplier, under, over)


def _close_gap(search: _Search, relaxed: _Dual) -> None:
    """Search closed walks near the bound, ever wider until the best one found lies within."""
    hold, track = search.hold, search.track
    share = relaxed.multiplier * search.budget_ns
    room_mj = search.goal_mj - relaxed.bound_mj
    width, too_wide_mj = _FIRST_WIDTH, np.inf
    while _LEAST_WIDTH < width <= 1.0:
        limit_mj = min(search.goal_mj, relaxed.bound_mj + width * room_mj)
        if limit_mj >= too_wide_mj:
            return
        arcs = track.arcs(1.0, relaxed.multiplier, limit_mj + share, search.deadline)
        if arcs is None:
            too_wide_mj = limit_mj
            width /= _WIDER
            continue
        net = build_net(track, arcs)
        _first_schedule(search, net, relaxed)
        if search.goal_mj < limit_mj:
            limit_mj = search.goal_mj
            arcs = track.arcs(1.0, relaxed.multiplier, limit_mj + share, search.deadline)
            net = build_net(track, arcs) if arcs is not None else net
        _search_gates(search, net, relaxed, limit_mj)
        if hold.closed or search.deadline.passed or search.goal_mj <= limit_mj or width == 1.0:
            return
        width = min(1.0, width * _WIDER)


def _first_schedule(search: _Search, net: Net, relaxed: _Dual) -> None:
    """Close the dual's walks where they stand longest: schedules to narrow the search by."""
    for walk in (relaxed.under, relaxed.over):
        if walk is None or search.deadline.passed or not search.track.problem.cyclic:
            continue
        edges = np.concatenate([[0], walk.item, [search.track.n - 1]])
        states = np.concatenate([[walk.first], walk.state])
        longest = int(np.argmax(np.diff(edges)))
        node = net.node(int(edges[longest + 1]), int(states[longest]))
        if node is not None:
            dual = _gate_dual(search, net, node)
            if dual.under is not None and dual.over is not None:
                _label(search, net, node, dual, _CAPS[0])


def _search_gates(search: _Search, net: Net, relaxed: _Dual, limit_mj: float) -> None:
    """Bound closed walks through every gate; those cheaper than ``limit_mj`` are all in the net."""
    hold, slack = search.hold, search.track.slack
    gates = net.gates()
    if not len(gates):
        hold.prove(limit_mj, "closed")  # a cut that nothing passes
        return
    lower = np.full(len(gates), relaxed.bound_mj)
    for i, gate in enumerate(gates.tolist()):
        if search.deadline.passed:
            break
        cost = float(net.values(gate, 1.0, relaxed.multiplier)[0][gate])
        level = cost * (1 - slack) - relaxed.multiplier * search.budget_ns
        lower[i] = max(lower[i], level)
    duals: dict[int, _Dual] = {}
    for cap in _CAPS:
        for i in np.argsort(lower, kind="stable").tolist():
            if search.deadline.passed or lower[i] >= min(search.goal_mj, limit_mj):
                break
            gate = int(gates[i])
            if gate not in duals:
                duals[gate] = _gate_dual(search, net, gate)
            lower[i] = max(lower[i], duals[gate].bound_mj)
            if lower[i] < min(search.goal_mj, limit_mj):
                lower[i] = max(lower[i], _label(search, net, gate, duals[gate], cap))
        hold.prove(min(limit_mj, float(lower.min()), hold.energy_mj), "closed")
        if search.deadline.passed or lower.min() >= min(search.goal_mj, limit_mj):
            return


def _gate_dual(search: _Search, net: Net, gate: int) -> _Dual:
    dual = _dual(search, lambda a, b: net.cheapest(gate, a, b))
    if dual.under is not None:
        _offer(search, dual.under, "closed")
    return dual


def _label(search: _Search, net: Net, gate: int, dual: _Dual, cap: int) -> float:
    """A labelling search's bound on closed walks through a gate; what it finds is offered."""
    hold = search.hold
    beat_mj, bound = hold.energy_mj, -np.inf
    # Nothing looks at the clock within a search: where time is short it is kept small.
    steps = len(net.first) * len(net.head) / len(net.item)
    cap = max(1, min(cap, int(search.deadline.left_s * _STEPS_PER_S / steps)))
    for room_ns in (search.budget_ns, search.tight_ns):
        found, walk = net.search(gate, room_ns, dual.multiplier, beat_mj, search.gain, cap)
        bound = max(bound, found) if room_ns == search.budget_ns else bound
        # Within the loosened budget only: the bound holds, the schedule is asked for again.
        if walk is None or _offer(search, walk, "labels"):
            break
    return bound * (1 - search.track.slack)


def _least_time(search: _Search) -> None:
    """Whether any schedule meets the budget: that of least time says.

    The deadline does not stop this before one schedule is in hand.

    Raises:
        InfeasibleError: none does.
    """
    track, hold, ever = search.track, search.hold, Deadline(np.inf)
    least, sure = float(track.ts[-1].min()), True
    if not track.problem.cyclic:
        least, walk = track.cheapest(0.0, 1.0, ever)
        _offer(search, walk, "least time")
    elif not _too_short(search, least):
        arcs = track.arcs(0.0, 1.0, least, ever)
        sure = arcs is not None
        net = None if arcs is None else build_net(track, arcs)
        for gate in [] if net is None else net.gates().tolist():
            assert net is not None
            cost, found = net.cheapest(gate, 0.0, 1.0)
            if found is not None and cost < least:
                least = cost
            if found is not None and _offer(search, found, "least time"):
                return
            if search.deadline.passed:
                sure = False
                break
    if hold.choice is None:
        raise hold.infeasible(least + track.before_ns, sure=sure)
