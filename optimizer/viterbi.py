"""Dynamic-programming sweeps over blocks x states, compiled.

A block's cost at a state is ``a * mJ + b * ns``: a = 1 and b = multiplier for the Lagrangian, a = 0
and b = 1 for the shortest time. A sweep keeps the value vector of every ``stride``-th block; the
trace back recomputes what lies between and finds each predecessor again, so that a million blocks
x 550 states need a few megabytes and not gigabytes of back pointers (the checkpointing of Grice,
Hughey and Speck, CABIOS 13(1), 1997).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .instance import Instance
from .switch_cost import BIG

__all__ = ["Sweeper"]

Array = NDArray[np.float64]

_KEEP_CELLS = 6_000_000  # value vectors kept whole below this many cells (48 MB)
_FAST = {"nnan", "ninf", "nsz", "contract"}


@njit(cache=True, nogil=True, fastmath=_FAST)
def _block_cost(
    c: Array,
    k: int,
    time: Array,
    energy: Array,
    row: NDArray[np.int32],
    scales: tuple[Array, Array, Array, Array],
    plain: bool,
    a: float,
    b: float,
) -> None:
    tscale, escale, hold, idle = scales
    r = row[k]
    if plain:
        for f in range(c.size):
            c[f] = a * energy[r, f] + b * time[r, f]
    else:
        x, y, z = a * escale[k], b * tscale[k], a * hold[k]
        for f in range(c.size):
            c[f] = x * energy[r, f] + y * time[r, f] + z * idle[f]


@njit(cache=True, nogil=True, fastmath=_FAST)
def _step(
    v: Array,
    c: Array,
    out: Array,
    column: Array,
    n_mem: int,
    core: float,
    mem: float,
    weight: Array,
) -> None:
    """out[g] = c[g] + min over f of v[f] + cost(f, g)."""
    g_count = v.size
    if weight.size:
        for g in range(g_count):
            out[g] = v[g]
        for f in range(g_count):
            base = v[f]
            if base < BIG / 2:
                for g in range(g_count):
                    out[g] = min(out[g], base + weight[f, g])
        for g in range(g_count):
            out[g] += c[g]
        return
    n_core = g_count // n_mem
    for j in range(n_core):
        column[j] = v[j]
    for m in range(1, n_mem):
        for j in range(n_core):
            column[j] = min(column[j], v[m * n_core + j])
    every = column[0]
    for j in range(n_core):
        every = min(every, column[j])
    if n_mem == 1:
        for j in range(n_core):
            out[j] = min(v[j], every + core) + c[j]
        return
    for j in range(n_core):
        column[j] = min(column[j] + mem, every + core + mem)
    for m in range(n_mem):
        lo = m * n_core
        line = v[lo]
        for j in range(n_core):
            line = min(line, v[lo + j])
        line += core
        for j in range(n_core):
            out[lo + j] = min(min(v[lo + j], line), column[j]) + c[lo + j]


@njit(cache=True, nogil=True)
def _sweep(
    v0: Array,
    turn: int,
    lo: int,
    hi: int,
    reverse: bool,
    keep: Array,
    stride: int,
    time: Array,
    energy: Array,
    row: NDArray[np.int32],
    scales: tuple[Array, Array, Array, Array],
    plain: bool,
    a: float,
    b: float,
    n_mem: int,
    core: float,
    mem: float,
    weight: Array,
) -> Array:
    """Advance from position lo (whose cost v0 lacks) to hi - 1; keep every stride-th vector."""
    n = row.size
    v = v0.copy()
    out = np.empty_like(v)
    c = np.empty_like(v)
    column = np.empty_like(v)
    for i in range(lo, hi):
        k = (turn + (n - 1 - i if reverse else i)) % n
        _block_cost(c, k, time, energy, row, scales, plain, a, b)
        if i == lo:
            for f in range(v.size):
                v[f] += c[f]
        else:
            _step(v, c, out, column, n_mem, core, mem, weight)
            v, out = out, v
        if keep.shape[0] and (i - lo) % stride == 0:
            keep[(i - lo) // stride] = v
    return v


@njit(cache=True, nogil=True)
def _trace(
    path: NDArray[np.int32],
    turn: int,
    lo: int,
    hi: int,
    values: Array,
    n_mem: int,
    core: float,
    mem: float,
    weight: Array,
) -> None:
    """Fill positions lo .. hi - 2 of a path from the state at hi - 1; values[i - lo] is at i."""
    n = path.size
    n_core = values.shape[1] // n_mem
    for i in range(hi - 1, lo, -1):
        g = path[(turn + i) % n]
        best, who = values[i - 1 - lo, g], g
        for f in range(values.shape[1]):
            if weight.size:
                w = weight[f, g]
            else:
                w = (core if f % n_core != g % n_core else 0.0) + (
                    mem if f // n_core != g // n_core else 0.0
                )
            if f != g and values[i - 1 - lo, f] + w < best:
                best, who = values[i - 1 - lo, f] + w, f
        path[(turn + i - 1) % n] = who


@dataclass(frozen=True, eq=False)
class Sweeper:
    """Sweeps of one instance at one cost, ``a`` mJ + ``b`` ns."""

    instance: Instance
    a: float
    b: float

    def _switch(self) -> tuple[int, float, float, Array]:
        stall = self.instance.stall
        core = self.a * stall.core[1] + self.b * stall.core[0]
        mem = self.a * stall.mem[1] + self.b * stall.mem[0]
        weight = np.empty((0, 0))
        if stall.matrix is not None:
            weight = self.a * stall.matrix[1] + self.b * stall.matrix[0]
        return stall.n_mem, core, mem, weight

    def weight(self, old: NDArray[np.int32], new: NDArray[np.int32]) -> Array:
        """Cost of going from states ``old`` to ``new``, broadcast."""
        stall_ns, stall_mj = self.instance.stall.between(old, new)
        return self.a * stall_mj + self.b * stall_ns

    def cost(self, k: int) -> Array:
        """(G,) cost of block k."""
        time, energy = self.instance.block_cells(k)
        return self.a * energy + self.b * time

    def run(
        self,
        v0: Array,
        turn: int,
        *,
        reverse: bool = False,
        lo: int = 0,
        hi: int | None = None,
        keep: Array | None = None,
        stride: int = 1,
    ) -> Array:
        """Value at the last position of a sweep that begins at block ``turn`` with ``v0``.

        A reverse sweep runs from the block before ``turn`` back to ``turn``, with the switch costs
        the other way round.
        """
        inst = self.instance
        n_mem, core, mem, weight = self._switch()
        return _sweep(
            v0,
            turn,
            lo,
            inst.n_blocks if hi is None else hi,
            reverse,
            np.empty((0, 0)) if keep is None else keep,
            stride,
            inst.time,
            inst.energy,
            inst.row,
            (inst.tscale, inst.escale, inst.hold, inst.idle),
            inst.plain,
            self.a,
            self.b,
            n_mem,
            core,
            mem,
            np.ascontiguousarray(weight.T) if reverse else weight,
        )

    def path(self, v0: Array, turn: int, terminal: Array) -> tuple[float, NDArray[np.int32]]:
        """The cheapest path from ``v0`` at block ``turn`` around to ``terminal`` after the last."""
        n, g = self.instance.n_blocks, self.instance.n_states
        stride = 1 if n * g <= _KEEP_CELLS else max(2, int(n**0.5))
        count = (n - 1) // stride + 1
        kept = np.empty((count, g))
        last = self.run(v0, turn, keep=kept, stride=stride) + terminal
        path = np.empty(n, dtype=np.int32)
        state = int(np.argmin(last))
        path[(turn + n - 1) % n] = state
        switch = self._switch()
        if stride == 1:
            _trace(path, turn, 0, n, kept, *switch)
            return float(last[state]), path
        block = np.empty((stride + 1, g))
        zero = np.zeros(g)
        for j in range(count - 1, -1, -1):
            lo, hi = j * stride, min((j + 1) * stride + 1, n)
            # kept[j] holds block lo's own cost; the sweep adds it again, so take it off.
            start = kept[j] - self.cost((turn + lo) % n) if g else zero
            self.run(start, turn, lo=lo, hi=hi, keep=block, stride=1)
            block[0] = kept[j]
            _trace(path, turn, lo, hi, block, *switch)
        return float(last[state]), path
