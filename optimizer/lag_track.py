"""A step under lag as running sums, and walks over all its nodes (see `lag_steps`).

A step that does not repeat is a walk from item 0 to the end. One that repeats is a closed walk; cut
at item 0, it either stands at a node there or a request's latency or dwell crosses the cut. Walks
here forgive what crosses: the pair in effect may change once, freely, within the first latency, and
the last dwell is cut short. They cost no more than the closed walk does, so they bound it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InputError
from .certificate import LAG_SLACK_NS
from .deadline import Deadline
from .lag_steps import lag_arcs, lag_values, lag_walk
from .problem import Problem
from .switch_cost import BIG
from .switch_model import Lag

__all__ = ["Arcs", "OutOfTimeError", "Track", "Walk", "build_track"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_CELLS = 20_000_000
_MOST_ARCS = 4_000_000
_CHUNK = 10_000_000  # transitions looked at between two looks at the clock


class OutOfTimeError(Exception):
    """The deadline struck in the middle of a pass."""


@dataclass(frozen=True, eq=False)
class Walk:
    """A walk: ns, mJ, the state at item 0, and its requests as (items, states)."""

    time_ns: float
    energy_mj: float
    first: int
    item: Ints
    state: Ints


@dataclass(frozen=True, eq=False)
class Arcs:
    """Arcs as (item, state, next item, next state) rows with their ns and mJ."""

    who: NDArray[np.int32]
    much: Array


@dataclass(frozen=True, eq=False)
class Track:
    """Running sums (n + 1, G) of items with the gap that follows each; one state a choosable pair.

    Attributes:
        pair: (G,) the problem's pair of each state.
        ts, es: ns and mJ before each item.
        can: (n,) where a request may be issued.
        latency: (G, G) ns, less the certificate's slack.
        dwell: ns, likewise.
        before_ns, before_mj: the gap before a step that does not repeat, (G,) mJ.
    """

    problem: Problem
    pair: NDArray[np.int32]
    ts: Array
    es: Array
    can: NDArray[np.bool_]
    latency: Array
    dwell: float
    before_ns: float
    before_mj: Array

    @property
    def n(self) -> int:
        """Items."""
        return len(self.ts) - 1

    @property
    def slack(self) -> float:
        """What running sums may be off, relative."""
        return (self.n + 8) * 2.0**-50

    @cached_property
    def waits(self) -> tuple[Array, NDArray[np.int32]]:
        """The different latencies from each state, ascending, and which one each change has."""
        rows = [np.unique(row) for row in self.latency]
        wait = np.full((len(rows), max(len(row) for row in rows)), np.inf)
        kind = np.empty(self.latency.shape, dtype=np.int32)
        for f, row in enumerate(rows):
            wait[f, : len(row)] = row
            kind[f] = np.searchsorted(row, self.latency[f])
        return wait, kind

    @cached_property
    def crossing(self) -> NDArray[np.bool_]:
        """(n + 1, G) where a pair in effect at item 0 may give way to a request made before."""
        inside = np.zeros(self.ts.shape, dtype=np.bool_)
        if self.problem.cyclic:
            longest = self.latency.max(axis=1)
            inside[1:] = (self.ts[:-1] < longest[None, :]) & (longest > 0)[None, :]
        return inside

    def _chunks(self) -> list[tuple[int, int]]:
        size = self.ts.shape[1]
        step = max(1, _CHUNK // (size * size))
        return [(low, min(low + step, self.n)) for low in range(0, self.n, step)]

    def _entry(self, a: float, b: float) -> tuple[Array, Ints]:
        """(n + 1,) least cost up to an item whose pair a request made before brings, its state."""
        cost = np.where(self.crossing, a * self.es + b * self.ts, np.inf)
        state = cost.argmin(axis=1)
        return cost[np.arange(len(cost)), state], state

    def _values(
        self, a: float, b: float, deadline: Deadline
    ) -> tuple[Array, NDArray[np.int32], NDArray[np.int32]]:
        size = self.ts.shape[1]
        value = np.zeros(self.ts.shape)
        state, item = np.zeros((2, *self.ts.shape), dtype=np.int32)
        wait, kind = self.waits
        arrive = np.full(wait.shape, self.n, dtype=np.int64)
        release = np.full((size, size), self.n, dtype=np.int64)
        for low, high in reversed(self._chunks()):
            if deadline.passed:
                raise OutOfTimeError
            lag_values(
                self.ts, self.es, wait, kind, self.dwell, self.can, a, b, low, high, arrive,
                release, value, state, item,
            )  # fmt: skip
        return value, state, item

    def cheapest(self, a: float, b: float, deadline: Deadline) -> tuple[float, Walk]:
        """The cheapest walk at a mJ + b ns, and its cost.

        Raises:
            OutOfTimeError: the deadline struck.
        """
        value, state, item = self._values(a, b, deadline)
        start = value[0] + a * self.before_mj
        k, f = 0, int(np.argmin(start))
        cost, t, e = float(start[f]), 0.0, float(self.before_mj[f])
        if self.crossing.any():
            entry, old = self._entry(a, b)
            through = entry + value.min(axis=1)
            at = int(np.argmin(through))
            if through[at] < cost:
                cost, k, f = float(through[at]), at, int(np.argmin(value[at]))
                t, e = float(self.ts[k, old[k]]), float(self.es[k, old[k]])
        wait, kind = self.waits
        more_t, more_e, items, states = lag_walk(self.ts, self.es, wait, kind, k, f, state, item)
        return cost, Walk(t + more_t, e + more_e, f, items, states)

    def arcs(self, a: float, b: float, limit: float, deadline: Deadline) -> Arcs | None:
        """All arcs that a walk of cost up to ``limit`` may use; None if they are too many.

        Raises:
            OutOfTimeError: the deadline struck.
        """
        value = self._values(a, b, deadline)[0]
        forward = np.full(self.ts.shape, BIG)
        forward[0] = a * self.before_mj
        if self.crossing.any():
            forward[1:] = np.minimum(self._entry(a, b)[0], BIG)[1:, None]
        wait, kind = self.waits
        room, made = 1 << 16, 0
        who, much = np.empty((room, 4), dtype=np.int32), np.empty((room, 2))
        limit *= 1 + self.slack
        for low, high in self._chunks():
            if deadline.passed:
                raise OutOfTimeError
            while True:
                before = made
                made = lag_arcs(
                    self.ts, self.es, wait, kind, self.dwell, self.can, a, b, low, high, value,
                    forward, limit, self.problem.cyclic, made, who, much,
                )  # fmt: skip
                if made <= len(who):
                    break
                if made > _MOST_ARCS:
                    return None
                room = min(_MOST_ARCS, max(2 * len(who), made))
                who, much = _roomier(who[:before], room), _roomier(much[:before], room)
                made = before
        return Arcs(who[:made], much[:made])


def _roomier(table: NDArray, room: int) -> NDArray:  # type: ignore[type-arg]
    out = np.empty((room, table.shape[1]), dtype=table.dtype)
    out[: len(table)] = table
    return out


def build_track(problem: Problem) -> Track:
    """The running sums of a problem.

    Raises:
        InputError: they would not fit in memory.
    """
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
    can = np.ones(n, dtype=np.bool_) if problem.boundary is None else problem.boundary
    zero = np.zeros((1, len(pair)))
    return Track(
        problem, pair, np.concatenate([zero, np.cumsum(time, axis=0)]),
        np.concatenate([zero, np.cumsum(energy, axis=0)]), can,
        np.ascontiguousarray(latency - LAG_SLACK_NS), switch.min_dwell_ns - LAG_SLACK_NS,
        before_ns, before_mj,
    )  # fmt: skip
