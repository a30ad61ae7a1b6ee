"""The solver against enumeration on tiny problems, for every stall model."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clockwright.data.errors import InfeasibleError
from clockwright.optimizer import Problem, solve
from tests.optimizer.tiny import brute_force, problems, total


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), budget=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_agrees_with_enumeration(problem: Problem, budget: float) -> None:
    best, least = brute_force(problem, problem.budget_time_ns(budget))
    if best is None:
        with pytest.raises(InfeasibleError) as caught:
            solve(problem, budget)
        assert caught.value.least_slowdown == pytest.approx(
            float(least) / problem.baseline_time_ns - 1, rel=1e-9, abs=1e-9
        )
        return
    answer = solve(problem, budget, tolerance=0.0)
    assert answer.energy_mj == pytest.approx(float(best), rel=1e-12, abs=1e-12)
    assert answer.lower_bound_mj <= float(best) * (1 + 1e-15)
    assert answer.gap <= 1e-12
    exact = total(problem, tuple(answer.choice.tolist()))
    assert exact is not None
    assert exact[0] <= Fraction(problem.budget_time_ns(budget)) * (1 + Fraction(1, 2**52))
    assert answer.time_ns == pytest.approx(float(exact[0]), rel=1e-15)
    changed = np.flatnonzero(np.diff(answer.choice)) + 1
    assert set(changed) <= set(answer.request_item.tolist())
    assert np.array_equal(answer.choice[answer.request_item], answer.request_pair)
