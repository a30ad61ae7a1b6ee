"""Lag: requests take effect a latency later, nothing stops, and two are at least a dwell apart.

A schedule is a chain of requests. From a node (item a, pair f in effect, free to request) one may
run item a and stay, or request pair g: kernels run on at f until the latency is over, then at g,
and the next node is the first item by which the dwell is over too. The Lagrangian relaxation of the
budget makes this a shortest path over K x F nodes with F edges each, swept once in numba.

A step that repeats is cut at item 0. The bound forgives everything at the cut: any pair, and one
request already under way. The schedules found start and end free to request at one pair, so that
every repetition is the same. Left out: schedules with a request in flight across the cut, which the
bound covers and the search does not visit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError
from .certificate import LAG_SLACK_NS, play_requests
from .compiled import compiled
from .deadline import Deadline
from .incumbent import Incumbent
from .problem import Problem
from .solution import Solution
from .switch_model import Lag

__all__ = ["solve_lag"]

Array = NDArray[np.float64]
Requests = tuple[NDArray[np.int32], NDArray[np.int32]]

_BIG = 1e300
_MOST_STEPS = 24  # of one multiplier search
_MOST_PAIRS = 24  # that the search for schedules keeps


@compiled()
def _first_at(line: Array, low: int, target: float) -> int:
    """First index from ``low`` with line[index] >= target; one past the end if there is none."""
    high = line.size
    while low < high:
        middle = (low + high) // 2
        if line[middle] >= target:
            high = middle
        else:
            low = middle + 1
    return low


@compiled()
def _sweep(
    time: Array,
    cost: Array,
    latency: Array,
    dwell: float,
    slack: float,
    can: NDArray[np.bool_],
    value: Array,
    from_item: NDArray[np.int32],
    from_pair: NDArray[np.int32],
) -> float:
    """Fill ``value`` (K + 1, F) from its given starts; the least end that leaves work under way.

    ``time`` and ``cost`` are (F, K + 1) running sums along the step at each pair.
    """
    n_pairs, width = time.shape
    last = width - 1
    open_end = _BIG
    for a in range(last):
        for f in range(n_pairs):
            here = value[a, f]
            if here >= _BIG:
                continue
            stay = here + cost[f, a + 1] - cost[f, a]
            if stay < value[a + 1, f]:
                value[a + 1, f] = stay
                from_item[a + 1, f] = a
                from_pair[a + 1, f] = f
            if not can[a]:
                continue
            b, known = 0, -1.0
            for g in range(n_pairs):
                if g == f:
                    continue
                if latency[f, g] != known:
                    known = latency[f, g]
                    b = _first_at(time[f], a, time[f, a] + known - slack)
                if b > last:
                    continue
                until = here + cost[f, b] - cost[f, a]
                rest = dwell - (time[f, b] - time[f, a])
                then = b
                if rest > slack:
                    then = _first_at(time[g], b, time[g, b] + rest - slack)
                if then == a:
                    then = a + 1
                if then > last:
                    end = until + cost[g, last] - cost[g, b]
                    open_end = min(open_end, end)
                    continue
                reach = until + cost[g, then] - cost[g, b]
                if reach < value[then, g]:
                    value[then, g] = reach
                    from_item[then, g] = a
                    from_pair[then, g] = f
    return open_end


@dataclass(frozen=True)
class _Path:
    """One chain: its requests and nodes, each node with the time and energy up to it."""

    requests: tuple[tuple[int, int], ...]  # (item, pair asked for)
    nodes: dict[tuple[int, int], tuple[float, float, int]]  # (item, pair) -> ns, mJ, requests
    time_ns: float
    energy_mj: float
    first: int


class _Net:
    """The nodes of one problem over some of its pairs."""

    def __init__(self, problem: Problem, pairs: NDArray[np.int64]) -> None:
        switch = problem.switch
        assert isinstance(switch, Lag)
        self.pairs = pairs
        self.n_items = problem.n_items
        time, energy = _cells(problem, pairs)
        self.time, self.energy = _running(time), _running(energy)
        latency = np.asarray(switch.latency_ns, dtype=np.float64)
        if latency.ndim == 0:
            latency = np.full((problem.n_pairs, problem.n_pairs), float(latency))
        self.latency = np.ascontiguousarray(latency[np.ix_(pairs, pairs)])
        self.dwell = float(switch.min_dwell_ns)
        self.can = (
            np.ones(self.n_items, dtype=np.bool_) if problem.boundary is None else problem.boundary
        )

    def sweep(self, energy: float, time: float, starts: Array) -> tuple[Any, ...]:
        """Sweep with cells of ``energy`` x mJ + ``time`` x ns from values ``starts`` (K+1, F)."""
        cost = energy * self.energy + time * self.time
        value = starts.copy()
        from_item = np.full(value.shape, -1, dtype=np.int32)
        from_pair = np.full(value.shape, -1, dtype=np.int32)
        open_end = _sweep(
            self.time, cost, self.latency, self.dwell, LAG_SLACK_NS, self.can, value, from_item,
            from_pair,
        )  # fmt: skip
        return cost, value, from_item, from_pair, open_end

    def path(self, swept: tuple[Any, ...], end: int) -> _Path:
        """Walk back from (K, ``end``)."""
        _, _, from_item, from_pair, _ = swept
        steps = []
        a, f = self.n_items, end
        while from_item[a, f] >= 0:
            before = int(from_item[a, f]), int(from_pair[a, f])
            steps.append((before, (a, f)))
            a, f = before
        # Where a walk starts after item 0, the items before it ran at whatever was cheapest there.
        free = int(swept[0][:, a].argmin())
        time_ns, energy_mj = float(self.time[free, a]), float(self.energy[free, a])
        nodes = {(a, f): (time_ns, energy_mj, 0)}
        requests: list[tuple[int, int]] = []
        for (a, f), (then, g) in reversed(steps):
            b = then if f == g else self._arrival(a, f, g)
            for pair, low, high in ((f, a, b), (g, b, then)):
                time_ns += self.time[pair, high] - self.time[pair, low]
                energy_mj += self.energy[pair, high] - self.energy[pair, low]
            if f != g:
                requests.append((a, g))
            nodes[then, g] = time_ns, energy_mj, len(requests)
        first = next(iter(nodes))[1]
        return _Path(tuple(requests), nodes, time_ns, energy_mj, first)

    def _arrival(self, a: int, f: int, g: int) -> int:
        target = self.time[f, a] + self.latency[f, g] - LAG_SLACK_NS
        return int(_first_at(self.time[f], a, target))


def _running(cells: Array) -> Array:
    out = np.zeros((cells.shape[1], cells.shape[0] + 1))
    np.cumsum(cells.T, axis=1, out=out[:, 1:])
    return out


def _cells(problem: Problem, pairs: NDArray[np.int64]) -> tuple[Array, Array]:
    """(K, F) ns and mJ of each item at ``pairs``, with the gap that follows it."""
    time = problem.time_ns[np.ix_(problem.row, pairs)]
    energy = problem.energy_mj[np.ix_(problem.row, pairs)]
    if problem.time_scale is not None:
        time = time * problem.time_scale[:, None]
    if problem.energy_scale is not None:
        energy = energy * problem.energy_scale[:, None]
    if problem.gap_ns is None or problem.idle_power_w is None:
        return time, energy
    after = np.roll(problem.gap_ns, -1)
    before = 0.0
    if not problem.cyclic:
        before, after[-1] = float(problem.gap_ns[0]), 0.0
    idle = problem.idle_power_w[pairs] * 1e-6
    time, energy = time + after[:, None], energy + after[:, None] * idle
    # The gap before a step that does not repeat is spent at its first item's pair.
    energy[0] += before * idle
    return time, energy


def solve_lag(problem: Problem, hold: Incumbent, deadline: Deadline, method: str) -> Solution:
    """Solve under `Lag`; ``method`` other than auto has no integer program here and is refused.

    Raises:
        InfeasibleError: no schedule meets the budget.
    """
    assert problem.allowed is not None
    search = _Search(problem, hold, deadline)
    search.bound()
    search.schedules()
    return hold.solution(deadline, search.requests)


class _Search:
    """The bound by a relaxed sweep, then schedules over the pairs it used."""

    def __init__(self, problem: Problem, hold: Incumbent, deadline: Deadline) -> None:
        self.problem, self.hold, self.deadline = problem, hold, deadline
        assert problem.allowed is not None
        self.whole = _Net(problem, np.flatnonzero(problem.allowed))
        before = 0.0
        if problem.gap_ns is not None and not problem.cyclic:
            before = float(problem.gap_ns[0])
        self.budget_ns = hold.budget_time_ns - before
        self.requests: Requests | None = None
        self.used: set[int] = set()

    def bound(self) -> None:
        """Maximise the Lagrangian bound of the relaxed problem."""
        net = self.whole
        starts = self._relaxed_starts
        scale = float(net.energy[:, -1].max() / net.time[:, -1].min())
        low, high, at_low, at_high = 0.0, np.inf, None, None
        multiplier = 0.0
        for _ in range(_MOST_STEPS):
            swept = net.sweep(1.0, multiplier, starts(1.0, multiplier))
            value = swept[1][-1]
            end = int(value.argmin())
            path = net.path(swept, end)
            self.used |= {f for _, f in path.nodes}
            least = min(float(value[end]), swept[4])
            bound = least - multiplier * self.budget_ns * (1 + 1e-12)
            self.hold.prove(bound * (1 - 1e-12), "relaxed dual", multiplier)
            if path.time_ns > self.budget_ns:
                low, at_low = multiplier, path
            else:
                high, at_high = multiplier, path
                if multiplier == 0.0:
                    return
            if self.deadline.left_s < 0.5 * self.deadline.elapsed_s:
                return
            if at_high is None:
                multiplier = max(2.0 * low, scale)
                if multiplier > scale * 2.0**40:
                    return
                continue
            assert at_low is not None
            span_ns = at_low.time_ns - at_high.time_ns
            if span_ns <= 0:
                return
            multiplier = (at_high.energy_mj - at_low.energy_mj) / span_ns
            if not low * (1 + 1e-9) < multiplier < high * (1 - 1e-9):
                return

    def _relaxed_starts(self, energy: float, time: float) -> Array:
        """Any pair at the cut, and any change that a request made before it may still bring."""
        net = self.whole
        value = np.full((net.n_items + 1, len(net.pairs)), _BIG)
        value[0] = 0.0
        if self.problem.cyclic:
            cost = energy * net.energy + time * net.time
            value[:, :] = cost.min(axis=0)[:, None]
        return value

    def schedules(self) -> None:
        """Search schedules that start and end at one pair, over the pairs the bound used.

        Raises:
            InfeasibleError: none meets the budget.
        """
        net = self.whole
        singles = np.argsort(net.energy[:, -1] + (net.time[:, -1] > self.budget_ns) * _BIG)
        wanted = [*self.used, *singles[:3].tolist(), int(net.time[:, -1].argmin())]
        some = np.array(list(dict.fromkeys(wanted))[:_MOST_PAIRS], dtype=np.int64)
        small = _Net(self.problem, net.pairs[some])
        for f in range(len(some)):
            self._offer(small, _Path((), {}, 0.0, 0.0, f))
        firsts: list[int | None] = list(range(len(some))) if self.problem.cyclic else [None]
        for first in firsts:
            if self.deadline.passed or self.hold.closed:
                break
            self._from(small, first)
        if self.hold.choice is None:
            self._fastest(small)

    def _from(self, net: _Net, first: int | None) -> None:
        starts = np.full((net.n_items + 1, len(net.pairs)), _BIG)
        starts[0, slice(None) if first is None else first] = 0.0
        scale = float(net.energy[:, -1].max() / net.time[:, -1].min())
        low, high, multiplier = 0.0, np.inf, self.hold.multiplier or 0.0
        over: _Path | None = None
        under: _Path | None = None
        for _ in range(_MOST_STEPS):
            swept = net.sweep(1.0, multiplier, starts)
            end = int(swept[1][-1].argmin()) if first is None else first
            path = net.path(swept, end)
            if path.time_ns > self.budget_ns:
                low, over = multiplier, path
            else:
                high, under = multiplier, path
                self._offer(net, path)
            if self.deadline.passed or (under is path and multiplier == 0.0):
                return
            if under is None:
                multiplier = max(2.0 * low, scale * 1e-3)
                if multiplier > scale * 2.0**40:
                    return
            elif over is None:
                multiplier = 0.0
            else:
                span_ns = over.time_ns - under.time_ns
                multiplier = (under.energy_mj - over.energy_mj) / span_ns
                if not low * (1 + 1e-9) < multiplier < high * (1 - 1e-9):
                    break
        if under is not None and over is not None:
            self._splice(net, under, over)

    def _splice(self, net: _Net, under: _Path, over: _Path) -> None:
        """Go along one path and on along the other from a node they share; keep what fits."""
        best: tuple[float, _Path] | None = None
        for head, tail in ((under, over), (over, under)):
            for node, (time_ns, energy_mj, count) in head.nodes.items():
                other = tail.nodes.get(node)
                if other is None:
                    continue
                total_ns = time_ns + tail.time_ns - other[0]
                total_mj = energy_mj + tail.energy_mj - other[1]
                if total_ns <= self.budget_ns and (best is None or total_mj < best[0]):
                    requests = head.requests[:count] + tail.requests[other[2] :]
                    best = total_mj, _Path(requests, {}, total_ns, total_mj, head.first)
        if best is not None:
            self._offer(net, best[1], "splice")

    def _offer(self, net: _Net, path: _Path, method: str = "lag chains") -> None:
        item = np.array([a for a, _ in path.requests], dtype=np.int32)
        pair = net.pairs[[g for _, g in path.requests]].astype(np.int32)
        choice = play_requests(self.problem, int(net.pairs[path.first]), item, pair)
        if self.hold.offer(choice, method if len(item) else "single pair"):
            self.requests = item, pair

    def _fastest(self, net: _Net) -> None:
        """Whether any schedule meets the budget: the one of least time says.

        Raises:
            InfeasibleError: none does.
        """
        whole = self.whole
        starts = np.full((whole.n_items + 1, len(whole.pairs)), _BIG)
        least_ns = np.inf
        for first in range(len(whole.pairs)) if self.problem.cyclic else [None]:
            starts[:] = _BIG
            starts[0, slice(None) if first is None else first] = 0.0
            swept = whole.sweep(0.0, 1.0, starts)
            end = int(swept[1][-1].argmin()) if first is None else first
            path = whole.path(swept, end)
            least_ns = min(least_ns, path.time_ns)
            self._offer(whole, path, "least time")
        if self.hold.choice is None:
            base = self.problem.baseline_time_ns
            least = (least_ns + self.hold.budget_time_ns - self.budget_ns) / base - 1
            raise InfeasibleError(
                f"no schedule meets a slowdown of {self.hold.budget_time_ns / base - 1:.4%}: the "
                f"fastest one found is {least:+.4%} against the baseline; allow at least "
                f"{np.ceil(least * 1e6) / 1e4:.4f}%",
                least,
            )
