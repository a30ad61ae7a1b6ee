"""Lag against brute force, and its proofs, deadlines and trivial cases.

Every optimum, bound and refusal of tiny problems is that of an event-by-event enumeration.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from clockwright.data.errors import InfeasibleError, InputError
from clockwright.data.units import ClockPair
from clockwright.optimizer import Lag, Problem, Solution, solve
from clockwright.optimizer.certificate import LAG_SLACK_NS, play_requests
from tests.optimizer.tiny import GRID
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
    assert found.gap <= 1e-8 or best == 0
    check_replay(problem, found)


def check_replay(problem: Problem, found: Solution) -> None:
    """The requests alone, played event by event, give the schedule and its sums."""
    asked: list[int | None] = [None] * problem.n_items
    for item, pair in zip(found.request_item.tolist(), found.request_pair.tolist(), strict=True):
        asked[item] = pair
    firsts = [int(found.choice[0])]
    if problem.cyclic and len(found.request_pair):
        firsts = [int(found.request_pair[-1])]
    elif len(found.request_pair) and found.request_item[0] == 0:
        firsts = list(range(problem.n_pairs))  # a request without latency hides the first pair
    played = [play(problem, first, tuple(asked)) for first in firsts]
    outcome = next(p for p in played if p is not None and p[2] == found.choice.tolist())
    assert float(outcome[0]) == pytest.approx(found.time_ns)
    assert float(outcome[1]) == pytest.approx(found.energy_mj)


@settings(max_examples=150, deadline=None)
@given(problem=lag_problems())
def test_solved_energy_is_the_enumerated_optimum(problem):
    check(problem, 0.0)


def seeded(seed: int, n: int = 6, **more) -> Problem:
    """Two pairs, six kernels: kernels of 10 to 40 ns, latencies and dwells of the same size."""
    rng = np.random.default_rng(seed)
    time_ns = rng.integers(10, 40, (n, 2)).astype(float)
    energy_mj = rng.integers(1, 100, (n, 2)).astype(float)
    options = {
        "baseline_time_ns": float(np.round(time_ns.mean(axis=1).sum())),
        "baseline_energy_mj": float(energy_mj.mean(axis=1).sum()),
        "switch": Lag(float(rng.integers(0, 60)), float(rng.integers(0, 80))),
    }
    return Problem(tuple(GRID[:2]), time_ns, energy_mj, np.arange(n), **(options | more))


@pytest.mark.parametrize("cyclic", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_dwell_and_lead(seed, cyclic):
    check(seeded(seed, cyclic=cyclic), 0.05)


@pytest.mark.parametrize("seed", range(8))
def test_gaps_and_boundaries(seed):
    rng = np.random.default_rng(100 + seed)
    check(
        seeded(
            seed,
            gap_ns=rng.choice([0.0, 7.0, 50.0], 6),
            idle_power_w=np.array([1e6, 3e6]),
            boundary=rng.random(6) < 0.5,
        ),
        0.05,
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_full_matrix_of_latencies(seed):
    rng = np.random.default_rng(200 + seed)
    latency = np.array([[0.0, rng.integers(0, 90)], [rng.integers(0, 90), 0.0]])
    check(seeded(seed, switch=Lag(latency, float(rng.integers(0, 30)))), 0.05)


def test_a_request_crosses_the_end_of_the_step():
    # The last kernel is where pair 1 must be asked for if the first is to run at it.
    time_ns = np.full((4, 2), 10.0)
    energy_mj = np.array([[9.0, 1.0], [9.0, 1.0], [1.0, 9.0], [1.0, 9.0]])
    problem = Problem(
        tuple(GRID[:2]), time_ns, energy_mj, np.arange(4), 40.0, 20.0, switch=Lag(10.0, 0.0)
    )
    found = solve(problem, 0.0)
    assert found.choice.tolist() == [1, 1, 0, 0]
    assert found.request_item.tolist() == [1, 3]
    assert found.request_pair.tolist() == [0, 1]
    check(problem, 0.0)
    check(replace(problem, cyclic=False), 0.0)


def test_kernels_in_flight_run_at_the_old_pair():
    time_ns = np.full((6, 2), 10.0)
    energy_mj = np.array([[5.0, 9.0]] * 3 + [[9.0, 5.0]] * 3)
    problem = Problem(
        tuple(GRID[:2]), time_ns, energy_mj, np.arange(6), 60.0, 42.0, switch=Lag(25.0, 0.0)
    )
    found = solve(problem, 0.0)
    first, last = found.request_item.tolist()
    # 25 ns are over at the third kernel from a request.
    assert found.choice.tolist() == [0, 0, 0, 1, 1, 1]
    assert (first, last) == (0, 3)
    assert play_requests(problem, 0, found.request_item, found.request_pair).tolist() == [
        0, 0, 0, 1, 1, 1,
    ]  # fmt: skip


def test_requests_keep_the_dwell():
    problem = steps(seed=3, kernels=400, switch=Lag(3e5, 2e6))
    found = solve(problem, 0.05, time_limit_s=20)
    starts = np.cumsum(problem.time_ns[problem.row, found.choice])
    starts = np.concatenate([[0.0], starts[:-1]])[found.request_item]
    apart = np.diff(np.append(starts, starts[0] + found.time_ns))
    assert len(starts) > 2
    assert apart.min() >= 2e6 - 2 * LAG_SLACK_NS


def steps(seed: int, kernels: int, switch: Lag, pairs: int = 12) -> Problem:
    """A roofline step with kernels of 30 us on average and compute and memory phases."""
    rng = np.random.default_rng(seed)
    core, mem = np.linspace(1.0, 2.5, pairs // 2), np.array([1.0, 1.6])
    compute = 0.5 + 0.5 * np.sin(np.arange(kernels) / 30)
    slow = np.maximum(
        compute[:, None, None] * core[None, :, None], (1 - compute[:, None, None]) * mem
    )
    base_ns = rng.exponential(3e4, kernels)[:, None]
    time_ns = base_ns * slow.reshape(kernels, -1)
    power_w = (60 + 240 / core[:, None] ** 2 + 60 / mem).ravel()
    return Problem(
        tuple(ClockPair(int(2000 / c), int(9000 / m)) for c in core for m in mem),
        time_ns,
        time_ns * power_w * 1e-6,
        np.arange(kernels),
        float(time_ns[:, 0].sum()),
        float((time_ns[:, 0] * power_w[0] * 1e-6).sum()),
        switch=switch,
    )


@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_kernels_are_proven(seed):
    found = solve(steps(seed, 500, Lag(5e5, 2e6)), 0.03, time_limit_s=20, tolerance=1e-7)
    assert found.gap <= 1e-7
    assert found.n_switches > 0


@pytest.mark.parametrize("cyclic", [True, False])
def test_a_step_with_no_time_for_two_requests(cyclic):
    # One dwell is as long as the step: a step that repeats stays at one pair.
    problem = steps(1, 60, Lag(1e5, 3e6))
    problem = replace(problem, cyclic=cyclic, switch=Lag(1e5, problem.baseline_time_ns * 0.9))
    found = solve(problem, 0.02, time_limit_s=20, tolerance=1e-9)
    assert found.gap <= 1e-8
    assert (found.n_switches == 0) or not cyclic


@pytest.mark.parametrize("limit_s", [1e-3, 0.2])
@pytest.mark.parametrize("cyclic", [True, False])
def test_the_deadline_is_hard(limit_s, cyclic):
    problem = replace(steps(2, 6_000, Lag(5e6, 2e7), pairs=80), cyclic=cyclic)
    solve(problem, 0.03, time_limit_s=limit_s)  # compiled, and its pages touched
    begin = time.monotonic()
    found = solve(problem, 0.03, time_limit_s=limit_s, tolerance=1e-12)
    assert time.monotonic() - begin < limit_s + 1.0
    assert found.status == "limit"
    assert found.time_ns <= problem.budget_time_ns(0.03)
    assert 0 < found.lower_bound_mj <= found.energy_mj
    assert found.gap == pytest.approx(1 - found.lower_bound_mj / found.energy_mj)


def test_a_bound_under_a_deadline_holds():
    problem = steps(4, 300, Lag(5e5, 2e6))
    best = solve(problem, 0.03, time_limit_s=20, tolerance=1e-9)
    assert best.gap <= 1e-8
    for limit_s in (1e-4, 0.01, 0.05, 0.2):
        found = solve(problem, 0.03, time_limit_s=limit_s, tolerance=1e-9)
        assert found.lower_bound_mj <= best.energy_mj * (1 + 1e-9)
        assert found.energy_mj >= best.energy_mj * (1 - 2e-8)


def test_two_runs_are_equal():
    problem = steps(5, 300, Lag(5e5, 2e6))
    one, two = (solve(problem, 0.03, time_limit_s=30) for _ in range(2))
    assert one.choice.tolist() == two.choice.tolist()
    assert one.lower_bound_mj == two.lower_bound_mj


def test_one_pair_and_one_kernel():
    one_pair = seeded(0)
    one_pair = replace(
        one_pair,
        pairs=one_pair.pairs[:1],
        time_ns=one_pair.time_ns[:, :1],
        energy_mj=one_pair.energy_mj[:, :1],
        allowed=None,
    )
    found = solve(one_pair, 1.0)
    assert (found.gap, found.n_switches) == (0.0, 0)
    check(seeded(1, n=1), 0.5)


def test_other_methods_are_refused():
    with pytest.raises(InputError, match="method auto"):
        solve(seeded(0), 1.0, method="full-ilp-highs")
