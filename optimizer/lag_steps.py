"""Compiled steps for switches that lag: the dynamic program and the labelling search.

A node (k, f) is item k about to start, pair f in effect, and a new request allowed. From it the
item either runs at f, to (k + 1, f), or a request for g is issued at k: items k .. p-1 still run at
f until the latency is over, items p .. q-1 run at g until the dwell is over, and (q, g) is next.
Tables are prefix sums over the items, (n + 1, G): ``ts`` ns, ``es`` mJ. ``end`` is the state a walk
must end in, or -1 if it may end anywhere, in the middle of a dwell too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, inner
from .switch_cost import BIG

__all__ = ["lag_labels", "lag_values", "lag_walk"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
States = NDArray[np.int32]


@inner()
def _arrival(ts: Array, k: int, f: int, latency: float, guess: int) -> int:
    """The first item that starts ``latency`` after item k at pair f, or n + 1."""
    n = ts.shape[0] - 1
    p = max(guess, k)
    while p > k and ts[p - 1, f] - ts[k, f] >= latency:
        p -= 1
    while p <= n and not (p == k and latency <= 0.0) and ts[p, f] - ts[k, f] < latency:
        p += 1
    return p


@inner()
def _release(ts: Array, k: int, f: int, p: int, g: int, dwell: float, guess: int) -> int:
    """The first item at which a request may follow that of item k, or n + 1."""
    n = ts.shape[0] - 1
    gone = ts[p, f] - ts[k, f] - ts[p, g]
    low = max(p, k + 1)
    q = min(max(guess, low), n + 1)
    while q > low and gone + ts[q - 1, g] >= dwell:
        q -= 1
    while q <= n and gone + ts[q, g] < dwell:
        q += 1
    return q


@compiled()
def lag_values(
    ts: Array,
    es: Array,
    latency: Array,
    dwell: float,
    can: NDArray[np.bool_],
    a: float,
    b: float,
    end: int,
    value: Array,
    next_state: States,
    next_item: States,
) -> None:
    """The cheapest walk from every node to the end at cost a mJ + b ns, and its first step.

    ``next_state`` is the state asked for, or the node's own if none; ``next_item`` the next node's
    item, n + 1 if the step ends within the dwell.
    """
    n, size = ts.shape[0] - 1, ts.shape[1]
    arrive = np.full((size, size), n, dtype=np.int64)
    release = np.full((size, size), n, dtype=np.int64)
    for f in range(size):
        value[n, f] = 0.0 if end < 0 or end == f else BIG
    for k in range(n - 1, -1, -1):
        for f in range(size):
            base = a * es[k, f] + b * ts[k, f]
            best = a * es[k + 1, f] + b * ts[k + 1, f] - base + value[k + 1, f]
            who, where = f, k + 1
            if can[k]:
                for g in range(size):
                    if g == f:
                        continue
                    p = _arrival(ts, k, f, latency[f, g], arrive[f, g])
                    arrive[f, g] = p
                    if p >= n:
                        continue
                    q = _release(ts, k, f, p, g, dwell, release[f, g])
                    release[f, g] = q
                    if q > n and end >= 0:
                        continue
                    stop = min(q, n)
                    cost = (
                        a * (es[p, f] + es[stop, g] - es[p, g])
                        + b * (ts[p, f] + ts[stop, g] - ts[p, g])
                        - base
                    )
                    if q <= n:
                        cost += value[q, g]
                    if cost < best:
                        best, who, where = cost, g, q
            value[k, f], next_state[k, f], next_item[k, f] = best, who, where


@compiled()
def lag_walk(
    ts: Array,
    es: Array,
    latency: Array,
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
        p = k if g == f else _arrival(ts, k, f, latency[f, g], k)
        stop = min(q, n)
        t += ts[p, f] - ts[k, f] + ts[stop, g] - ts[p, g]
        e += es[p, f] - es[k, f] + es[stop, g] - es[p, g]
        if g != f:
            items[m], states[m] = k, g
            m += 1
        k, f = q, g
    return t, e, items[:m], states[:m]


@inner()
def _more(array: Array) -> Array:
    out = np.empty(2 * array.size, dtype=array.dtype)
    for p in range(array.size):
        out[p] = array[p]
    return out


@compiled()
def lag_labels(
    ts: Array,
    es: Array,
    latency: Array,
    dwell: float,
    can: NDArray[np.bool_],
    multipliers: Array,
    value: Array,
    done: Array,
    end: int,
    budget: float,
    gain: float,
    cap: int,
    most: int,
    start_item: Ints,
    start_state: Ints,
    start_t: Array,
    start_e: Array,
    primal: bool,
    best: Array,
) -> tuple[Ints, Ints, Ints]:
    """Search walks from the given labels to the end; see `labels` for what a label is.

    ``value`` is (J, n + 1, G) walks onward at each multiplier, the last one times in ns; ``done``
    is (2, n + 1, G) ns and mJ of the first's walk. ``best`` holds the energy to beat, the label
    that beats it, and the least bound of what a cap dropped. Returns parent, item and state of
    every label made.
    """
    n, size = ts.shape[0] - 1, ts.shape[1]
    j_count = multipliers.size
    head = np.full((n + 1) * size, -1, dtype=np.int64)
    room = max(1024, 2 * start_t.size)
    t, e = np.empty(room), np.empty(room)
    parent, node = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    after = np.empty(room, dtype=np.int64)
    made = 0
    for s in range(start_t.size):
        t[made], e[made], parent[made] = start_t[s], start_e[s], -1
        node[made] = start_item[s] * size + start_state[s]
        after[made] = head[node[made]]
        head[node[made]] = made
        made += 1
    for k in range(n + 1):
        count, total = 0, 0
        for f in range(size):
            x = head[k * size + f]
            while x >= 0:
                total += 1
                x = after[x]
        if total == 0:
            continue
        kept, z = np.empty(total, dtype=np.int64), np.empty(total)
        limit = best[0] * (1 - gain)
        for f in range(size):
            first = count
            x = head[k * size + f]
            while x >= 0:
                low = -np.inf
                for j in range(j_count):
                    low = max(low, e[x] + value[j, k, f] - multipliers[j] * (budget - t[x]))
                if t[x] + value[j_count, k, f] <= budget and low < limit:
                    kept[count], z[count] = x, low
                    count += 1
                x = after[x]
            if count - first > 1:
                order = np.argsort(t[kept[first:count]])
                old, old_z = kept[first:count].copy(), z[first:count].copy()
                count, floor = first, np.inf
                for r in order:
                    if e[old[r]] < floor:
                        floor = e[old[r]]
                        kept[count], z[count] = old[r], old_z[r]
                        count += 1
        if primal:
            for i in range(count):
                x, f = kept[i], node[kept[i]] % size
                if t[x] + done[0, k, f] <= budget and e[x] + done[1, k, f] < best[0]:
                    best[0], best[1] = e[x] + done[1, k, f], x
        if k == n:
            if not primal:
                for i in range(count):
                    best[2] = min(best[2], e[kept[i]])
            break
        cut = np.inf
        if count > cap or made > most:
            ranked = np.sort(z[:count])
            cut = ranked[0] if made > most else ranked[cap]
            best[2] = min(best[2], cut)
        for i in range(count):
            if z[i] >= cut:
                continue
            x = kept[i]
            f = node[x] % size
            for g in range(size):
                if g == f:
                    q, p = k + 1, k
                else:
                    if not can[k]:
                        continue
                    p = _arrival(ts, k, f, latency[f, g], k)
                    if p >= n:
                        continue
                    q = _release(ts, k, f, p, g, dwell, p)
                    if q > n and end >= 0:
                        continue
                stop = min(q, n)
                nt = t[x] + ts[p, f] - ts[k, f] + ts[stop, g] - ts[p, g]
                ne = e[x] + es[p, f] - es[k, f] + es[stop, g] - es[p, g]
                if nt + value[j_count, stop, g] > budget:
                    continue
                low = -np.inf
                for j in range(j_count):
                    low = max(low, ne + value[j, stop, g] - multipliers[j] * (budget - nt))
                if low >= limit:
                    continue
                if made == t.size:
                    t, e = _more(t), _more(e)
                    parent, node, after = _more(parent), _more(node), _more(after)
                # A dwell cut short by the end of the step ends the walk as any other does.
                at = stop * size + g
                t[made], e[made], parent[made], node[made] = nt, ne, x, at
                after[made] = head[at]
                head[at] = made
                made += 1
    return parent[:made], node[:made] // size, node[:made] % size
