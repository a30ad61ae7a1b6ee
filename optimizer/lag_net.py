"""The arcs under lag that may still be part of a better schedule, and closed walks over them.

A step that does not repeat gets one node more, outside of it, so that its walks are closed too.
Every closed walk either stands at a node of the item at a cut or passes the cut on an arc; the
nodes there and those that arcs over it lead to are ``gates``: each walk goes through one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .lag_net_steps import closed_labels, closed_totals, closed_values
from .lag_track import Arcs, Track, Walk
from .switch_cost import BIG

__all__ = ["Net", "build_net"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_SPREAD = (1.0, 0.7, 0.85, 1.2, 1.5)  # multipliers, relative to the node's own
_MOST_LABELS = 3_000_000


@dataclass(frozen=True, eq=False)
class Net:
    """Nodes by item, then state, and arcs by node.

    Attributes:
        first: (n + 1,) the first node of each item.
        item, state: (N,) of each node.
        ptr: (N + 1,) the first arc of each node.
        head, length, t, e: (M,) node each arc leads to, items passed, ns and mJ.
        asked: (M,) the state requested, or -1.
    """

    first: Ints
    item: Ints
    state: Ints
    ptr: Ints
    head: Ints
    length: Ints
    t: Array
    e: Array
    asked: Ints

    @cached_property
    def _room(self) -> tuple[Array, Array, Ints, Ints]:
        most = _MOST_LABELS
        return np.empty(most), np.empty(most), np.empty(most, np.int64), np.empty(most, np.int64)

    def node(self, item: int, state: int) -> int | None:
        """The number of a node, if it is in the net."""
        own = self.state[self.first[item] : self.first[item + 1]]
        at = int(np.searchsorted(own, state))
        if at == len(own) or own[at] != state:
            return None
        return int(self.first[item]) + at

    def gates(self) -> Ints:
        """The nodes of the thinnest cut found: every closed walk goes through one of them."""
        outside = np.flatnonzero(self.state < 0)
        if len(outside):
            return outside
        n = len(self.first) - 1
        longest = np.zeros(len(self.item), dtype=np.int64)
        np.maximum.at(longest, self.head, self.length)
        # An arc of length m over a cut ends 1 .. m - 1 items past it.
        over = np.zeros(2 * n + 1, dtype=np.int64)
        reach = longest > 1
        np.add.at(over, n + self.item[reach], -1)
        np.add.at(over, n + self.item[reach] - longest[reach] + 1, 1)
        count = np.cumsum(over)[: 2 * n].reshape(2, n).sum(axis=0) + np.diff(self.first)
        cut = int(np.argmin(count))
        past = (self.item - cut) % n
        return np.flatnonzero((past == 0) | (past < longest))

    def values(self, start: int, a: float, b: float) -> tuple[Array, Ints]:
        """(N,) the cheapest ways on to the end of the lap at a mJ + b ns, and their arcs."""
        value, arc = np.empty(len(self.item)), np.empty(len(self.item), dtype=np.int64)
        closed_values(
            self.first, self.ptr, self.head, self.length, self.t, self.e, self.item, start, a, b,
            value, arc,
        )  # fmt: skip
        return value, arc

    def cheapest(self, start: int, a: float, b: float) -> tuple[float, Walk | None]:
        """The cheapest closed walk through a node at a mJ + b ns; None if there is none."""
        value, arc = self.values(start, a, b)
        if value[start] >= BIG / 2:
            return float(BIG), None
        return float(value[start]), self._walk([], start, start, arc)

    def _walk(self, arcs: list[int], at: int, start: int, onward: Ints) -> Walk:
        """The walk along ``arcs``, then onward from node ``at`` unless it is back already."""
        n, arcs = len(self.first) - 1, list(arcs)
        passed = int(self.length[arcs].sum()) if arcs else 0
        while passed < n:
            arcs.append(int(onward[at]))
            passed += int(self.length[arcs[-1]])
            at = int(self.head[arcs[-1]])
        tails = np.searchsorted(self.ptr, arcs, side="right") - 1
        asked = self.asked[arcs]
        own = asked >= 0
        outside = self.state[start] < 0
        first = int(self.state[self.head[arcs[0]]] if outside else self.state[start])
        t, e = float(self.t[arcs].sum()), float(self.e[arcs].sum())
        return Walk(t, e, first, self.item[tails][own], asked[own])

    def search(
        self,
        start: int,
        budget_ns: float,
        multiplier: float,
        beat_mj: float,
        gain: float,
        cap: int,
    ) -> tuple[float, Walk | None]:
        """A labelling search of closed walks through a node: a bound, and a walk that beats.

        Args:
            start: the node.
            budget_ns: of walks.
            multiplier: the node's own, mJ a ns.
            beat_mj: energy of the schedule in hand.
            gain: walks that would gain less than this fraction are not looked for.
            cap: labels kept at one item.
        """
        multipliers = multiplier * np.array(_SPREAD)
        runs = [self.values(start, 1.0, float(m)) for m in multipliers]
        value = np.stack([run[0] for run in runs] + [self.values(start, 0.0, 1.0)[0]])
        arcs = self.ptr, self.head, self.length, self.t, self.e
        onward = runs[0][1]
        done = closed_totals(self.first, *arcs[1:], self.item, start, onward)
        best = np.array([beat_mj, -1.0, np.inf])
        room = self._room
        closed_labels(
            self.first, *arcs, self.item, start, multipliers, value, done, budget_ns, gain, cap,
            *room, best,
        )  # fmt: skip
        walk = None
        if best[1] >= 0:
            chain, label = [], int(best[1])
            while room[3][label] >= 0:
                chain.append(int(room[3][label]))
                label = int(room[2][label])
            chain.reverse()
            at = int(self.head[chain[-1]]) if chain else start
            walk = self._walk(chain, at, start, onward)
        return min(float(best[2]), float(best[0]) * (1 - gain)), walk


def build_net(track: Track, arcs: Arcs) -> Net:
    """Number the nodes that arcs touch."""
    n, size = track.n, track.ts.shape[1]
    tail_item, tail_state, item, state = arcs.who.astype(np.int64).T
    t, e = arcs.much.T
    asked = np.where(tail_state == state, -1, state)
    length = item - tail_item
    if track.problem.cyclic:
        laps = n
    else:
        # One item more: the node outside the step, with state -1, numbered as state 0.
        laps = n + 1
        into = np.unique(tail_state[tail_item == 0])
        state = np.where(item == n, 0, state)
        one = np.ones(len(into), dtype=np.int64)
        tail_item = np.concatenate([tail_item, n * one])
        tail_state = np.concatenate([tail_state, 0 * one])
        item, state = np.concatenate([item, (n + 1) * one]), np.concatenate([state, into])
        asked, length = np.concatenate([asked, -one]), np.concatenate([length, one])
        t, e = np.concatenate([t, 0.0 * one]), np.concatenate([e, track.before_mj[into]])
    tail, head = tail_item * size + tail_state, (item % laps) * size + state
    known = np.unique(np.concatenate([tail, head]))
    node_item, node_state = np.divmod(known, size)
    if not track.problem.cyclic:
        node_state[node_item == n] = -1
    order = np.argsort(tail, kind="stable")
    return Net(
        first=np.searchsorted(node_item, np.arange(laps + 1)),
        item=node_item,
        state=node_state,
        ptr=np.searchsorted(tail[order], np.append(known, np.iinfo(np.int64).max)),
        head=np.searchsorted(known, head[order]),
        length=length[order],
        t=np.ascontiguousarray(t[order]),
        e=np.ascontiguousarray(e[order]),
        asked=asked[order],
    )
