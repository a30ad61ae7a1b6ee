"""The integer programs: the plain one as a reference, and the certificate over their claims."""

from __future__ import annotations

import numpy as np
import pytest

from clockwright.data.errors import InfeasibleError, InputError
from clockwright.data.units import ClockPair
from clockwright.optimizer import (
    ConstantStall,
    Free,
    MatrixStall,
    Problem,
    SwitchModel,
    TwoPartStall,
    solve,
)
from clockwright.optimizer.deadline import Deadline
from clockwright.optimizer.ilp import LinearModel, run_ilp

PAIRS = tuple(ClockPair(c, m) for m in (800, 1600) for c in (1000, 1500, 2000))


def random_problem(seed: int, switch: SwitchModel, *, cyclic: bool = True) -> Problem:
    rng = np.random.default_rng(seed)
    time = rng.uniform(10, 300, (12, len(PAIRS)))
    energy = rng.uniform(1, 30, (12, len(PAIRS)))
    row = np.arange(12)
    return Problem(PAIRS, time, energy, row, 1500.0, 200.0, switch=switch, cyclic=cyclic)


def matrix() -> MatrixStall:
    rng = np.random.default_rng(7)
    table = rng.uniform(1, 20, (2, 6, 6)) * (1 - np.eye(6))
    return MatrixStall(table[0], table[1] / 10)


@pytest.mark.parametrize("cyclic", [True, False])
@pytest.mark.parametrize(
    "switch", [Free(), ConstantStall(15, 2), TwoPartStall(5, 20, 1, 3), matrix()]
)
def test_plain_program_and_solver_agree(switch: SwitchModel, cyclic: bool) -> None:
    problem = random_problem(3, switch, cyclic=cyclic)
    ours = solve(problem, 0.0, tolerance=0.0)
    plain = solve(problem, 0.0, method="full-ilp-highs")
    assert ours.energy_mj == pytest.approx(plain.energy_mj, rel=1e-9)
    assert ours.gap < 1e-12
    assert plain.status == "optimal"
    assert plain.lower_bound_mj <= ours.energy_mj * (1 + 1e-12)


@pytest.mark.parametrize("backend", ["cpsat", "scip"])
def test_other_back_ends_bound_the_same_optimum(backend: str) -> None:
    problem = random_problem(5, TwoPartStall(5, 20, 1, 3))
    ours = solve(problem, 0.0, tolerance=0.0)
    plain = solve(problem, 0.0, method=f"full-ilp-{backend}", tolerance=1e-6)  # type: ignore[arg-type]
    assert plain.energy_mj >= ours.energy_mj * (1 - 1e-12)
    assert plain.lower_bound_mj <= ours.energy_mj * (1 + 1e-9)
    assert plain.gap < 1e-4


def test_a_back_end_that_would_overrun_is_killed() -> None:
    # A market split problem (Cornuejols and Dawande, 1998): hopeless for branch and bound.
    rng = np.random.default_rng(0)
    n, m = 60, 6
    table = rng.integers(0, 100, (m, n)).astype(float)
    half = np.floor(table.sum(axis=1) / 2)
    row, column = np.divmod(np.arange(m * n), n)
    model = LinearModel(
        np.zeros(n), np.ones(n, dtype=bool), row, column, table.ravel() + 0.5, half, half
    )
    deadline = Deadline(4.0)
    assert run_ilp(model, "highs", deadline).x is None
    assert deadline.elapsed_s < 8.0


def test_too_large_a_plain_program_is_refused() -> None:
    rng = np.random.default_rng(1)
    pairs = tuple(ClockPair(100 + c, None) for c in range(200))
    cost = np.ones((200, 200)) - np.eye(200)
    time, energy = rng.uniform(1, 2, (2, 1000, 200))
    problem = Problem(
        pairs, time, energy, np.arange(1000), 2000.0, 1.0, switch=MatrixStall(cost, cost)
    )
    with pytest.raises(InputError, match="method auto"):
        solve(problem, 0.0, method="full-ilp-highs")


def test_a_budget_no_schedule_meets_is_told_apart_from_a_limit() -> None:
    problem = random_problem(3, Free())
    tight = Problem(PAIRS, problem.time_ns, problem.energy_mj, problem.row, 100.0, 200.0)
    with pytest.raises(InfeasibleError):
        solve(tight, 0.0, method="full-ilp-highs")
