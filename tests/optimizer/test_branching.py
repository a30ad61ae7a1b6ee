"""One long kernel that no multiplier settles: its states are split, and bounds hold."""

from __future__ import annotations

import numpy as np
import pytest

from clockwright.data.units import ClockPair
from clockwright.optimizer import Problem, TwoPartStall, solve, solver
from clockwright.optimizer.dual import Point
from clockwright.optimizer.instance import build_instance
from clockwright.optimizer.splice import splice

PAIRS = tuple(ClockPair(1000 + 50 * core, mem) for mem in (5000, 9000) for core in range(6))


def step(seed: int, layers: int = 24, head: float = 0.2) -> Problem:
    """Equal layers and a head that takes a fifth of the step."""
    rng = np.random.default_rng(seed)
    kinds = 12
    slower = np.sort(rng.uniform(0, 0.5, (kinds, len(PAIRS))), axis=1)[:, ::-1]
    time_ns = rng.lognormal(11, 1, (kinds, 1)) * (1 + slower)
    energy_mj = 250e-6 * time_ns * (1 - 0.8 * slower + rng.normal(0, 0.02, slower.shape))
    row = np.concatenate([np.tile(np.arange(kinds - 1), layers), [kinds - 1]])
    scale = head * time_ns[row[:-1], -1].sum() / time_ns[-1, -1]
    time_ns[-1] *= scale
    energy_mj[-1] *= scale
    return Problem(
        PAIRS,
        time_ns,
        energy_mj,
        row,
        baseline_time_ns=float(time_ns[row, -1].sum()),
        baseline_energy_mj=float(energy_mj[row, -1].sum()),
        switch=TwoPartStall(2e3, 5e3),
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_step_with_a_long_head_is_certified(seed: int) -> None:
    problem = step(seed)
    found = solve(problem, 0.02, tolerance=1e-4, time_limit_s=30)
    assert found.gap <= 1e-4
    assert found.time_ns <= problem.budget_time_ns(0.02)


def test_branches_bound_what_a_full_program_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = step(5, layers=2)
    plain = solve(problem, 0.02, method="full-ilp-highs", tolerance=1e-7)
    assert plain.gap < 1e-6
    exact = solve(problem, 0.02, tolerance=0.0)
    assert exact.energy_mj == pytest.approx(plain.energy_mj, rel=1e-6)
    # Few labels: bounds come from the branches alone.
    monkeypatch.setattr(solver, "_CAPS", (1, 2))
    rough = solve(problem, 0.02, tolerance=0.0)
    assert "branching" in rough.method
    assert rough.lower_bound_mj <= exact.energy_mj * (1 + 1e-12)
    assert rough.energy_mj >= exact.energy_mj * (1 - 1e-12)


def test_paths_that_differ_everywhere_are_spliced_at_a_window() -> None:
    inst = build_instance(step(1))
    paths = [np.full(inst.n_blocks, f, dtype=np.int32) for f in (11, 10)]
    under, over = (Point(path, *inst.total(path)) for path in paths)
    if over.time_ns < under.time_ns:
        under, over = over, under
    budget_ns = (under.time_ns + over.time_ns) / 2
    time_ns, energy_mj = inst.total(splice(inst, under, over, budget_ns))
    assert time_ns <= budget_ns
    assert energy_mj < under.energy_mj
