"""Tiny problems with lagging switches, played out event by event over several laps."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from clockwright.optimizer import Lag, Problem
from tests.optimizer.tiny import GRID

__all__ = ["brute_force_lag", "lag_problems", "play"]


@st.composite
def lag_problems(draw: st.DrawFn) -> Problem:
    pairs = draw(st.lists(st.sampled_from(GRID), min_size=1, max_size=3, unique=True))
    n, f = draw(st.integers(1, 5)), len(pairs)
    if f == 3:
        n = min(n, 4)
    cells = draw(st.lists(st.integers(0, 100), min_size=2 * n * f, max_size=2 * n * f))
    time, energy = np.array(cells, dtype=float).reshape(2, n, f)
    wait = st.integers(0, 150)
    latency: float | np.ndarray = float(draw(wait))
    if draw(st.booleans()):
        latency = np.array(draw(st.lists(wait, min_size=f * f, max_size=f * f)), float)
        latency = latency.reshape(f, f) * (1 - np.eye(f))
    gap = draw(st.none() | st.lists(st.sampled_from([0.0, 10.0, 30.0]), min_size=n, max_size=n))
    idle = None
    if gap is not None:
        power = st.integers(0, 3)
        idle = np.array(draw(st.lists(power, min_size=f, max_size=f))) * 1e6
    boundary = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
    return Problem(
        tuple(pairs),
        time,
        energy,
        np.arange(n),
        float(draw(st.integers(1, 80 * n))),
        100.0,
        gap_ns=None if gap is None else np.array(gap),
        idle_power_w=idle,
        switch=Lag(latency, float(draw(st.integers(0, 200)))),
        boundary=None if boundary is None else np.array(boundary),
        cyclic=draw(st.booleans()),
    )


def play(
    problem: Problem, first: int, asked: tuple[int | None, ...]
) -> tuple[Fraction, Fraction, list[int]] | None:
    """ns, mJ and pairs of the last of four laps, two to settle; None if a request breaks a rule."""
    switch = problem.switch
    assert isinstance(switch, Lag)
    n, now, held, clock = len(asked), first, first, Fraction(0)
    flight: tuple[int, Fraction] | None = None
    last: Fraction | None = None
    laps = 4 if problem.cyclic else 1
    for lap in range(laps):
        judged = lap > 1 or not problem.cyclic
        time = energy = Fraction(0)
        ran = []
        for k in range(n):
            gap = Fraction(0) if problem.gap_ns is None else Fraction(problem.gap_ns[k])
            # The pair the item before ran at holds through the gap.
            power = 0.0 if problem.idle_power_w is None else problem.idle_power_w[held]
            time, energy = time + gap, energy + gap * Fraction(power) / 10**6
            if lap or k:
                clock += gap
            if flight is not None and clock >= flight[1]:
                now, flight = flight[0], None
            wish = asked[k]
            if wish is not None:
                late = last is not None and clock - last < Fraction(switch.min_dwell_ns)
                barred = problem.boundary is not None and not problem.boundary[k]
                if barred or (judged and (flight is not None or late or wish == now)):
                    return None
                latency = switch.latency_ns
                wait = latency if isinstance(latency, float) else latency[now, wish]
                last, flight = clock, (wish, clock + Fraction(float(wait)))
                if wait == 0:
                    now, flight = wish, None
            took = Fraction(problem.time_ns[k, now])
            clock, time = clock + took, time + took
            energy += Fraction(problem.energy_mj[k, now])
            ran.append(now)
            held = now
    return time, energy, ran


def brute_force_lag(problem: Problem, limit_ns: float) -> tuple[Fraction | None, Fraction]:
    """The least energy within the limit (None if none is), and the least time."""
    best, least = None, None
    f, n = problem.n_pairs, problem.n_items
    for asked in itertools.product([None, *range(f)], repeat=n):
        wishes = [w for w in asked if w is not None]
        firsts = [wishes[-1]] if problem.cyclic and wishes else range(f)
        for first in firsts:
            found = play(problem, first, asked)
            if found is None:
                continue
            least = found[0] if least is None else min(least, found[0])
            if found[0] <= Fraction(limit_ns) and (best is None or found[1] < best):
                best = found[1]
    assert least is not None
    return best, least
