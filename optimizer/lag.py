"""Schedules for switches that lag: the same bound, search and proof over another graph.

See `switch_model.Lag` for the semantics and `lag_steps` for the graph. A step that does not repeat
is a walk from item 0 to the end. One that repeats is a closed walk; cut at any item, it either
stands at a node there or a request's latency or dwell crosses the cut. The bound is over walks in
which whatever crosses the cut is forgiven (the pair in effect may change once, freely, within the
first latency, and the last dwell is cut short); schedules are closed walks through a node, cut in
the middle of a long segment. What lies between the two is closed, where time allows, by a closed
search through each node of a stretch that every walk must touch.

Left out: dominance pruning and the integer program, which this graph has no compact form of.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError, InputError
from .certificate import LAG_SLACK_NS, play_requests
from .deadline import Deadline
from .incumbent import Incumbent
from .lag_steps import lag_labels, lag_values, lag_walk
from .problem import Problem
from .solution import Solution
from .switch_model import Lag

__all__ = ["solve_lag"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_SPREAD = (1.0, 0.7, 1.4)
_CAPS = (300, 3_000)
_MOST_LABELS = 10_000_000
_MOST_CELLS = 20_000_000
_LOOSE = 2.0**-52


@dataclass(frozen=True, eq=False)
class _Track:
    """A step cut open at item ``turn``: prefix sums, and where requests may be issued."""

    turn: int
    ts: Array
    es: Array
    can: NDArray[np.bool_]
    latency: Array
    dwell: float

    @property
    def shape(self) -> tuple[int, int]:
        """(n + 1, G)."""
        return self.ts.shape[0], self.ts.shape[1]


@dataclass(frozen=True, eq=False)
class _Walk:
    """A walk: ns, mJ, its first state, and its requests as (items from the cut, states)."""

    time_ns: float
    energy_mj: float
    first: int
    item: Ints
    state: Ints


@dataclass(eq=False)
class _Cells:
    """Item cells with the gap that follows each, (n, G); one state a choosable pair."""

    problem: Problem
    pair: NDArray[np.int32]
    time: Array
    energy: Array
    latency: Array
    dwell: float
    before_ns: float
    before_mj: Array

    def track(self, turn: int) -> _Track:
        """Cut the step open at an item."""
        can = self.problem.boundary
        if can is None:
            can = np.ones(len(self.time), dtype=np.bool_)
        zero = np.zeros((1, len(self.pair)))
        ts = np.concatenate([zero, np.cumsum(np.roll(self.time, -turn, axis=0), axis=0)])
        es = np.concatenate([zero, np.cumsum(np.roll(self.energy, -turn, axis=0), axis=0)])
        return _Track(turn, ts, es, np.roll(can, -turn), self.latency, self.dwell)


def solve_lag(problem: Problem, hold: Incumbent, deadline: Deadline, method: str) -> Solution:
    """Solve a problem whose switch model is `Lag`; see `clockwright.optimizer.solve`."""
    if method != "auto":
        raise InputError(f"method {method} does not cover lagging switches; use method auto")
    cells = _cells(problem)
    budget_ns = (hold.budget_time_ns - cells.before_ns) * (1 + 4 * len(cells.time) * _LOOSE)
    _offer_single_pairs(cells, hold)
    if problem.cyclic:
        _solve_cyclic(cells, hold, budget_ns, deadline)
    else:
        _solve_open(cells, hold, budget_ns, deadline)
    return hold.solution(deadline)


def _cells(problem: Problem) -> _Cells:
    switch = problem.switch
    assert isinstance(switch, Lag) and problem.allowed is not None
    pair = np.flatnonzero(problem.allowed).astype(np.int32)
    n = problem.n_items
    if n * len(pair) > _MOST_CELLS:
        raise InputError(
            f"lagging switches are solved up to {_MOST_CELLS} kernels x pairs, got "
            f"{n} x {len(pair)}; allow fewer pairs"
        )
    time, energy = problem.time_ns[problem.row][:, pair], problem.energy_mj[problem.row][:, pair]
    if problem.time_scale is not None:
        time = problem.time_scale[:, None] * time
    if problem.energy_scale is not None:
        energy = problem.energy_scale[:, None] * energy
    before_ns, before_mj = 0.0, np.zeros(len(pair))
    if problem.gap_ns is not None and problem.idle_power_w is not None:
        after = np.roll(problem.gap_ns, -1)
        idle = problem.idle_power_w[pair] * 1e-6
        if not problem.cyclic:
            before_ns, before_mj = float(after[-1]), after[-1] * idle
            after[-1] = 0.0
        time, energy = time + after[:, None], energy + after[:, None] * idle
    if isinstance(switch.latency_ns, float):
        latency = np.full((len(pair), len(pair)), switch.latency_ns)
    else:
        latency = switch.latency_ns[np.ix_(pair, pair)]
    slack = LAG_SLACK_NS
    return _Cells(
        problem, pair, time, energy, np.ascontiguousarray(latency - slack),
        switch.min_dwell_ns - slack, before_ns, before_mj,
    )  # fmt: skip


def _offer_single_pairs(cells: _Cells, hold: Incumbent) -> None:
    none = np.empty(0, dtype=np.int32)
    for s in np.argsort(cells.energy.sum(axis=0) + cells.before_mj, kind="stable"):
        choice = np.full(len(cells.time), cells.pair[s], dtype=np.int32)
        if hold.offer(choice, "single pair", (none, none)):
            return


def _offer(cells: _Cells, track: _Track, walk: _Walk, hold: Incumbent, method: str) -> bool:
    """Take a walk if the certificate, playing its requests, finds it valid and better."""
    n = len(cells.time)
    item = (walk.item + track.turn) % n
    order = np.argsort(item, kind="stable")
    item, pair = item[order].astype(np.int32), cells.pair[walk.state[order]]
    try:
        choice = play_requests(cells.problem, int(cells.pair[walk.first]), item, pair)
    except ValueError:
        # Prefix sums and the certificate's exact ones part on a tie at the last bit.
        return False
    return hold.offer(choice, method, (item, pair))


def _values(
    track: _Track, a: float, b: float, end: int
) -> tuple[Array, NDArray[np.int32], NDArray[np.int32]]:
    value = np.zeros(track.shape)
    state, item = np.zeros(track.shape, dtype=np.int32), np.zeros(track.shape, dtype=np.int32)
    lag_values(
        track.ts, track.es, track.latency, track.dwell, track.can, a, b, end, value, state, item
    )
    return value, state, item


def _crossings(track: _Track) -> Array:
    """(n + 1, G) True where a pair in effect at the cut may give way to a request made before."""
    longest = track.latency.max(axis=1)
    inside = np.zeros(track.shape, dtype=np.bool_)
    inside[1:] = (track.ts[:-1] < longest[None, :]) & (longest > 0)[None, :]
    return inside


def _cheapest(
    cells: _Cells, track: _Track, a: float, b: float, end: int, crossings: Array | None
) -> tuple[float, _Walk]:
    """The cheapest walk at a mJ + b ns: closed if ``end`` >= 0, forgiven if crossings are given."""
    value, state, item = _values(track, a, b, end)
    k, f, before_ns, before_mj = 0, end, 0.0, 0.0
    if end >= 0:
        cost = float(value[0, end])
    else:
        first = value[0] + a * cells.before_mj
        f = int(np.argmin(first))
        cost = float(first[f])
        before_mj = float(cells.before_mj[f])
    if crossings is not None and crossings.any():
        entry = a * track.es + b * track.ts + value.min(axis=1)[:, None]
        entry[~crossings] = np.inf
        at = int(np.argmin(entry))
        if entry.flat[at] < cost:
            cost = float(entry.flat[at])
            k, g = divmod(at, track.shape[1])
            before_ns, before_mj = float(track.ts[k, g]), float(track.es[k, g])
            f = int(np.argmin(value[k]))
    t, e, items, states = lag_walk(track.ts, track.es, track.latency, k, f, state, item)
    return cost, _Walk(t + before_ns, e + before_mj, f, items, states)


def _dual(
    cells: _Cells,
    track: _Track,
    end: int,
    crossings: Array | None,
    budget_ns: float,
    deadline: Deadline,
) -> tuple[float, float, _Walk | None, _Walk | None]:
    """Best bound, its multiplier, the best walk within the budget and the best over it."""
    slack = (len(cells.time) + 8) * 2.0**-50
    _, over = _cheapest(cells, track, 1.0, 0.0, end, crossings)
    bound, multiplier = over.energy_mj * (1 - slack), 0.0
    if over.time_ns <= budget_ns:
        return bound, multiplier, over, None
    under = _cheapest(cells, track, 0.0, 1.0, end, crossings)[1]
    if under.time_ns > budget_ns:
        return np.inf, 0.0, None, over
    for _ in range(60):
        if deadline.passed or under.energy_mj <= over.energy_mj:
            break
        trial = (under.energy_mj - over.energy_mj) / (over.time_ns - under.time_ns)
        cost, walk = _cheapest(cells, track, 1.0, trial, end, crossings)
        level = cost * (1 - slack) - trial * budget_ns
        if level > bound:
            bound, multiplier = level, trial
        top = over.energy_mj + trial * over.time_ns
        if top - cost <= 1e-10 * abs(top):
            break
        if walk.time_ns <= budget_ns:
            under = walk
        else:
            over = walk
    return bound, multiplier, under, over


def _search(
    cells: _Cells,
    track: _Track,
    end: int,
    crossings: Array | None,
    budget_ns: float,
    multiplier: float,
    hold: Incumbent,
    cap: int,
) -> float:
    """A labelling search; its bound. Without crossings its walks are schedules and are offered."""
    multipliers = multiplier * np.array(_SPREAD)
    runs = [_values(track, 1.0, float(m), end) for m in multipliers]
    value = np.stack([r[0] for r in runs] + [_values(track, 0.0, 1.0, end)[0]])
    primal = crossings is None
    done = _totals(track, runs[0]) if primal else np.zeros((2, 1, 1))
    gain = hold.tolerance * 0.9
    size = track.shape[1]
    if end >= 0:
        starts = np.array([0]), np.array([end]), np.zeros(1), np.zeros(1)
    else:
        starts = _starts(cells, track, crossings, size)
    best = np.array([hold.energy_mj, -1.0, np.inf])
    parent, item, state = lag_labels(
        track.ts, track.es, track.latency, track.dwell, track.can, multipliers, value, done, end,
        budget_ns, gain, cap, _MOST_LABELS, *starts, primal, best,
    )  # fmt: skip
    if best[1] >= 0:
        walk = _read(track, parent, item, state, int(best[1]), runs[0])
        _offer(cells, track, walk, hold, "labels")
    bound = min(float(best[2]), float(best[0]) * (1 - gain))
    return bound * (1 - (len(cells.time) + 8) * 2.0**-50)


def _starts(
    cells: _Cells, track: _Track, crossings: Array | None, size: int
) -> tuple[Ints, Ints, Array, Array]:
    item, state = np.zeros(size, dtype=np.int64), np.arange(size)
    t, e = np.zeros(size), cells.before_mj.copy()
    if crossings is not None:
        k, f = np.nonzero(crossings)
        item = np.concatenate([item, np.repeat(k, size)])
        state = np.concatenate([state, np.tile(np.arange(size), len(k))])
        t = np.concatenate([t, np.repeat(track.ts[k, f], size)])
        e = np.concatenate([e, np.repeat(track.es[k, f], size)])
    return item, state, t, e


def _totals(track: _Track, run: tuple[Array, NDArray[np.int32], NDArray[np.int32]]) -> Array:
    """(2, n + 1, G) ns and mJ of the walk onward from every node."""
    value, state, item = run
    n = track.shape[0] - 1
    done = np.zeros((2, *track.shape))
    columns = np.arange(track.shape[1])
    done[:, n, :] = np.where(value[n] > 0, 1e30, 0.0)
    for k in range(n - 1, -1, -1):
        g, q = state[k], np.minimum(item[k], n)
        p = np.full(len(g), k)
        for f in np.flatnonzero(g != columns):
            p[f] = k + int(
                np.searchsorted(
                    track.ts[k:, f] - track.ts[k, f], track.latency[f, g[f]], side="left"
                )
            )
        for i, table in enumerate((track.ts, track.es)):
            own = table[p, columns] - table[k, columns] + table[q, g] - table[p, g]
            done[i, k] = own + np.where(item[k] <= n, done[i, q, g], 0.0)
    return done


def _read(
    track: _Track,
    parent: Ints,
    item: Ints,
    state: Ints,
    label: int,
    run: tuple[Array, NDArray[np.int32], NDArray[np.int32]],
) -> _Walk:
    chain = []
    last = label
    while last >= 0:
        chain.append((int(item[last]), int(state[last])))
        last = int(parent[last])
    chain.reverse()
    asked = [(k, g) for (k, f), (_, g) in pairwise(chain) if f != g]
    t, e, items, states = lag_walk(track.ts, track.es, track.latency, *chain[-1], run[1], run[2])
    items = np.concatenate([np.array([k for k, _ in asked], dtype=np.int64), items])
    states = np.concatenate([np.array([g for _, g in asked], dtype=np.int64), states])
    return _Walk(t, e, chain[0][1], items, states)


def _infeasible(cells: _Cells, hold: Incumbent, least_ns: float) -> InfeasibleError:
    base = cells.problem.baseline_time_ns
    least = least_ns / base - 1
    return InfeasibleError(
        f"no schedule meets a slowdown of {hold.budget_time_ns / base - 1:.4%}: the fastest takes "
        f"{least:+.4%} against the baseline; allow at least {np.ceil(least * 1e6) / 1e4:.4f}%",
        least,
    )


def _solve_open(cells: _Cells, hold: Incumbent, budget_ns: float, deadline: Deadline) -> None:
    track = cells.track(0)
    bound, multiplier, under, over = _dual(cells, track, -1, None, budget_ns, deadline)
    if under is None:
        least_ns = _cheapest(cells, track, 0.0, 1.0, -1, None)[0]
        raise _infeasible(cells, hold, least_ns + cells.before_ns)
    _offer(cells, track, under, hold, "dual")
    hold.prove(bound, "dual", multiplier)
    for cap in _CAPS if over is not None else ():
        if hold.closed or deadline.passed:
            return
        hold.prove(_search(cells, track, -1, None, budget_ns, multiplier, hold, cap), "labels")


def _solve_cyclic(cells: _Cells, hold: Incumbent, budget_ns: float, deadline: Deadline) -> None:
    track = cells.track(0)
    crossings = _crossings(track)
    bound, multiplier, walk, over = _dual(cells, track, -1, crossings, budget_ns, deadline)
    if np.isfinite(bound):
        hold.prove(min(bound, hold.energy_mj), "dual", multiplier)
    if walk is not None and not hold.closed:
        for base in filter(None, (walk, over)):
            turn, state = _middle(cells, track, base)
            _through(cells, hold, budget_ns, turn, state, deadline)
    if hold.choice is not None and not hold.closed and multiplier > 0 and not deadline.passed:
        found = _search(cells, track, -1, crossings, budget_ns, multiplier, hold, _CAPS[0])
        hold.prove(min(found, hold.energy_mj), "labels")
    if not hold.closed:
        _through_all(cells, hold, budget_ns, deadline)


def _middle(cells: _Cells, track: _Track, walk: _Walk) -> tuple[int, int]:
    """The item in the middle of a walk's longest segment, and the segment's state."""
    if len(walk.item) == 0:
        return 0, walk.first
    edges = np.append(walk.item, track.shape[0] - 1 + walk.item[0])
    longest = int(np.argmax(np.diff(edges)))
    middle = int(edges[longest] + edges[longest + 1] + 1) // 2
    return (middle + track.turn) % len(cells.time), int(walk.state[longest])


def _through(
    cells: _Cells, hold: Incumbent, budget_ns: float, turn: int, state: int, deadline: Deadline
) -> float:
    """A bound on closed walks through one node; the best of them goes to ``hold``."""
    track = cells.track(turn)
    bound, multiplier, under, over = _dual(cells, track, state, None, budget_ns, deadline)
    if under is not None:
        _offer(cells, track, under, hold, "closed")
    gain = hold.tolerance * 0.9
    if over is None or hold.choice is None:
        return bound
    for cap in _CAPS:
        if deadline.passed or multiplier <= 0 or bound >= hold.energy_mj * (1 - gain):
            break
        found = _search(cells, track, state, None, budget_ns, multiplier, hold, cap)
        bound = max(bound, min(found, hold.energy_mj))
    return bound


def _through_all(cells: _Cells, hold: Incumbent, budget_ns: float, deadline: Deadline) -> None:
    """Closed walks through every node of a stretch that each walk with a switch must touch.

    Raises:
        InfeasibleError: all were looked at and none is within the budget.
    """
    n, size = cells.time.shape
    # No latency and dwell lasts longer than this from one node to the next.
    fastest = cells.time.min(axis=1)
    doubled = np.concatenate([[0.0], np.cumsum(np.concatenate([fastest, fastest]))])
    span = max(float(cells.latency.max()), cells.dwell)
    reach = int(np.max(np.searchsorted(doubled, doubled[:n] + span) - np.arange(n))) + 2
    bound = hold.energy_mj
    least = float(cells.time.sum(axis=0).min())
    for turn in range(min(n, reach + 1)):
        for state in range(size):
            if deadline.passed and hold.choice is not None:
                return
            found = _through(cells, hold, budget_ns, turn, state, deadline)
            bound = min(bound, found)
            if hold.choice is None:
                track = cells.track(turn)
                least = min(least, _cheapest(cells, track, 0.0, 1.0, state, None)[0])
    if hold.choice is None:
        raise _infeasible(cells, hold, least)
    hold.prove(min(bound, hold.energy_mj), "closed")
