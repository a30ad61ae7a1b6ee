"""A labelling search over the cells that survive fixing: the exact end of the proof.

A label is a walk from the cut to one cell, with its time and energy. It is dropped if another label
at the cell is no slower and no dearer, if it cannot finish within the budget, or if a Lagrangian
bound on its completion, at any of several multipliers, reaches the schedule in hand. Whatever
is dropped to keep a position within its cap lowers the bound to that label's own bound, so the cap
costs tightness, never truth (resource-constrained shortest paths: Dumitrescu and Boland, Networks
42(3), 2003). Each label is also completed along the cheapest walk onward, which is how better
schedules are found on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .deadline import Deadline
from .fixing import Network
from .switch_cost import StallCost

__all__ = ["LabelResult", "search_labels"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_LABELS = 30_000_000  # 8 bytes each, for the way back
_WORK = 30_000_000  # label extensions between looks at the clock
_SPREAD = (1.0, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 3.0)  # multipliers, relative to the dual's


@dataclass(frozen=True, eq=False)
class LabelResult:
    """What one search proved.

    Attributes:
        bound_mj: no walk of this network within the budget takes less, unless it takes at least
            the ``stop_mj`` asked for; infinite if there is none.
        path: (N,) states by block, of the best walk under ``stop_mj``, or None.
        complete: True if no cap and no limit struck.
    """

    bound_mj: float
    path: NDArray[np.int32] | None
    complete: bool


def search_labels(
    net: Network,
    stall: StallCost,
    budget_ns: float,
    multiplier: float,
    stop_mj: float,
    gain: float,
    cap: int,
    deadline: Deadline,
) -> LabelResult:
    """Search a network for walks within ``budget_ns`` that take less than ``stop_mj``.

    Args:
        net: the surviving cells.
        stall: switch costs between states.
        budget_ns: time budget less the gaps.
        multiplier: the dual's, mJ a ns.
        stop_mj: energy of the schedule in hand.
        gain: walks that would gain less than this fraction are not looked for.
        cap: labels kept at one position.
        deadline: when to stop.
    """
    n = len(net.ptr) - 1
    if np.any(np.diff(net.ptr) == 0):
        return LabelResult(np.inf, None, True)
    states = np.arange(stall.n_states, dtype=np.int32)
    weights = np.stack(stall.between(states[:, None], states[None, :]))
    multipliers = multiplier * np.array(_SPREAD)
    end = -1 if net.start is None else net.start
    cells = net.ptr, net.state, net.time_ns, net.energy_mj
    cost, done_t, done_e, following = _completions(*cells, end, weights, multipliers)
    least = _completions(*cells, end, weights, np.array([-1.0]))[1][0]
    first = int(net.ptr[1])
    t, e = np.zeros(first), np.zeros(first)
    label, at = np.arange(first), np.arange(first + 1)
    parent, cell = np.full(first, -1, dtype=np.int32), np.arange(first, dtype=np.int32)
    best = np.array([stop_mj, -1.0, -1.0, np.inf])  # mJ, label, multiplier, bound of the dropped
    _finish(0, net.ptr, t, e, label, at, done_t, done_e, budget_ns, best)
    i, complete = 0, True
    while i < n - 1 and len(label):
        if deadline.passed or len(parent) > _MOST_LABELS:
            complete = False
            z = _bounds(i, net.ptr, t, e, at, multipliers, cost, budget_ns)
            best[3] = min(best[3], float(z.min()))
            break
        i, t, e, label, at, new_parent, new_cell = _advance(
            i,
            *cells,
            weights,
            multipliers,
            cost,
            done_t,
            done_e,
            least,
            budget_ns,
            gain,
            cap,
            t,
            e,
            label,
            at,
            len(parent),
            best,
        )
        parent = np.concatenate([parent, new_parent])
        cell = np.concatenate([cell, new_cell])
    path = None
    if best[1] >= 0:
        path = _walk_back(net, parent, cell, following[int(best[2])], int(best[1]))
    return LabelResult(min(best[3], best[0] * (1 - gain)), path, complete and best[3] == np.inf)


def _walk_back(
    net: Network,
    parent: NDArray[np.int32],
    cell: NDArray[np.int32],
    following: NDArray[np.int32],
    label: int,
) -> NDArray[np.int32]:
    """(N,) states by block of a label's walk, completed along ``following``."""
    cells = [int(following[cell[label]])]
    while cells[-1] >= 0:
        cells.append(int(following[cells[-1]]))
    onward = cells[:-1]
    back = []
    while label >= 0:
        back.append(int(cell[label]))
        label = int(parent[label])
    states = net.state[np.array(back[::-1] + onward)]
    return np.roll(states, net.turn)


@njit(cache=True, nogil=True)
def _bound(
    t: float, e: float, x: int, multipliers: Array, cost: Array, budget: float, enough: float
) -> float:
    """A lower bound on any completion within the budget; stops early once it is ``enough``."""
    z = -np.inf
    for j in range(multipliers.size):
        z = max(z, e + cost[j, x] - multipliers[j] * (budget - t))
        if z >= enough:
            break
    return z


@njit(cache=True, nogil=True)
def _bounds(
    i: int, ptr: Ints, t: Array, e: Array, at: Ints, multipliers: Array, cost: Array, budget: float
) -> Array:
    z = np.empty(t.size)
    for y in range(ptr[i], ptr[i + 1]):
        for p in range(at[y - ptr[i]], at[y - ptr[i] + 1]):
            z[p] = _bound(t[p], e[p], y, multipliers, cost, budget, np.inf)
    return z


@njit(cache=True, nogil=True)
def _finish(
    i: int,
    ptr: Ints,
    t: Array,
    e: Array,
    label: Ints,
    at: Ints,
    done_t: Array,
    done_e: Array,
    budget: float,
    best: Array,
) -> None:
    """Complete each label along the cheapest walks onward; keep the best within the budget."""
    for y in range(ptr[i], ptr[i + 1]):
        for j in range(done_t.shape[0]):
            for p in range(at[y - ptr[i]], at[y - ptr[i] + 1]):
                if e[p] + done_e[j, y] < best[0] and t[p] + done_t[j, y] <= budget:
                    best[0], best[1], best[2] = e[p] + done_e[j, y], label[p], j


@njit(cache=True, nogil=True)
def _advance(
    i: int,
    ptr: Ints,
    state: NDArray[np.int32],
    time: Array,
    energy: Array,
    weights: Array,
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
    label: Ints,
    at: Ints,
    n_before: int,
    best: Array,
) -> tuple[int, Array, Array, Ints, Ints, NDArray[np.int32], NDArray[np.int32]]:
    """Extend labels position by position until ``_WORK`` is done or the last is reached.

    A label's time and energy leave out its own cell's; those at cell ptr[i] + q are at[q] to
    at[q + 1] - 1, by rising time.
    """
    work, made = 0, 0
    new_parent, new_cell = np.empty(1024, dtype=np.int32), np.empty(1024, dtype=np.int32)
    while i < ptr.size - 2 and work < _WORK and t.size:
        limit = best[0] * (1 - gain)
        room = 0
        nt, ne = np.empty(max(64, 2 * t.size)), np.empty(max(64, 2 * t.size))
        source = np.empty(nt.size, dtype=np.int64)
        next_at = np.zeros(ptr[i + 2] - ptr[i + 1] + 1, dtype=np.int64)
        ct, ce = np.empty(t.size), np.empty(t.size)
        cs = np.empty(t.size, dtype=np.int64)
        lead = np.full(ptr[i + 1] - ptr[i], np.inf)
        for q in range(lead.size):
            for p in range(at[q], at[q + 1]):
                lead[q] = min(lead[q], e[p] + multipliers[0] * t[p])
        for y in range(ptr[i + 1], ptr[i + 2]):
            m, sources = 0, 0
            for q in range(lead.size):
                x = ptr[i] + q
                wt = weights[0, state[x], state[y]] + time[x]
                we = weights[1, state[x], state[y]] + energy[x]
                if lead[q] + we + cost[0, y] + multipliers[0] * (wt - budget) >= limit:
                    continue
                sources += 1
                work += at[q + 1] - at[q]
                for p in range(at[q], at[q + 1]):
                    tt, ee = t[p] + wt, e[p] + we
                    if tt + least[y] > budget:
                        break
                    if _bound(tt, ee, y, multipliers, cost, budget, limit) < limit:
                        ct[m], ce[m], cs[m] = tt, ee, p
                        m += 1
            work += m
            if room + m > nt.size:
                nt, ne = (
                    np.concatenate((nt, np.empty(nt.size + m))),
                    np.concatenate((ne, np.empty(ne.size + m))),
                )
                source = np.concatenate((source, np.empty(source.size + m, dtype=np.int64)))
            ranks = np.argsort(ct[:m]) if sources > 1 else np.arange(m)
            floor = np.inf
            for r in ranks:
                if ce[r] < floor:
                    floor = ce[r]
                    nt[room], ne[room], source[room] = ct[r], ce[r], cs[r]
                    room += 1
            next_at[y - ptr[i + 1] + 1] = room
        i += 1
        nt, ne, source = nt[:room], ne[:room], source[:room]
        if room > cap:
            z = _bounds(i, ptr, nt, ne, next_at, multipliers, cost, budget)
            cut = np.partition(z, cap)[cap]
            best[3] = min(best[3], cut)
            room = 0
            for q in range(next_at.size - 1):
                lo, hi = next_at[q], next_at[q + 1]
                next_at[q] = room
                # next_at[q] was read for the cell before; what is kept moves down in place.
                for p in range(lo, hi):
                    if z[p] < cut:
                        nt[room], ne[room], source[room] = nt[p], ne[p], source[p]
                        room += 1
            next_at[-1] = room
            nt, ne, source = nt[:room], ne[:room], source[:room]
        if made + room > new_parent.size:
            grown = max(2 * new_parent.size, made + room) - new_parent.size
            new_parent = np.concatenate((new_parent, np.empty(grown, dtype=np.int32)))
            new_cell = np.concatenate((new_cell, np.empty(grown, dtype=np.int32)))
        next_label = np.arange(n_before + made, n_before + made + room)
        for q in range(next_at.size - 1):
            for p in range(next_at[q], next_at[q + 1]):
                new_parent[made + p] = label[source[p]]
                new_cell[made + p] = ptr[i] + q
        made += room
        t, e, label, at = nt, ne, next_label, next_at
        _finish(i, ptr, t, e, label, at, done_t, done_e, budget, best)
    return i, t, e, label, at, new_parent[:made], new_cell[:made]


@njit(cache=True, nogil=True)
def _completions(
    ptr: Ints,
    state: NDArray[np.int32],
    time: Array,
    energy: Array,
    end: int,
    weights: Array,
    multipliers: Array,
) -> tuple[Array, Array, Array, NDArray[np.int32]]:
    """The cheapest walk from each cell (its own cost included) to the end, for each multiplier.

    A negative multiplier asks for the shortest time. Returns cost, ns and mJ, (J, A) each, and the
    next cell, -1 at the end.
    """
    n_cells = state.size
    cost = np.empty((multipliers.size, n_cells))
    done_t, done_e = np.empty_like(cost), np.empty_like(cost)
    following = np.full((multipliers.size, n_cells), -1, dtype=np.int32)
    n = ptr.size - 1
    for j in range(multipliers.size):
        a, b = (1.0, multipliers[j]) if multipliers[j] >= 0 else (0.0, 1.0)
        weight = a * weights[1] + b * weights[0]
        for i in range(n - 1, -1, -1):
            for x in range(ptr[i], ptr[i + 1]):
                f, best, who = state[x], np.inf, -1
                if i == n - 1:
                    wt, we = 0.0, 0.0
                    if end >= 0:
                        wt, we = weights[0, f, end], weights[1, f, end]
                    cost[j, x] = a * (energy[x] + we) + b * (time[x] + wt)
                    done_t[j, x], done_e[j, x] = time[x] + wt, energy[x] + we
                    continue
                for y in range(ptr[i + 1], ptr[i + 2]):
                    value = weight[f, state[y]] + cost[j, y]
                    if value < best:
                        best, who = value, y
                g = state[who]
                cost[j, x] = best + a * energy[x] + b * time[x]
                done_t[j, x] = time[x] + weights[0, f, g] + done_t[j, who]
                done_e[j, x] = energy[x] + weights[1, f, g] + done_e[j, who]
                following[j, x] = who
    return cost, done_t, done_e, following
