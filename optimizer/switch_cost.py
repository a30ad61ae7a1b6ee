"""Stall costs in the layout the dynamic programs sweep: a memory x core grid, or a matrix.

With a core part and a memory part, the cheapest way into a pair is the least of four: stay, come
from the cheapest pair of the same memory clock plus the core part, from the cheapest of the same
core clock plus the memory part, or from the cheapest of all plus both. On a grid, one row a memory
clock and one column a core clock, that is O(1) a pair and vectorises. Cells of the grid that are
no pair, or not allowed, cost `BIG`. Pairs that would fill the grid too thinly use the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .problem import Problem
from .switch_model import ConstantStall, Free, Lag, MatrixStall, TwoPartStall

__all__ = ["BIG", "StallCost", "stall_cost"]

Array = NDArray[np.float64]

BIG = 1e30  # stands for infinity: 0 * BIG is 0, and sums of it do not overflow


@dataclass(frozen=True, eq=False)
class StallCost:
    """Where each choosable pair sits among G states, and what going between states costs.

    Attributes:
        pair: (G,) int32, the problem's pair of each state, or -1 for a hole of the grid.
        n_mem: rows of the grid; G / n_mem columns.
        core: (2,) time in ns and energy in mJ of a core change.
        mem: (2,) time and energy of a memory change.
        matrix: (2, G, G) time and energy, or None where the grid holds them.
    """

    pair: NDArray[np.int32]
    n_mem: int
    core: tuple[float, float]
    mem: tuple[float, float]
    matrix: Array | None

    @property
    def n_states(self) -> int:
        """G."""
        return len(self.pair)

    @property
    def worst(self) -> tuple[float, float]:
        """The largest time (ns) and the largest energy (mJ) of one switch."""
        if self.matrix is not None:
            return float(self.matrix[0].max()), float(self.matrix[1].max())
        mem = self.mem if self.n_mem > 1 else (0.0, 0.0)
        return self.core[0] + mem[0], self.core[1] + mem[1]

    def between(self, old: NDArray[np.int32], new: NDArray[np.int32]) -> tuple[Array, Array]:
        """Time and energy from states ``old`` to states ``new``, broadcast."""
        if self.matrix is not None:
            return self.matrix[0][old, new], self.matrix[1][old, new]
        columns = self.n_states // self.n_mem
        core = (old % columns != new % columns).astype(np.float64)
        mem = (old // columns != new // columns).astype(np.float64)
        return (
            core * self.core[0] + mem * self.mem[0],
            core * self.core[1] + mem * self.mem[1],
        )


def stall_cost(problem: Problem) -> StallCost:
    """Lay a problem's choosable pairs out for its stall model (lag is laid out as free)."""
    assert problem.allowed is not None
    chosen = np.flatnonzero(problem.allowed).astype(np.int32)
    switch = problem.switch
    if isinstance(switch, Free | Lag):
        return StallCost(chosen, 1, (0.0, 0.0), (0.0, 0.0), None)
    if isinstance(switch, ConstantStall):
        return StallCost(chosen, 1, (switch.time_ns, switch.energy_mj), (0.0, 0.0), None)
    if isinstance(switch, MatrixStall):
        grid = np.ix_(chosen, chosen)
        matrix = np.stack([switch.time_ns[grid], switch.energy_mj[grid]])
        return StallCost(chosen, 1, (0.0, 0.0), (0.0, 0.0), matrix)
    return _two_part(problem, switch, chosen)


def _two_part(problem: Problem, switch: TwoPartStall, chosen: NDArray[np.int32]) -> StallCost:
    cores = sorted({problem.pairs[f].core_mhz or 0 for f in chosen})
    mems = sorted({problem.pairs[f].mem_mhz or 0 for f in chosen})
    core = (switch.core_time_ns, switch.core_energy_mj)
    mem = (switch.mem_time_ns, switch.mem_energy_mj)
    at = [
        mems.index(problem.pairs[f].mem_mhz or 0) * len(cores)
        + cores.index(problem.pairs[f].core_mhz or 0)
        for f in chosen
    ]
    if len(cores) * len(mems) <= 2 * len(chosen):
        pair = np.full(len(cores) * len(mems), -1, dtype=np.int32)
        pair[at] = chosen
        return StallCost(pair, len(mems), core, mem, None)
    position = np.array(at)
    row, column = position // len(cores), position % len(cores)
    new_core = column[:, None] != column[None, :]
    new_mem = row[:, None] != row[None, :]
    matrix = np.stack(
        [new_core * core[0] + new_mem * mem[0], new_core * core[1] + new_mem * mem[1]]
    )
    return StallCost(chosen, 1, (0.0, 0.0), (0.0, 0.0), matrix)
