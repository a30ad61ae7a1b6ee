"""Compiled steps over the arcs that survive fixing, for closed walks through one node.

Nodes are numbered by item, then state; an arc leads ``length`` items on and may pass into the next
lap. A closed walk leaves node ``start`` and comes back to it one lap later, which is the only node
of that lap it may use. ``first`` (n + 1,) holds the first node of each item, ``ptr`` the first arc
of each node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, inner
from .switch_cost import BIG

__all__ = ["closed_labels", "closed_totals", "closed_values"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@compiled()
def closed_values(
    first: Ints,
    ptr: Ints,
    head: Ints,
    length: Ints,
    t: Array,
    e: Array,
    item: Ints,
    start: int,
    a: float,
    b: float,
    value: Array,
    arc: Ints,
) -> None:
    """The cheapest way on from every node to the end of the lap at a mJ + b ns, and its arc."""
    n, c = first.size - 1, item[start]
    for i in range(n - 1, -1, -1):
        k = (c + i) % n
        for x in range(first[k], first[k + 1]):
            best, who = BIG, -1
            for y in range(ptr[x], ptr[x + 1]):
                place = i + length[y]
                if place > n or (place == n and head[y] != start):
                    continue
                cost = a * e[y] + b * t[y]
                if place < n:
                    cost += value[head[y]]
                if cost < best:
                    best, who = cost, y
            value[x], arc[x] = best, who


@compiled()
def closed_totals(
    first: Ints, head: Ints, length: Ints, t: Array, e: Array, item: Ints, start: int, arc: Ints
) -> Array:
    """(2, N) ns and mJ on from every node along ``arc``."""
    n, c = first.size - 1, item[start]
    total = np.full((2, item.size), BIG)
    for i in range(n - 1, -1, -1):
        k = (c + i) % n
        for x in range(first[k], first[k + 1]):
            y = arc[x]
            if y >= 0:
                more = i + length[y] < n
                total[0, x] = t[y] + (total[0, head[y]] if more else 0.0)
                total[1, x] = e[y] + (total[1, head[y]] if more else 0.0)
    return total


@inner()
def _survivors(
    x: int,
    label: int,
    after: Ints,
    lt: Array,
    le: Array,
    multipliers: Array,
    value: Array,
    budget: float,
    limit: float,
    count: int,
    kept: Ints,
    z: Array,
) -> int:
    """Write a node's labels that no other is better than; their number and ``count``."""
    begin = count
    j_count = multipliers.size
    while label >= 0:
        low = -np.inf
        for j in range(j_count):
            low = max(low, le[label] + value[j, x] - multipliers[j] * (budget - lt[label]))
        if lt[label] + value[j_count, x] <= budget and low < limit:
            kept[count], z[count] = label, low
            count += 1
        label = after[label]
    if count - begin > 1:
        order = np.argsort(lt[kept[begin:count]])
        old, old_z = kept[begin:count].copy(), z[begin:count].copy()
        count, floor = begin, np.inf
        for r in order:
            if le[old[r]] < floor:
                floor = le[old[r]]
                kept[count], z[count] = old[r], old_z[r]
                count += 1
    return count


@inner()
def _cut_off(z: Array, cap: int, best: Array) -> float:
    """The bound from which labels are dropped to keep within ``cap``; noted in ``best``."""
    if z.size <= cap:
        return np.inf
    cut = float(np.sort(z)[cap])
    best[2] = min(best[2], cut)
    return cut


@compiled()
def closed_labels(
    first: Ints,
    ptr: Ints,
    head: Ints,
    length: Ints,
    t: Array,
    e: Array,
    item: Ints,
    start: int,
    multipliers: Array,
    value: Array,
    done: Array,
    budget: float,
    gain: float,
    cap: int,
    lt: Array,
    le: Array,
    parent: Ints,
    via: Ints,
    best: Array,
) -> int:
    """Search closed walks through ``start``; see `labels` for what a label is.

    ``value`` is (J + 1, N) ways on at each multiplier, the last one times in ns; ``done`` (2, N)
    the totals of the first's. ``lt``, ``le``, ``parent`` and ``via`` (an arc) are room for labels.
    ``best`` holds the energy to beat, the label that beats it, and the least bound of what was
    dropped. Returns the number of labels made.
    """
    n, c, j_count = first.size - 1, item[start], multipliers.size
    newest, after = np.full(item.size, -1, dtype=np.int64), np.empty(lt.size, dtype=np.int64)
    waiting = np.zeros(item.size, dtype=np.int64)
    lt[0], le[0], parent[0], via[0], after[0] = 0.0, 0.0, -1, -1, -1
    newest[start], waiting[start], made = 0, 1, 1
    for i in range(n):
        k = (c + i) % n
        total = waiting[first[k] : first[k + 1]].sum()
        if total == 0:
            continue
        kept, z, count = np.empty(total, dtype=np.int64), np.empty(total), 0
        limit = best[0] * (1 - gain)
        for x in range(first[k], first[k + 1]):
            begin = count
            count = _survivors(
                x, newest[x], after, lt, le, multipliers, value, budget, limit, begin, kept, z
            )
            for label in kept[begin:count]:
                if lt[label] + done[0, x] <= budget and le[label] + done[1, x] < best[0]:
                    best[0], best[1] = le[label] + done[1, x], label
        cut = _cut_off(z[:count], cap, best)
        for r in range(count):
            if z[r] >= cut:
                continue
            label = kept[r]
            x = start if via[label] < 0 else head[via[label]]
            if made + ptr[x + 1] - ptr[x] > lt.size:
                best[2] = min(best[2], z[r])
                continue
            for y in range(ptr[x], ptr[x + 1]):
                place, h = i + length[y], head[y]
                if place > n or (place == n and h != start):
                    continue
                nt, ne = lt[label] + t[y], le[label] + e[y]
                low = -np.inf
                for j in range(j_count):
                    on = value[j, h] if place < n else 0.0
                    low = max(low, ne + on - multipliers[j] * (budget - nt))
                late = nt + (value[j_count, h] if place < n else 0.0) > budget
                if late or low >= limit:
                    continue
                lt[made], le[made], parent[made], via[made] = nt, ne, label, y
                if place < n:
                    after[made], newest[h] = newest[h], made
                    waiting[h] += 1
                elif ne < best[0]:
                    best[0], best[1] = ne, made
                made += 1
    return made
