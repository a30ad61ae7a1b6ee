"""Tiny random problems and their optimum by enumeration, with sums of its own."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from clockwright.data.units import ClockPair
from clockwright.optimizer import (
    ConstantStall,
    Free,
    MatrixStall,
    Problem,
    SwitchModel,
    TwoPartStall,
)

__all__ = ["brute_force", "problems", "total"]

GRID = [ClockPair(c, m) for m in (800, 1600) for c in (1000, 1500, 2000)]


@st.composite
def switches(draw: st.DrawFn, n: int, kinds: tuple[str, ...]) -> SwitchModel:
    kind = draw(st.sampled_from(kinds))
    cost = st.integers(0, 40)
    if kind == "constant":
        return ConstantStall(draw(cost), draw(cost))
    if kind == "two-part":
        return TwoPartStall(draw(cost), draw(cost), draw(cost), draw(cost))
    if kind == "matrix":
        # No triangle inequality: a real table has none.
        cells = draw(st.lists(cost, min_size=2 * n * n, max_size=2 * n * n))
        table = np.array(cells, dtype=float).reshape(2, n, n)
        table[:, range(n), range(n)] = 0
        return MatrixStall(table[0], table[1])
    return Free()


@st.composite
def problems(
    draw: st.DrawFn, kinds: tuple[str, ...] = ("free", "constant", "two-part", "matrix")
) -> Problem:
    pairs = draw(st.lists(st.sampled_from(GRID), min_size=1, max_size=4, unique=True))
    n, f = draw(st.integers(1, 6)), len(pairs)
    rows = draw(st.integers(1, n))
    cell = st.integers(0, 100)
    table = np.array(draw(st.lists(cell, min_size=2 * rows * f, max_size=2 * rows * f)), float)
    time, energy = table.reshape(2, rows, f)

    def maybe(values: st.SearchStrategy[float], size: int) -> np.ndarray | None:
        array = draw(st.none() | st.lists(values, min_size=size, max_size=size))
        return None if array is None else np.array(array)

    scales = st.sampled_from([0.5, 1.0, 2.0])
    row = np.array(draw(st.lists(st.integers(0, rows - 1), min_size=n, max_size=n)))
    gap = maybe(st.sampled_from([0.0, 0.0, 10.0, 30.0]), n)
    # 1e6 W for 1 ns is 1 mJ: idle energy on the scale of the cells.
    idle = (
        None
        if gap is None
        else np.array(draw(st.lists(st.integers(0, 3), min_size=f, max_size=f))) * 1e6
    )
    return Problem(
        tuple(pairs),
        time,
        energy,
        row,
        baseline_time_ns=float(draw(st.integers(1, 60 * n))),
        baseline_energy_mj=100.0,
        time_scale=maybe(scales, n),
        energy_scale=maybe(scales, n),
        gap_ns=gap,
        idle_power_w=idle,
        switch=draw(switches(f, kinds)),
        boundary=maybe(st.booleans(), n),
        cyclic=draw(st.booleans()),
    )


def total(problem: Problem, choice: tuple[int, ...]) -> tuple[Fraction, Fraction] | None:
    """Exact ns and mJ of a schedule; None if it switches where it must not."""
    time = energy = Fraction(0)
    n = len(choice)
    for k, f in enumerate(choice):
        r = problem.row[k]
        ts = 1 if problem.time_scale is None else Fraction(problem.time_scale[k])
        es = 1 if problem.energy_scale is None else Fraction(problem.energy_scale[k])
        time += ts * Fraction(problem.time_ns[r, f])
        energy += es * Fraction(problem.energy_mj[r, f])
        before = choice[k - 1] if k or problem.cyclic else f
        if problem.gap_ns is not None and problem.idle_power_w is not None:
            time += Fraction(problem.gap_ns[k])
            energy += Fraction(problem.gap_ns[k]) * Fraction(problem.idle_power_w[before]) / 10**6
        if before != f:
            if problem.boundary is not None and not problem.boundary[k]:
                return None
            dt, de = stall(problem.switch, problem.pairs, before, f)
            time, energy = time + Fraction(dt), energy + Fraction(de)
    assert n
    return time, energy


def stall(
    switch: SwitchModel, pairs: tuple[ClockPair, ...], old: int, new: int
) -> tuple[float, float]:
    match switch:
        case ConstantStall(t, e):
            return t, e
        case TwoPartStall(ct, mt, ce, me):
            core, mem = (a != b for a, b in zip(pairs[old], pairs[new], strict=True))
            return core * ct + mem * mt, core * ce + mem * me
        case MatrixStall():
            return float(switch.time_ns[old, new]), float(switch.energy_mj[old, new])
        case _:
            return 0.0, 0.0


def brute_force(problem: Problem, limit_ns: float) -> tuple[Fraction | None, Fraction]:
    """The least energy within the limit (None if none is), and the least time."""
    best, least = None, None
    for choice in itertools.product(range(problem.n_pairs), repeat=problem.n_items):
        found = total(problem, choice)
        if found is None:
            continue
        time, energy = found
        least = time if least is None else min(least, time)
        if time <= Fraction(limit_ns) and (best is None or energy < best):
            best = energy
    assert least is not None
    return best, least
