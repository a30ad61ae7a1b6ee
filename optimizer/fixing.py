"""Exact fixing by reduced cost, and the network of what remains.

At multiplier m the cheapest schedule through block k at state g costs forward + backward - cell. If
that, less m * budget, is not under the energy of a schedule in hand (less what we no longer care to
gain), no better schedule runs block k at state g, and the cell is dropped. The closed walk is cut
at one block; each start state that could still win has its own network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .instance import Instance
from .switch_cost import BIG
from .viterbi import Sweeper

__all__ = ["Network", "build_network"]

Array = NDArray[np.float64]

_MOST_CELLS = 40_000_000  # forward and backward values of more blocks x states are not kept


@dataclass(frozen=True, eq=False)
class Network:
    """Surviving cells, block by block from the cut.

    Attributes:
        turn: the block the step is cut at; position i is block (turn + i) mod N.
        start: the state at position 0, where the walk ends too; None if the step does not repeat.
        ptr: (N + 1,) int64, the cells of position i are ptr[i] .. ptr[i + 1] - 1.
        state: (A,) int32 of each cell.
        time_ns: (A,) ns.
        energy_mj: (A,) mJ.
    """

    turn: int
    start: int | None
    ptr: NDArray[np.int64]
    state: NDArray[np.int32]
    time_ns: Array
    energy_mj: Array

    @property
    def n_cells(self) -> int:
        """A."""
        return len(self.state)


def build_network(
    inst: Instance, multiplier: float, turn: int, start: int | None, limit: float
) -> Network | None:
    """Cells through which a walk may cost less than ``limit`` (mJ, the budget's share added).

    Returns:
        The network, empty if no walk is left, or None if the instance is too large to keep.
    """
    n, g = inst.n_blocks, inst.n_states
    if n * g > _MOST_CELLS:
        return None
    sweeper = Sweeper(inst, 1.0, multiplier)
    states = np.arange(g, dtype=np.int32)
    v0, vn = np.zeros(g), np.zeros(g)
    if start is not None:
        v0 = np.full(g, BIG)
        v0[start] = 0.0
        vn = sweeper.weight(states, np.full(1, start, dtype=np.int32))
    forward, backward = np.empty((n, g)), np.empty((n, g))
    sweeper.run(v0, turn, keep=forward)
    sweeper.run(vn, turn, reverse=True, keep=backward)
    order = (np.arange(n) + turn) % n
    ptr = np.zeros(n + 1, dtype=np.int64)
    scales = (inst.tscale, inst.escale, inst.hold, inst.idle)
    fixed = (inst.time, inst.energy, inst.row[order], order, scales, inst.plain, multiplier)
    none = np.empty(0, dtype=np.int32)
    _survivors(forward, backward, limit, *fixed, ptr, none, np.empty(0), np.empty(0))
    count = int(ptr[-1])
    state = np.empty(count, dtype=np.int32)
    time, energy = np.empty(count), np.empty(count)
    _survivors(forward, backward, limit, *fixed, ptr, state, time, energy)
    return Network(turn, start, ptr, state, time, energy)


@compiled()
def _survivors(
    forward: Array,
    backward: Array,
    limit: float,
    time: Array,
    energy: Array,
    row: NDArray[np.int32],
    order: NDArray[np.int64],
    scales: tuple[Array, Array, Array, Array],
    plain: bool,
    multiplier: float,
    ptr: NDArray[np.int64],
    state: NDArray[np.int32],
    out_time: Array,
    out_energy: Array,
) -> None:
    """Count the surviving cells of each position into ``ptr``; fill them if ``state`` has room."""
    tscale, escale, hold, idle = scales
    n = row.size
    at = 0
    for i in range(n):
        r, k = row[i], order[i]
        for g in range(forward.shape[1]):
            t, e = time[r, g], energy[r, g]
            if not plain:
                t, e = tscale[k] * t, escale[k] * e + hold[k] * idle[g]
            if forward[i, g] + backward[n - 1 - i, g] - (e + multiplier * t) < limit:
                if state.size:
                    state[at], out_time[at], out_energy[at] = g, t, e
                at += 1
        ptr[i + 1] = at
