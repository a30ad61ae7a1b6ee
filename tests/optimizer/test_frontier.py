"""A front agrees with single solves, its bounds hold, and it costs one sweep."""

import re
from dataclasses import replace

import numpy as np
import pytest

from clockwright.optimizer.baselines import single_pair_choices
from clockwright.optimizer.from_trace import from_trace
from clockwright.optimizer.frontier import default_budgets, frontier, offer_choices, share_schedules
from clockwright.optimizer.plan import solve_step
from clockwright.optimizer.switch_model import ConstantStall, Free, TwoPartStall
from tests.optimizer.steps import random_trace

BUDGETS = (0.0, 0.01, 0.03, 0.08, 0.2)


def step_of(switch, seed=1, kernels=12, signatures=5):
    return from_trace(random_trace(seed, kernels, signatures)).with_switch(switch)


@pytest.mark.parametrize("switch", [Free(), ConstantStall(2e3, 0.1), TwoPartStall(1e3, 5e3)])
def test_every_point_matches_its_own_solve_and_every_bound_holds(switch):
    step = step_of(switch)
    for point in frontier(step, BUDGETS).points:
        alone = solve_step(step, point.budget)
        assert point.energy_mj == pytest.approx(alone.energy_mj, rel=2e-5)
        assert point.time_ns <= step.problem.budget_time_ns(point.budget)
        assert point.lower_bound_mj <= alone.energy_mj * (1 + 1e-12)


def test_energy_falls_and_bounds_fall_with_the_budget():
    front = frontier(step_of(ConstantStall(2e3)))
    assert [point.budget for point in front.points] == list(default_budgets())
    energies = [point.energy_mj for point in front.points]
    bounds = [point.lower_bound_mj for point in front.points]
    assert energies == sorted(energies, reverse=True)
    assert bounds == sorted(bounds, reverse=True)


def test_dearer_switches_never_save_more():
    fronts = [frontier(step_of(ConstantStall(cost)), BUDGETS) for cost in (0.0, 1e3, 1e5)]
    for points in zip(*(front.points for front in fronts), strict=True):
        energies = np.array([point.energy_mj for point in points])
        assert (np.diff(energies) >= -2e-5 * energies[:-1]).all()


def test_a_front_takes_what_a_dearer_one_found():
    steps = [step_of(ConstantStall(cost)) for cost in (1e3, 1e5)]
    fronts = [frontier(step, BUDGETS) for step in steps]
    none = replace(fronts[0], points=tuple(
        replace(point, time_ns=None, energy_mj=None, choice=None) for point in fronts[0].points
    ))  # fmt: skip
    cheap, dear = share_schedules(steps, (none, fronts[1]))
    for mine, theirs, own in zip(cheap.points, dear.points, fronts[0].points, strict=True):
        assert own.energy_mj * (1 - 2e-5) <= mine.energy_mj <= theirs.energy_mj
        assert mine.time_ns <= steps[0].problem.budget_time_ns(mine.budget)


def test_a_long_step_is_settled_by_the_sweep():
    budgets = len(default_budgets())
    front = frontier(step_of(ConstantStall(1e3), kernels=1500, signatures=1500), tolerance=1e-4)
    closed = int(re.search(r"(\d+) budgets closed", front.method)[1])
    assert closed <= budgets // 5
    assert max(point.gap for point in front.points) <= 1e-4


def test_budgets_no_schedule_meets_have_no_point():
    trace = random_trace(1)
    slow = trace.profile["pair"] != 0
    trace.profile.loc[slow, "duration_ns"] = trace.profile.loc[slow, "duration_ns"] * 1.05
    first, *_, last = frontier(from_trace(trace), BUDGETS).points
    assert first.energy_mj is None
    assert first.gap is None
    assert last.energy_mj is not None


def test_a_front_takes_in_what_was_found_elsewhere_and_nothing_worse():
    step = step_of(ConstantStall(1e3))
    front = frontier(step, BUDGETS)
    best = [point.choice for point in front.points]
    slow = replace(front, points=tuple(
        replace(point, time_ns=None, energy_mj=None, choice=None) for point in front.points
    ))  # fmt: skip
    for point, own in zip(offer_choices(step, slow, best).points, front.points, strict=True):
        assert point.energy_mj == pytest.approx(own.energy_mj, rel=1e-12)
    assert offer_choices(step, front, single_pair_choices(step)).points == front.points


def test_single_pairs_are_offered_where_a_schedule_may_use_them():
    step = step_of(Free())
    choices = single_pair_choices(step)
    locked = [f for f, pair in enumerate(step.problem.pairs) if not pair.is_governor]
    assert [int(choice[0]) for choice in choices] == locked
    assert all((choice == choice[0]).all() for choice in choices)
