"""Compiled steps for switches that lag: the dynamic program over all nodes, and the arcs it leaves.

A node (k, f) is item k about to start, pair f in effect, and a new request allowed. From it the
item either runs at f, to (k + 1, f), or a request for g is issued at k: items k .. p-1 still run at
f until the latency is over, items p .. q-1 run at g until the dwell is over, and (q, g) is next.
Tables are prefix sums over the items, (n + 1, G): ``ts`` ns, ``es`` mJ. ``wait`` (G, C) holds the
different latencies from each state, padded with infinity, ``kind`` (G, G) which one a change has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, inner
from .switch_cost import BIG

__all__ = ["lag_arcs", "lag_values", "lag_walk"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
States = NDArray[np.int32]


@inner()
def _at(table: Array, k: int, f: int) -> float:
    """A prefix sum, on into the next lap."""
    n = table.shape[0] - 1
    return float(table[k, f] if k <= n else table[n, f] + table[k - n, f])


@inner()
def _arrival(ts: Array, k: int, f: int, latency: float, guess: int, last: int) -> int:
    """The first item that starts ``latency`` after item k at pair f, or last + 1."""
    p = max(guess, k)
    while p > k and _at(ts, p - 1, f) - ts[k, f] >= latency:
        p -= 1
    while p <= last and not (p == k and latency <= 0.0) and _at(ts, p, f) - ts[k, f] < latency:
        p += 1
    return p


@inner()
def _release(ts: Array, k: int, f: int, p: int, g: int, dwell: float, guess: int, last: int) -> int:
    """The first item at which a request may follow that of item k, or last + 1."""
    gone = _at(ts, p, f) - ts[k, f] - _at(ts, p, g)
    low = max(p, k + 1)
    q = min(max(guess, low), last + 1)
    while q > low and gone + _at(ts, q - 1, g) >= dwell:
        q -= 1
    while q <= last and gone + _at(ts, q, g) < dwell:
        q += 1
    return q


@compiled()
def lag_values(
    ts: Array,
    es: Array,
    wait: Array,
    kind: States,
    dwell: float,
    can: NDArray[np.bool_],
    a: float,
    b: float,
    low: int,
    high: int,
    arrive: Ints,
    release: Ints,
    value: Array,
    next_state: States,
    next_item: States,
) -> None:
    """The cheapest walk from nodes ``low`` .. ``high`` - 1 to the end at a mJ + b ns.

    ``value`` is known from ``high`` on, and 0 at n. ``arrive`` (G, C) and ``release`` (G, G) carry
    guesses from one call to the next. ``next_state`` is the state asked for, or the node's own if
    none; ``next_item`` the next node's item, n + 1 if the step ends within the dwell.
    """
    n, size, kinds = ts.shape[0] - 1, ts.shape[1], wait.shape[1]
    lead, place = np.empty(kinds), np.empty(kinds, dtype=np.int64)
    for k in range(high - 1, low - 1, -1):
        for f in range(size):
            base = a * es[k, f] + b * ts[k, f]
            best = a * es[k + 1, f] + b * ts[k + 1, f] - base + value[k + 1, f]
            who, where = f, k + 1
            if can[k]:
                for c in range(kinds):
                    p = _arrival(ts, k, f, wait[f, c], arrive[f, c], n)
                    arrive[f, c], place[c] = p, min(p, n)
                    lead[c] = BIG if p >= n else a * es[p, f] + b * ts[p, f] - base
                for g in range(size):
                    p = place[kind[f, g]]
                    until = lead[kind[f, g]]
                    # Free to leave g at once, a walk would cost no more than this.
                    if g == f or until + value[p, g] >= best:
                        continue
                    q = _release(ts, k, f, p, g, dwell, release[f, g], n)
                    release[f, g] = q
                    stop = min(q, n)
                    cost = until + a * (es[stop, g] - es[p, g]) + b * (ts[stop, g] - ts[p, g])
                    cost += value[stop, g]
                    if cost < best:
                        best, who, where = cost, g, q
            value[k, f], next_state[k, f], next_item[k, f] = best, who, where


@compiled()
def lag_walk(
    ts: Array,
    es: Array,
    wait: Array,
    kind: States,
    k: int,
    f: int,
    next_state: States,
    next_item: States,
) -> tuple[float, float, Ints, Ints]:
    """Follow first steps from node (k, f): ns, mJ, and the requests (items and states)."""
    n = ts.shape[0] - 1
    items, states = np.empty(n + 1, dtype=np.int64), np.empty(n + 1, dtype=np.int64)
    t, e, m = 0.0, 0.0, 0
    while k < n:
        g, q = next_state[k, f], next_item[k, f]
        p = k if g == f else _arrival(ts, k, f, wait[f, kind[f, g]], k, n)
        stop = min(q, n)
        t += ts[p, f] - ts[k, f] + ts[stop, g] - ts[p, g]
        e += es[p, f] - es[k, f] + es[stop, g] - es[p, g]
        if g != f:
            items[m], states[m] = k, g
            m += 1
        k, f = q, g
    return t, e, items[:m], states[:m]


@inner()
def _put(
    made: int, who: States, much: Array, k: int, f: int, q: int, g: int, t: float, e: float
) -> int:
    """Write an arc, if there is room; the number of arcs asked for so far."""
    if made < who.shape[0]:
        who[made, 0], who[made, 1], who[made, 2], who[made, 3] = k, f, q, g
        much[made, 0], much[made, 1] = t, e
    return made + 1


@compiled()
def lag_arcs(
    ts: Array,
    es: Array,
    wait: Array,
    kind: States,
    dwell: float,
    can: NDArray[np.bool_],
    a: float,
    b: float,
    low: int,
    high: int,
    value: Array,
    forward: Array,
    limit: float,
    cyclic: bool,
    made: int,
    who: States,
    much: Array,
) -> int:
    """Arcs out of items ``low`` .. ``high`` - 1 that lie on walks of cost up to ``limit``.

    ``forward`` (n + 1, G) holds the least cost to each node, its starts on entry. Arcs are (item,
    state, next item, next state), the next item in the next lap if it is n or more, and (ns, mJ).
    Where the step does not repeat an arc ends at item n at the latest. Returns ``made`` and the new
    ones, also those that there was no room for.
    """
    n, size, kinds = ts.shape[0] - 1, ts.shape[1], wait.shape[1]
    last = 2 * n - 1 if cyclic else n
    lead, place = np.empty(kinds), np.empty(kinds, dtype=np.int64)
    for k in range(low, high):
        for f in range(size):
            here = forward[k, f]
            if here + value[k, f] > limit:
                continue
            t, e = ts[k + 1, f] - ts[k, f], es[k + 1, f] - es[k, f]
            open_next = not cyclic or k + 1 < n or forward[0, f] + value[0, f] <= limit
            if here + a * e + b * t + value[k + 1, f] <= limit and open_next:
                made = _put(made, who, much, k, f, k + 1, f, t, e)
                forward[k + 1, f] = min(forward[k + 1, f], here + a * e + b * t)
            if not can[k]:
                continue
            for c in range(kinds):
                p = k
                if wait[f, c] < BIG:
                    p = _arrival(ts, k, f, wait[f, c], k if c == 0 else place[c - 1], last)
                place[c] = p
                end = min(p, n)
                lead[c] = here + a * (es[end, f] - es[k, f]) + b * (ts[end, f] - ts[k, f])
            for g in range(size):
                p = place[kind[f, g]]
                until = lead[kind[f, g]]
                if g == f or p > last or (p >= n and not cyclic):
                    continue
                if until + (value[p, g] if p < n else 0.0) > limit:
                    continue
                q = _release(ts, k, f, p, g, dwell, p, last)
                # One lap holds two requests at least, and the next one's nodes are this one's.
                barred = q - k >= n or (q >= n and forward[q - n, g] + value[q - n, g] > limit)
                if cyclic and barred:
                    continue
                stop = q if cyclic else min(q, n)
                t = _at(ts, p, f) - ts[k, f] + _at(ts, stop, g) - _at(ts, p, g)
                e = _at(es, p, f) - es[k, f] + _at(es, stop, g) - _at(es, p, g)
                if stop <= n:
                    cost = here + a * e + b * t
                    if cost + value[stop, g] > limit:
                        continue
                    forward[stop, g] = min(forward[stop, g], cost)
                elif p < n:
                    within = a * (es[n, g] - es[p, g]) + b * (ts[n, g] - ts[p, g])
                    if until + within > limit:
                        continue
                made = _put(made, who, much, k, f, stop, g, t, e)
    return made
