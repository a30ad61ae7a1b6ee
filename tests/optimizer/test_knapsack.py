"""Free switches: the knapsack search closes what the dual leaves, and its bounds hold."""

from __future__ import annotations

import numpy as np
import pytest

from clockwright.data.units import ClockPair
from clockwright.optimizer import Free, Problem, knapsack, solve, solver

PAIRS = tuple(ClockPair(1000 + 10 * f, 5000) for f in range(12))


def step(seed: int, kinds: int, repeats: int, *, scaled: bool = False) -> Problem:
    """Kernels of very different length, each kind repeated: what makes permutations alike."""
    rng = np.random.default_rng(seed)
    slower = np.sort(rng.uniform(0, 0.4, (kinds, len(PAIRS))), axis=1)
    time_ns = rng.lognormal(10, 2, (kinds, 1)) * (1 + slower)
    energy_mj = 250e-6 * time_ns * (1 - 1.5 * slower + rng.normal(0, 0.01, slower.shape))
    row = np.tile(np.arange(kinds), repeats)
    scale = rng.choice([0.5, 1.0, 3.0], len(row)) if scaled else np.ones(len(row))
    return Problem(
        PAIRS,
        time_ns,
        energy_mj,
        row,
        baseline_time_ns=float(scale @ time_ns[row, 0]),
        baseline_energy_mj=float(scale @ energy_mj[row, 0]),
        time_scale=scale if scaled else None,
        energy_scale=scale if scaled else None,
        switch=Free(),
    )


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("budget", [0.006, 0.05])
def test_a_step_of_repeated_layers_is_solved_to_the_end(budget: float, scaled: bool) -> None:
    problem = step(1, 40, 24, scaled=scaled)
    found = solve(problem, budget, tolerance=1e-8, time_limit_s=60)
    assert found.gap <= 1e-8
    assert found.time_ns <= problem.budget_time_ns(budget)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_hold_whatever_the_caps_and_hairs_drop(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = step(seed, 6, 3)
    best = solve(problem, 0.03, method="full-ilp-highs", tolerance=1e-9)
    assert best.gap < 1e-7
    exact = solve(problem, 0.03, tolerance=0.0)
    assert exact.energy_mj == pytest.approx(best.energy_mj, rel=1e-7)
    assert exact.gap < 1e-12
    for passes in (((3.0, 2),), ((10.0, 10),), ((np.inf, 1),), ((1e3, 5), (np.inf, 20))):
        monkeypatch.setattr(knapsack, "_PASSES", passes)
        monkeypatch.setattr(solver, "_MOST_ILP_CELLS", 0)
        rough = solve(problem, 0.03, tolerance=0.0)
        assert rough.energy_mj >= exact.energy_mj * (1 - 1e-12)
        assert rough.lower_bound_mj <= exact.energy_mj * (1 + 1e-12)


def test_two_solves_give_one_answer() -> None:
    first, second = (solve(step(2, 30, 8), 0.01, tolerance=1e-8) for _ in range(2))
    assert first.choice.tolist() == second.choice.tolist()
    assert first.lower_bound_mj == second.lower_bound_mj
