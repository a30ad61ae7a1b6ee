"""Schedules as 0-1 programs.

One binary a cell, exactly one to a position. Switch costs either flow along edges between the
cells of neighbouring positions (any cost; the tightest relaxation; F^2 columns a position), or,
where cost is a core part plus a memory part, hang on one column a clock and position that must be 1
if that clock was not the one before (far fewer columns, a looser relaxation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fixing import Network
from .ilp import LinearModel
from .switch_cost import StallCost

__all__ = ["Scale", "flow_model", "indicator_model", "read_path"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    """Back ends hold rows to an absolute 1e-6: units are chosen so that this is next to nothing."""

    budget_ns: float
    energy_mj: float
    size: float = 1e5


class _Rows:
    """Gathers the entries of A; rows are numbered by the caller."""

    def __init__(self) -> None:
        self.row: list[Ints] = []
        self.column: list[Ints] = []
        self.value: list[Array] = []

    def add(self, row: Ints, column: Ints, value: float | Array) -> None:
        self.row.append(row)
        self.column.append(column)
        self.value.append(np.broadcast_to(np.asarray(value, dtype=np.float64), row.shape))

    def model(self, cost: Array, cells: int, low: Array, high: Array) -> LinearModel:
        row, column = np.concatenate(self.row), np.concatenate(self.column)
        value = np.concatenate(self.value)
        used = np.flatnonzero(value)
        order = used[np.lexsort((column[used], row[used]))]
        integer = np.zeros(len(cost), dtype=np.bool_)
        integer[:cells] = True
        return LinearModel(cost, integer, row[order], column[order], value[order], low, high)


def flow_model(
    net: Network, stall: StallCost, budget_ns: float, *, wrap: bool, scale: Scale
) -> LinearModel:
    """Cells and edges. ``wrap`` closes the walk with edges from the last position to the first."""
    n, cells = len(net.ptr) - 1, net.n_cells
    time, energy = net.time_ns.copy(), net.energy_mj.copy()
    if net.start is not None:
        last = slice(int(net.ptr[n - 1]), int(net.ptr[n]))
        into = stall.between(net.state[last], np.full(1, net.start, dtype=np.int32))
        time[last] += into[0]
        energy[last] += into[1]
    tails, heads = [], []
    for i in range(n if wrap and n > 1 else n - 1):
        j = (i + 1) % n
        a = np.arange(net.ptr[i], net.ptr[i + 1])
        b = np.arange(net.ptr[j], net.ptr[j + 1])
        tails.append(np.repeat(a, len(b)))
        heads.append(np.tile(b, len(a)))
    none = [np.empty(0, dtype=np.int64)]
    tail, head = np.concatenate(tails or none), np.concatenate(heads or none)
    edge_ns, edge_mj = stall.between(net.state[tail], net.state[head])
    edge = cells + np.arange(len(tail))
    rows = _Rows()
    rows.add(np.repeat(np.arange(n), np.diff(net.ptr)), np.arange(cells), 1.0)
    # A cell's flow out, and its flow in, is the cell.
    leaves, enters = np.unique(tail), np.unique(head)
    rows.add(n + np.searchsorted(leaves, tail), edge, 1.0)
    rows.add(n + np.arange(len(leaves)), leaves, -1.0)
    base = n + len(leaves)
    rows.add(base + np.searchsorted(enters, head), edge, 1.0)
    rows.add(base + np.arange(len(enters)), enters, -1.0)
    total = base + len(enters)
    ns = np.concatenate([time, edge_ns]) * (scale.size / max(scale.budget_ns, 1e-300))
    rows.add(np.full(len(ns), total), np.arange(len(ns)), ns)
    low, high = np.zeros(total + 1), np.zeros(total + 1)
    low[:n] = high[:n] = 1.0
    low[total] = -np.inf
    high[total] = budget_ns * (scale.size / max(scale.budget_ns, 1e-300))
    cost = np.concatenate([energy, edge_mj]) * (scale.size / max(scale.energy_mj, 1e-300))
    return rows.model(cost, cells, low, high)


def indicator_model(
    net: Network, stall: StallCost, budget_ns: float, *, wrap: bool, scale: Scale
) -> LinearModel:
    """Cells, and a column a clock and position; ``stall`` must be core part plus memory part."""
    n, cells = len(net.ptr) - 1, net.n_cells
    width = stall.n_states // stall.n_mem
    position = np.repeat(np.arange(n), np.diff(net.ptr))
    rows = _Rows()
    rows.add(position, np.arange(cells), 1.0)
    cost = [net.energy_mj]
    ns = [net.time_ns]
    at, column = n, cells
    pairs = np.arange(0 if wrap and n > 1 else 1, n)
    parts = [(net.state % width, width, stall.core)]
    if stall.n_mem > 1:
        parts.append((net.state // width, stall.n_mem, stall.mem))
    for clock, count, (part_ns, part_mj) in parts:
        # changed[k, c] >= (clock c at k) - (clock c at k - 1)
        index = np.full(n, -1)
        index[pairs] = np.arange(len(pairs))
        here = index[position]
        rows.add(
            (at + here * count + clock)[here >= 0].astype(np.int64), np.flatnonzero(here >= 0), -1.0
        )
        after = index[(position + 1) % n]
        if not wrap:
            after[position == n - 1] = -1
        rows.add(
            (at + after * count + clock)[after >= 0].astype(np.int64),
            np.flatnonzero(after >= 0),
            1.0,
        )
        size = len(pairs) * count
        rows.add(at + np.arange(size), column + np.arange(size), 1.0)
        at, column = at + size, column + size
        cost.append(np.full(size, part_mj))
        ns.append(np.full(size, part_ns))
    all_ns = np.concatenate(ns) * (scale.size / max(scale.budget_ns, 1e-300))
    rows.add(np.full(len(all_ns), at), np.arange(len(all_ns)), all_ns)
    low, high = np.zeros(at + 1), np.full(at + 1, np.inf)
    low[:n] = high[:n] = 1.0
    low[at] = -np.inf
    high[at] = budget_ns * (scale.size / max(scale.budget_ns, 1e-300))
    energy = np.concatenate(cost) * (scale.size / max(scale.energy_mj, 1e-300))
    return rows.model(energy, cells, low, high)


def read_path(net: Network, x: Array) -> NDArray[np.int32]:
    """(N,) states by block: the cell nearest to 1 at each position."""
    n = len(net.ptr) - 1
    pick = [int(net.ptr[i] + np.argmax(x[net.ptr[i] : net.ptr[i + 1]])) for i in range(n)]
    return np.roll(net.state[pick], net.turn)
