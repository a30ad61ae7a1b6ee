"""Lag against brute force: every optimum, every bound and every refusal of tiny problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from clockwright.data.errors import InfeasibleError
from clockwright.optimizer import Problem, solve
from tests.optimizer.tiny_lag import brute_force_lag, lag_problems, play


def check(problem: Problem, slowdown: float) -> None:
    """The solved energy is the enumerated one, or what is refused has no schedule."""
    best, least = brute_force_lag(problem, problem.budget_time_ns(slowdown))
    if best is None:
        with pytest.raises(InfeasibleError) as refused:
            solve(problem, slowdown, time_limit_s=20, tolerance=1e-9)
        assert refused.value.least_slowdown == pytest.approx(
            float(least) / problem.baseline_time_ns - 1, abs=1e-9
        )
        return
    found = solve(problem, slowdown, time_limit_s=20, tolerance=1e-9)
    assert found.time_ns <= problem.budget_time_ns(slowdown)
    assert found.lower_bound_mj <= float(best) + 1e-6
    assert found.energy_mj == pytest.approx(float(best), rel=1e-9, abs=1e-9)
    assert found.status == "optimal" or best == 0
    replayed(problem, found)


def replayed(problem: Problem, found) -> None:
    """The requests alone, played event by event, give the schedule and its sums."""
    asked: list[int | None] = [None] * problem.n_items
    for item, pair in zip(found.request_item.tolist(), found.request_pair.tolist(), strict=True):
        asked[item] = pair
    first = int(found.choice[0])
    if problem.cyclic and len(found.request_pair):
        first = int(found.request_pair[-1])
    elif len(found.request_item) and found.request_item[0] == 0:
        pairs = range(problem.n_pairs)
        first = next(f for f in pairs if runs_as(problem, f, asked, found.choice))
    outcome = play(problem, first, tuple(asked))
    assert outcome is not None
    assert outcome[2] == found.choice.tolist()
    assert float(outcome[0]) == pytest.approx(found.time_ns)
    assert float(outcome[1]) == pytest.approx(found.energy_mj)


def runs_as(problem: Problem, first: int, asked: list[int | None], choice: np.ndarray) -> bool:
    outcome = play(problem, first, tuple(asked))
    return outcome is not None and outcome[2] == choice.tolist()


@settings(max_examples=150, deadline=None)
@given(problem=lag_problems())
def test_solved_energy_is_the_enumerated_optimum(problem):
    check(problem, 0.0)
