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
from numpy.typing import NDArray

from .compiled import compiled, fast, inner
from .instance import Instance
from .switch_cost import BIG

__all__ = ["Sweeper"]

Array = NDArray[np.float64]

_KEEP_CELLS = 6_000_000  # value vectors kept whole below this many cells (48 MB)
_BLOCK_CELLS = 64_000  # what a recomputed stretch holds: 512 KB, to stay in the second-level cache


# Inner loops run over whole contiguous views, which is what lets LLVM vectorise them.
@fast()
def _block_cost(c: Array, e: Array, t: Array, idle: Array, x: float, y: float, z: float) -> None:
    if z == 0.0:
        for f in range(c.size):
            c[f] = x * e[f] + y * t[f]
    else:
        for f in range(c.size):
            c[f] = x * e[f] + y * t[f] + z * idle[f]


@fast()
def _least(v: Array) -> float:
    low: float = v[0]
    for j in range(v.size):
        x = v[j]
        low = x if x < low else low
    return low


@fast()
def _lower(column: Array, v: Array) -> None:
    for j in range(column.size):
        x, y = v[j], column[j]
        column[j] = x if x < y else y


@fast()
def _relax(out: Array, v: Array, column: Array, line: float, c: Array) -> None:
    for j in range(out.size):
        x, y = v[j], column[j]
        low = x if x < line else line
        out[j] = (y if y < low else low) + c[j]


@fast()
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
    """out[g] = c[g] + min over f of v[f] + cost(f, g); ``column`` is (G / n_mem,) scratch."""
    if weight.size:
        for f in range(v.size):
            out[f] = v[f]
        for f in range(v.size):
            if v[f] < BIG / 2:
                base, into = v[f], weight[f]
                for g in range(out.size):
                    w = base + into[g]
                    out[g] = w if w < out[g] else out[g]
        for g in range(out.size):
            out[g] += c[g]
        return
    width = column.size
    for j in range(width):
        column[j] = v[j]
    for m in range(1, n_mem):
        _lower(column, v[m * width : (m + 1) * width])
    every = _least(column)
    for j in range(width):
        low = column[j] + mem
        column[j] = low if low < every + core + mem else every + core + mem
    for m in range(n_mem):
        vm, cm = v[m * width : (m + 1) * width], c[m * width : (m + 1) * width]
        _relax(out[m * width : (m + 1) * width], vm, column, _least(vm) + core, cm)


@compiled()
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
    tscale, escale, hold, idle = scales
    n = row.size
    v = v0.copy()
    out = np.empty_like(v)
    c = np.empty_like(v)
    column = np.empty(v.size // n_mem)
    x, y, z = a, b, 0.0
    for i in range(lo, hi):
        k = (turn + (n - 1 - i if reverse else i)) % n
        if not plain:
            x, y, z = a * escale[k], b * tscale[k], a * hold[k]
        _block_cost(c, energy[row[k]], time[row[k]], idle, x, y, z)
        if i == lo:
            for f in range(v.size):
                v[f] += c[f]
        else:
            _step(v, c, out, column, n_mem, core, mem, weight)
            v, out = out, v
        if keep.shape[0] and (i - lo) % stride == 0:
            line = keep[(i - lo) // stride]
            for f in range(v.size):
                line[f] = v[f]
    return v


@inner()
def _predecessor(v: Array, g: int, n_mem: int, core: float, mem: float, weight: Array) -> int:
    """The state f with the least v[f] + cost(f, g); g itself on a tie."""
    best, who = v[g], g
    if weight.size:
        for f in range(v.size):
            if v[f] + weight[f, g] < best:
                best, who = v[f] + weight[f, g], f
        return who
    # Most blocks stay: if even the cheapest state plus the cheapest switch is dearer, so is all.
    if best <= _least(v) + (min(core, mem) if n_mem > 1 else core):
        return who
    width = v.size // n_mem
    row, col = g // width, g % width
    for m in range(n_mem):
        base = mem if m != row else 0.0
        vm = v[m * width : (m + 1) * width]
        for j in range(width):
            w = vm[j] + (base + core if j != col else base)
            if w < best:
                best, who = w, m * width + j
    return who


@compiled()
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
    for i in range(hi - 1, lo, -1):
        g = path[(turn + i) % n]
        path[(turn + i - 1) % n] = _predecessor(values[i - 1 - lo], g, n_mem, core, mem, weight)


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
        stride = 1
        if n * g > _KEEP_CELLS:
            stride = max(2, _BLOCK_CELLS // g, n * g // _KEEP_CELLS)
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
