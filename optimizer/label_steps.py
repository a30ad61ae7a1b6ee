"""The compiled steps of the labelling search: completions, extension, dominance, the cap.

A label's time and energy are those of a walk up to and including its cell. At one position labels
lie cell by cell, by rising time and falling energy: those of the q-th cell are at[q] .. at[q+1]-1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, inner

__all__ = ["advance", "bounds", "completions", "finish"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_WORK = 20_000_000  # label extensions between looks at the clock
_BINS = 4096


@compiled()
def completions(
    ptr: Ints,
    state: NDArray[np.int32],
    time: Array,
    energy: Array,
    end: int,
    weights: Array,
    multipliers: Array,
    cost: Array,
    done_t: Array,
    done_e: Array,
    following: NDArray[np.int32],
) -> None:
    """The cheapest walk onward from each cell (its own cost left out), for each multiplier.

    A negative multiplier asks for the shortest time. Fills cost, ns and mJ, (J, A) each, and the
    next cell, -1 at the end.
    """
    n = ptr.size - 1
    for j in range(multipliers.size):
        a, b = (1.0, multipliers[j]) if multipliers[j] >= 0 else (0.0, 1.0)
        for i in range(n - 1, -1, -1):
            for x in range(ptr[i], ptr[i + 1]):
                f = state[x]
                if i == n - 1:
                    following[j, x] = -1
                    done_t[j, x] = weights[0, f, end] if end >= 0 else 0.0
                    done_e[j, x] = weights[1, f, end] if end >= 0 else 0.0
                    cost[j, x] = a * done_e[j, x] + b * done_t[j, x]
                    continue
                best, who = np.inf, -1
                for y in range(ptr[i + 1], ptr[i + 2]):
                    g = state[y]
                    value = (
                        a * (weights[1, f, g] + energy[y])
                        + b * (weights[0, f, g] + time[y])
                        + cost[j, y]
                    )
                    if value < best:
                        best, who = value, y
                g = state[who]
                cost[j, x], following[j, x] = best, who
                done_t[j, x] = weights[0, f, g] + time[who] + done_t[j, who]
                done_e[j, x] = weights[1, f, g] + energy[who] + done_e[j, who]


@inner()
def _bound(
    t: float, e: float, x: int, multipliers: Array, cost: Array, budget: float, enough: float
) -> float:
    """A lower bound on any completion within the budget; stops early once it is ``enough``."""
    z = -np.inf
    for j in range(multipliers.size):
        value = e + cost[j, x] - multipliers[j] * (budget - t)
        if value > z:
            z = value
            if z >= enough:
                break
    return z


@compiled()
def bounds(
    first: int, t: Array, e: Array, at: Ints, multipliers: Array, cost: Array, budget: float
) -> Array:
    """The bound of every label at the position whose first cell is ``first``."""
    z = np.empty(t.size)
    for q in range(at.size - 1):
        for p in range(at[q], at[q + 1]):
            z[p] = _bound(t[p], e[p], first + q, multipliers, cost, budget, np.inf)
    return z


@compiled()
def finish(
    first: int,
    t: Array,
    e: Array,
    label0: int,
    at: Ints,
    done_t: Array,
    done_e: Array,
    budget: float,
    best: Array,
) -> None:
    """Complete each label along the cheapest walks onward; keep the best within the budget."""
    for q in range(at.size - 1):
        for j in range(done_t.shape[0]):
            for p in range(at[q], at[q + 1]):
                total = e[p] + done_e[j, first + q]
                if total < best[0] and t[p] + done_t[j, first + q] <= budget:
                    best[0], best[1], best[2] = total, label0 + p, j


@inner()
def _sort(key: Array, order: Ints, scratch: Ints, m: int) -> None:
    """Order 0 .. m-1 by key, stable: a merge sort of the rising runs the sources come in."""
    for p in range(m):
        order[p] = p
    width = 1
    while width < m:
        lo = 0
        while lo < m:
            mid, hi = min(lo + width, m), min(lo + 2 * width, m)
            if mid < hi and key[order[mid - 1]] > key[order[mid]]:
                i, j = lo, mid
                for p in range(lo, hi):
                    if j >= hi or (i < mid and key[order[i]] <= key[order[j]]):
                        scratch[p] = order[i]
                        i += 1
                    else:
                        scratch[p] = order[j]
                        j += 1
                for p in range(lo, hi):
                    order[p] = scratch[p]
            lo += 2 * width
        width *= 2


@inner()
def _gather(
    i: int,
    y: int,
    ptr: Ints,
    state: NDArray[np.int32],
    time: Array,
    energy: Array,
    weights: Array,
    multipliers: Array,
    cost: Array,
    least: Array,
    budget: float,
    limit: float,
    t: Array,
    e: Array,
    at: Ints,
    lead: Array,
    ct: Array,
    ce: Array,
    cs: Ints,
) -> int:
    """Extensions of position i's labels into cell y that may still win; how many."""
    m = 0
    for q in range(lead.size):
        f, g = state[ptr[i] + q], state[y]
        wt, we = weights[0, f, g] + time[y], weights[1, f, g] + energy[y]
        if lead[q] + we + cost[0, y] + multipliers[0] * (wt - budget) >= limit:
            continue
        for p in range(at[q], at[q + 1]):
            tt, ee = t[p] + wt, e[p] + we
            if tt + least[y] > budget:
                break
            if _bound(tt, ee, y, multipliers, cost, budget, limit) < limit:
                ct[m], ce[m], cs[m] = tt, ee, p
                m += 1
    return m


@inner()
def _dominated(t: Array, e: Array, wt: float, we: float, dead: Array) -> None:
    """Mark labels of any cell that another could replace even after the dearest switch."""
    order, scratch = np.empty(t.size, dtype=np.int64), np.empty(t.size, dtype=np.int64)
    _sort(t, order, scratch, t.size)
    low, who, ahead = np.inf, -1, 0
    for r in range(t.size):
        p = order[r]
        while ahead < t.size and t[order[ahead]] + wt <= t[p]:
            s = order[ahead]
            if s != p and dead[s] == 0.0 and e[s] < low:
                low, who = e[s], s
            ahead += 1
            if s == p:
                break
        dead[p] = 1.0 if who >= 0 and low + we <= e[p] else 0.0
        if wt == 0.0 and dead[p] == 0.0 and e[p] < low:
            low, who = e[p], p


@inner()
def _cut(z: Array, cap: int) -> float:
    """A bound that about ``cap`` of the labels, and not more, lie under."""
    low, high = np.inf, -np.inf
    for value in z:
        low, high = min(low, value), max(high, value)
    if not high > low:
        return high
    count = np.zeros(_BINS, dtype=np.int64)
    scale = (_BINS - 1) / (high - low)
    for value in z:
        count[int((value - low) * scale)] += 1
    kept = 0
    for b in range(_BINS):
        kept += count[b]
        if kept > cap:
            return low + b / scale
    return np.inf


@inner()
def _compact(z: Array, cut: float, t: Array, e: Array, source: Ints, at: Ints) -> int:
    """Keep the labels with z under ``cut``, in place; the number left."""
    room, lo = 0, 0
    for q in range(at.size - 1):
        hi = at[q + 1]
        for p in range(lo, hi):
            if z[p] < cut:
                t[room], e[room], source[room] = t[p], e[p], source[p]
                room += 1
        lo = hi
        at[q + 1] = room
    return room


@inner()
def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    out = np.empty(max(size, 2 * array.size), dtype=array.dtype)
    for p in range(array.size):
        out[p] = array[p]
    return out


@compiled()
def advance(
    i: int,
    ptr: Ints,
    state: NDArray[np.int32],
    time: Array,
    energy: Array,
    weights: Array,
    worst: tuple[float, float],
    multipliers: Array,
    cost: Array,
    done_t: Array,
    done_e: Array,
    least: Array,
    budget: float,
    gain: float,
    cap: int,
    t: Array,
    e: Array,
    at: Ints,
    label0: int,
    n_before: int,
    best: Array,
) -> tuple[int, Array, Array, Ints, int, Ints, Ints]:
    """Extend labels position by position until enough work is done or the last is reached.

    Returns the position, its labels (time, energy, at, number of the first), and the parent and
    cell of every label made on the way.
    """
    work, made = 0, 0
    parents, cells = np.empty(1024, dtype=np.int64), np.empty(1024, dtype=np.int64)
    while i < ptr.size - 2 and work < _WORK and t.size:
        limit = best[0] * (1 - gain)
        room = 0
        nt, ne = np.empty(2 * t.size), np.empty(2 * t.size)
        source = np.empty(2 * t.size, dtype=np.int64)
        next_at = np.zeros(ptr[i + 2] - ptr[i + 1] + 1, dtype=np.int64)
        ct, ce, cs = np.empty(t.size), np.empty(t.size), np.empty(t.size, dtype=np.int64)
        order, scratch = np.empty_like(cs), np.empty_like(cs)
        lead = np.empty(ptr[i + 1] - ptr[i])
        for q in range(lead.size):
            lead[q] = np.inf
            for p in range(at[q], at[q + 1]):
                lead[q] = min(lead[q], e[p] + multipliers[0] * t[p])
        for y in range(ptr[i + 1], ptr[i + 2]):
            m = _gather(
                i, y, ptr, state, time, energy, weights, multipliers, cost, least, budget, limit,
                t, e, at, lead, ct, ce, cs,
            )  # fmt: skip
            work += t.size + m
            if room + m > nt.size:
                nt, ne = _grown(nt, room + m), _grown(ne, room + m)
                source = _grown(source, room + m)
            _sort(ct, order, scratch, m)
            floor = np.inf
            for r in range(m):
                p = order[r]
                if ce[p] < floor:
                    floor = ce[p]
                    nt[room], ne[room], source[room] = ct[p], ce[p], cs[p]
                    room += 1
            next_at[y - ptr[i + 1] + 1] = room
        i += 1
        first = ptr[i]
        if i < ptr.size - 2:
            dead = np.zeros(room)
            _dominated(nt[:room], ne[:room], worst[0], worst[1], dead)
            room = _compact(dead, 0.5, nt, ne, source, next_at)
        if room > cap:
            z = bounds(first, nt[:room], ne[:room], next_at, multipliers, cost, budget)
            cut = _cut(z, cap)
            best[3] = min(best[3], cut)
            room = _compact(z, cut, nt, ne, source, next_at)
        if made + room > parents.size:
            parents, cells = _grown(parents, made + room), _grown(cells, made + room)
        for q in range(next_at.size - 1):
            for p in range(next_at[q], next_at[q + 1]):
                parents[made + p] = label0 + source[p]
                cells[made + p] = first + q
        label0 = n_before + made
        made += room
        t, e, at = nt[:room].copy(), ne[:room].copy(), next_at
        finish(first, t, e, label0, at, done_t, done_e, budget, best)
    return i, t, e, at, label0, parents[:made], cells[:made]
