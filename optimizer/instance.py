"""A problem as the solver sweeps it: blocks between boundaries, states on the switch grid.

Items between two boundaries run at one pair and are summed into one block. The idle gap after an
item belongs to it, since its pair is held through it. Gaps last the same at every pair, so their
time leaves the budget once. Tables stay a row a signature wherever they can; a block's cell is
``escale * energy[row] + hold * idle`` mJ and ``tscale * time[row]`` ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import NDArray

from .problem import Problem
from .switch_cost import BIG, StallCost, stall_cost

__all__ = ["Instance", "build_instance"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Instance:
    """N blocks x G states.

    Attributes:
        time: (R, G) ns a row at each state, `BIG` where the state cannot be chosen.
        energy: (R, G) mJ.
        row: (N,) int32.
        tscale: (N,) or (1,) if ``plain``.
        escale: (N,) or (1,) if ``plain``.
        hold: (N,) ns of idle after each block, or (1,) if ``plain``.
        idle: (G,) mJ a ns of idle at each state.
        plain: True if all scales are 1 and no gap is held.
        gap_ns: total time of the gaps.
        first: (N,) int64, the first item of each block.
        stall: the layout and cost of the states.
        cyclic: True if the last block meets the first.
    """

    time: Array
    energy: Array
    row: NDArray[np.int32]
    tscale: Array
    escale: Array
    hold: Array
    idle: Array
    plain: bool
    gap_ns: float
    first: NDArray[np.int64]
    n_items: int
    stall: StallCost
    cyclic: bool

    @property
    def n_blocks(self) -> int:
        """N."""
        return len(self.row)

    @property
    def n_states(self) -> int:
        """G."""
        return int(self.time.shape[1])

    def cells(self, path: NDArray[np.int32]) -> tuple[Array, Array]:
        """(N,) ns and (N,) mJ of the blocks along a path of states."""
        time, energy = self.time[self.row, path], self.energy[self.row, path]
        if self.plain:
            return time, energy
        return self.tscale * time, self.escale * energy + self.hold * self.idle[path]

    def block_cells(self, k: int) -> tuple[Array, Array]:
        """(G,) ns and (G,) mJ of one block at every state."""
        time, energy = self.time[self.row[k]], self.energy[self.row[k]]
        if self.plain:
            return time, energy
        return self.tscale[k] * time, self.escale[k] * energy + self.hold[k] * self.idle

    def total(self, path: NDArray[np.int32]) -> tuple[float, float]:
        """Ns and mJ of a path, stalls included, gaps' time left out; rounded, not certified."""
        time, energy = self.cells(path)
        old, new = (np.roll(path, 1), path) if self.cyclic else (path[:-1], path[1:])
        stall_ns, stall_mj = self.stall.between(old, new)
        return float(time.sum() + stall_ns.sum()), float(energy.sum() + stall_mj.sum())

    def choice(self, path: NDArray[np.int32]) -> NDArray[np.int32]:
        """(K,) the problem's pair at each item, from a (N,) path of states."""
        pair = self.stall.pair[path]
        if self.n_blocks == self.n_items and self.first[0] == 0:
            return pair
        ends = np.append(self.first[1:], self.n_items + self.first[0])
        spread = np.repeat(pair, ends - self.first)
        return np.roll(spread, int(self.first[0])).astype(np.int32)


def build_instance(problem: Problem) -> Instance:
    """Lay a problem with a stall or free switch model out for the solver."""
    stall = stall_cost(problem)
    first = _block_starts(problem)
    hold_ns = _held(problem)
    time, energy = _on_grid(problem.time_ns, stall.pair), _on_grid(problem.energy_mj, stall.pair)
    idle = np.zeros(stall.n_states)
    if problem.idle_power_w is not None:
        idle = np.where(stall.pair >= 0, problem.idle_power_w[stall.pair] * 1e-6, 0.0)
    n = problem.n_items
    ones = np.ones(n)
    tscale = ones if problem.time_scale is None else problem.time_scale
    escale = ones if problem.energy_scale is None else problem.energy_scale
    row = problem.row
    scaled = problem.time_scale is not None or problem.energy_scale is not None
    if len(first) < n:
        time, energy, row = _sum_blocks(
            time, energy, row, tscale if scaled else None, escale, first, n
        )
        hold_ns = np.add.reduceat(np.roll(hold_ns, -int(first[0])), first - first[0])
        tscale = escale = np.ones(len(first))
        scaled = False
    plain = not scaled and not hold_ns.any()
    one = np.ones(1)
    return Instance(
        time,
        energy,
        np.ascontiguousarray(row, dtype=np.int32),
        one if plain else np.ascontiguousarray(tscale),
        one if plain else np.ascontiguousarray(escale),
        one if plain else hold_ns,
        idle,
        plain,
        0.0 if problem.gap_ns is None else fsum(problem.gap_ns.tolist()),
        first,
        n,
        stall,
        # Where switches are free the end need not meet the start.
        problem.cyclic and len(first) > 1 and stall.worst != (0.0, 0.0),
    )


def _block_starts(problem: Problem) -> NDArray[np.int64]:
    if problem.boundary is None:
        return np.arange(problem.n_items)
    first = np.flatnonzero(problem.boundary)
    if not problem.cyclic and (first.size == 0 or first[0] != 0):
        first = np.concatenate([[0], first])
    # A step that repeats, without a boundary anywhere, runs at one pair for ever.
    return first if first.size else np.zeros(1, dtype=np.int64)


def _held(problem: Problem) -> Array:
    """(K,) ns of idle through which each item's pair is held."""
    if problem.gap_ns is None:
        return np.zeros(problem.n_items)
    held = np.roll(problem.gap_ns, -1)
    if not problem.cyclic:
        held[0] += held[-1]
        held[-1] = 0.0
        if problem.n_items == 1:
            held[0] = problem.gap_ns[0]
    return held


def _on_grid(table: Array, pair: NDArray[np.int32]) -> Array:
    # Columns are taken as they are where nothing moves: large tables are not copied.
    if np.array_equal(pair, np.arange(table.shape[1])):
        return table
    out = np.full((len(table), len(pair)), BIG)
    real = pair >= 0
    out[:, real] = table[:, pair[real]]
    return out


def _sum_blocks(
    time: Array,
    energy: Array,
    row: NDArray[np.int32],
    tscale: Array | None,
    escale: Array,
    first: NDArray[np.int64],
    n: int,
) -> tuple[Array, Array, NDArray[np.int32]]:
    """Sum each block's cells; blocks of the same signatures share a row unless scaled."""
    turn = int(first[0])
    order = (np.arange(n) + turn) % n
    starts = np.append(first - turn, n)
    seen: dict[bytes, int] = {}
    members: list[NDArray[np.int64]] = []
    block_row = np.empty(len(first), dtype=np.int32)
    for b in range(len(first)):
        items = order[starts[b] : starts[b + 1]]
        key = row[items].tobytes() if tscale is None else b.to_bytes(8, "little")
        if key not in seen:
            seen[key] = len(members)
            members.append(items)
        block_row[b] = seen[key]
    out_time = np.empty((len(members), time.shape[1]))
    out_energy = np.empty_like(out_time)
    for r, items in enumerate(members):
        if tscale is None:
            out_time[r] = time[row[items]].sum(axis=0)
            out_energy[r] = energy[row[items]].sum(axis=0)
        else:
            out_time[r] = tscale[items] @ time[row[items]]
            out_energy[r] = escale[items] @ energy[row[items]]
    hole = time[0] >= BIG
    out_time[:, hole] = out_energy[:, hole] = BIG
    return out_time, out_energy, block_row
