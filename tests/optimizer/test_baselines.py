"""Every baseline is a schedule of the same step, costed like the schedule it stands beside."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from clockwright.data.schedule import Alternative
from clockwright.optimizer.baselines import BEST_SINGLE, FREE, PASS_LEVEL, compare, recommend
from clockwright.optimizer.from_trace import from_trace
from clockwright.optimizer.pass_level import best_by_phase
from clockwright.optimizer.plan import played_cost, solve_step
from clockwright.optimizer.switch_model import ConstantStall, Free, Lag, MatrixStall, TwoPartStall
from tests.optimizer.steps import random_trace

PHASES = ["forward"] * 4 + ["backward"] * 5 + ["optimizer"] * 2 + ["forward"]
MATRIX = np.random.default_rng(5).uniform(0, 4e4, (4, 4)) * (1 - np.eye(4))
SWITCHES = [
    Free(),
    ConstantStall(2e4, 3.0),
    TwoPartStall(5e3, 2e4, 1.0, 4.0),
    MatrixStall(MATRIX, MATRIX * 1e-4),
]


def make(seed, switch=SWITCHES[0]):
    return from_trace(random_trace(seed, phases=PHASES)).with_switch(switch)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: type(switch).__name__)
@pytest.mark.parametrize("budget", [0.0, 0.05, 0.2])
def test_pass_level_is_the_best_of_all_combinations(seed, switch, budget):
    step = make(seed, switch)
    limit_ns = step.problem.budget_time_ns(budget)
    names = sorted(set(PHASES))
    best = np.inf
    for pairs in itertools.product(np.flatnonzero(step.problem.allowed), repeat=len(names)):
        of = dict(zip(names, pairs, strict=True))
        cost = played_cost(step, np.array([of[phase] for phase in PHASES], np.int32))
        if cost[0] <= limit_ns:
            best = min(best, cost[1])
    found = best_by_phase(step, np.array(PHASES, dtype=object), budget)
    if found is None:
        assert best == np.inf
    else:
        assert found.cost[1] == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("switch", [Free(), ConstantStall(2e3)], ids=["free", "stall"])
def test_the_order_of_the_baselines_is_that_of_their_freedom(seed, switch):
    step = make(seed, switch)
    entries = {entry.name: entry for entry in compare(step, 0.05)}
    schedule = solve_step(step, 0.05)
    single, by_phase, free = (entries[name] for name in (BEST_SINGLE, PASS_LEVEL, FREE))
    slack = 1 + 1e-5
    assert free.energy_mj <= schedule.energy_mj * slack
    assert schedule.energy_mj <= by_phase.energy_mj * slack
    assert by_phase.energy_mj <= single.energy_mj
    assert entries["governor"].saving == 0.0
    assert all(entry.within_budget for entry in (single, by_phase, free))


def test_the_best_single_pair_is_the_cheapest_within_the_budget():
    step = make(3)
    costs = [played_cost(step, np.full(12, pair, np.int32)) for pair in (1, 2, 3)]
    for budget in (0.0, 0.1, 0.5, 2.0):
        limit_ns = step.problem.budget_time_ns(budget)
        entry = next(e for e in compare(step, budget) if e.name == BEST_SINGLE)
        assert entry.energy_mj == min(energy for time, energy in costs if time <= limit_ns)


def test_a_budget_no_single_pair_meets_is_told():
    trace = random_trace(3, phases=PHASES)
    slow = trace.profile["pair"] != 0
    trace.profile.loc[slow, "duration_ns"] = trace.profile.loc[slow, "duration_ns"] * 1.1
    entry = next(e for e in compare(from_trace(trace), 0.0) if e.name == BEST_SINGLE)
    assert not entry.within_budget
    assert "fastest" in entry.note


def test_power_caps_appear_where_the_trace_has_them():
    trace = random_trace(3, phases=PHASES)
    step = from_trace(trace)
    base = step.problem
    rows = [
        {"power_w": 250, "time_ns": base.baseline_time_ns * 1.01, "energy_mj": 1.0},
        {"power_w": 200, "time_ns": base.baseline_time_ns * 1.5, "energy_mj": 0.5},
    ]
    capped = replace(step, trace=replace(trace, gpu={**trace.gpu, "power_caps": rows}))
    entry = next(e for e in compare(capped, 0.02) if e.name == "power cap")
    assert entry.pairs == ("250 W",)
    assert not any(e.name == "power cap" for e in compare(step, 0.02))


@pytest.mark.parametrize("seed", range(4))
def test_under_lag_pass_level_lies_between_a_single_pair_and_no_lag(seed):
    free = next(e for e in compare(make(seed), 0.1) if e.name == PASS_LEVEL)
    for latency_ns in (1e3, 5e4, 1e7):
        step = make(seed, Lag(latency_ns, 0.0))
        entries = {entry.name: entry for entry in compare(step, 0.1)}
        found = entries[PASS_LEVEL]
        assert found.within_budget
        assert found.energy_mj <= entries[BEST_SINGLE].energy_mj
        assert found.energy_mj >= free.energy_mj * (1 - 1e-9)


def test_a_change_is_requested_a_latency_ahead():
    # With a latency shorter than any kernel, a request one kernel ahead is in good time.
    step = make(2, Lag(1e3, 0.0))
    by_phase = best_by_phase(step, np.array(PHASES, dtype=object), 0.1)
    without = best_by_phase(make(2), np.array(PHASES, dtype=object), 0.1)
    assert by_phase.pair_of_phase == without.pair_of_phase
    assert by_phase.cost == pytest.approx(without.cost)


def entry(name, saving, within=True):
    return Alternative(name, 1.0, 1.0, 0.0, saving, within_budget=within)


@pytest.mark.parametrize(
    ("saving", "single", "noise", "expected"),
    [
        (0.10, 0.05, 0.0, "schedule"),
        (0.10, 0.0999, 0.0, "best single pair"),
        (0.10, 0.08, 0.03, "best single pair"),
        (0.0005, 0.0, 0.0, "baseline"),
        (0.02, 0.01, 0.03, "baseline"),
    ],
)
def test_what_is_recommended(saving, single, noise, expected):
    assert recommend(saving, (entry(BEST_SINGLE, single),), noise) == expected


def test_a_single_pair_over_the_budget_is_not_recommended():
    assert recommend(0.1, (entry(BEST_SINGLE, 0.2, within=False),)) == "schedule"
