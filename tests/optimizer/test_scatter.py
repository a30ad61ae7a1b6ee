"""Lag schedules whose latencies scatter: played by hand, by a simulated GPU, and planned for."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from clockwright.data import tables
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.optimizer import Lag, Problem, solve
from clockwright.optimizer.baselines import PASS_LEVEL
from clockwright.optimizer.request import Request, optimize_trace
from clockwright.optimizer.scatter import (
    LatencySpread,
    play_scattered,
    spread_of_table,
    with_lead,
)
from clockwright.tracer.gpu.simulated import Noise, SwitchBehaviour, TablePlayer
from tests.optimizer.steps import make_trace

FAST, SLOW = ClockPair(1800, 5000), ClockPair(600, 5000)
PAIRS = (FAST, SLOW)
NONE = LatencySpread((0.0, 1.0), (1.0, 1.0))
WIDE = LatencySpread((0.05, 0.5, 0.95, 0.99), (0.7, 1.0, 1.4, 2.0))


def problem(latency_ns=2e6, dwell_ns=0.0, kernels=200):
    """Half a step of kernels that wait on memory, half of ones that triple their time."""
    time = np.array([[1e5, 1.02e5], [1e5, 3e5]])
    energy = np.array([[30.0, 15.0], [30.0, 35.0]])
    row = np.repeat([0, 1], kernels // 2)
    base_ns, base_mj = float(time[row, 0].sum()), float(energy[row, 0].sum())
    return Problem(
        PAIRS, time, energy, row.astype(np.int32), base_ns, base_mj, FAST,
        switch=Lag(latency_ns, dwell_ns),
    )  # fmt: skip


def requests_of(solution):
    return solution.request_item, solution.request_pair


def test_without_scatter_only_cut_kernels_differ():
    step = problem()
    found = solve(step, 0.02)
    played = play_scattered(step, found.choice, requests_of(found), NONE, samples=5)
    assert found.n_switches == 2
    assert played.time_sd_ns == pytest.approx(0, abs=1e-3)
    assert abs(played.more_ns) <= 3e5  # at most one kernel at the other pair
    assert played.samples == 5


def test_a_hand_played_step():
    # SLOW is asked for at item 10 and comes 2.5 kernels later; FAST at 50, after 2 ms at SLOW.
    step = problem()
    items, pairs = np.array([10, 50], dtype=np.int32), np.array([1, 0], dtype=np.int32)
    spread = LatencySpread((0.0, 1.0), (1.25, 1.25))
    choice = np.zeros(200, dtype=np.int32)
    choice[13:70] = 1
    played = play_scattered(step, choice, (items, pairs), spread, samples=3)
    slow_from = 10 + 2.5e6 / 1e5
    slow_to = 50 + 2.5e6 / 1.02e5
    time_ns = (200 - (slow_to - slow_from)) * 1e5 + (slow_to - slow_from) * 1.02e5
    assert played.time_ns == pytest.approx(time_ns)
    assert played.energy_mj == pytest.approx(30 * 200 - 15 * (slow_to - slow_from))


def test_late_arrivals_cost_what_the_simulated_gpu_says():
    step = problem()
    found = solve(step, 0.02)
    played = play_scattered(step, found.choice, requests_of(found), WIDE, samples=2000)
    behaviour = SwitchBehaviour(kind="lag", core_ns=2e6, mem_ns=0.0, spread=0.2)
    gpu = TablePlayer(
        step.time_ns, step.energy_mj, list(PAIRS), baseline=FAST, switch=behaviour,
        noise=Noise.none(), name="table",
    )  # fmt: skip
    asked = {
        int(item): PAIRS[int(pair)]
        for item, pair in zip(found.request_item, found.request_pair, strict=True)
    }
    gpu.lock(PAIRS[int(found.request_pair[-1])])
    rows = step.row.astype(np.int64)
    times = [gpu.run(rows, requests=asked).time_ns for _ in range(400)][1:]
    sigmas = np.array([-2, -1, 0, 1, 2])
    like = LatencySpread((0.02, 0.16, 0.5, 0.84, 0.98), tuple(np.exp(0.2 * sigmas)))
    same = play_scattered(step, found.choice, requests_of(found), like, samples=2000)
    standard_error = np.std(times) / np.sqrt(len(times))
    allowed_ns = 5 * standard_error + 2e-4 * step.baseline_time_ns
    assert same.time_ns == pytest.approx(np.mean(times), abs=allowed_ns)
    assert played.more_ns > 0


def test_planning_with_lead_costs_less_in_the_end():
    step = problem()
    means = {}
    for name, switch in (("median", step.switch), ("lead", with_lead(step, WIDE))):
        found = solve(dataclasses.replace(step, switch=switch), 0.02)
        means[name] = play_scattered(
            step, found.choice, requests_of(found), WIDE, samples=1000
        ).time_ns
    assert means["lead"] < means["median"]


def test_lead_lengthens_only_the_way_up():
    latency = np.asarray(with_lead(problem(), WIDE).latency_ns)
    assert latency[0, 1] == 2e6
    assert latency[1, 0] == pytest.approx(2e6 * WIDE.at(0.75))
    assert WIDE.at(0.75) > 1


def test_a_table_of_medians_has_no_spread():
    medians = tables.SWITCHES.frame(
        pd.DataFrame({"from_core_mhz": [600], "to_core_mhz": [1800], "latency_ns_p50": [1e6],
                      "provenance": ["measured"]})
    )  # fmt: skip
    assert spread_of_table(medians) is None
    assert spread_of_table(None) is None
    wide = medians.assign(latency_ns_p95=2e6)
    assert spread_of_table(wide).ratio == (1.0, 2.0)


def test_equal_seeds_play_alike():
    step = problem()
    found = solve(step, 0.02)
    requests = requests_of(found)
    one, same, other = (
        play_scattered(step, found.choice, requests, WIDE, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize("confidence", [None, 0.95])
def test_the_budget_holds_with_scatter_and_the_file_tells(confidence):
    step = problem()
    switches = pd.DataFrame(
        [
            {
                "from_core_mhz": a.core_mhz, "from_mem_mhz": 5000, "to_core_mhz": b.core_mhz,
                "to_mem_mhz": 5000, "latency_ns_p5": 1.5e6, "latency_ns_p50": 2e6,
                "latency_ns_p95": 3e6, "latency_ns_p99": 5e6, "provenance": "measured",
            }
            for a, b in ((FAST, SLOW), (SLOW, FAST))
        ]
    )  # fmt: skip
    time, energy = (np.hstack([t[:, :1], t]) for t in (step.time_ns, step.energy_mj))
    trace = make_trace(
        time, energy, step.row, (GOVERNOR, *PAIRS), switches=tables.SWITCHES.frame(switches),
        semantic="lag", sd=(1e-4 * time, 1e-4 * energy), n=5,
    )  # fmt: skip
    schedule = optimize_trace(trace, Request(0.02, confidence=confidence))
    scatter = schedule.extra["scatter"]
    assert scatter["samples"] > 0
    assert schedule.predicted.slowdown <= 0.02
    assert schedule.predicted.saving > 0.1
    assert schedule.predicted.time_ns == pytest.approx(scatter["time_ns"])
    assert schedule.switch_model["latency_over_median"]["p95"] == 1.5
    if confidence:
        assert schedule.extra["noise"]["slowdown_limit"] <= 0.02
        low, high = schedule.predicted.slowdown_interval
        assert low < schedule.extra["noise"]["slowdown"] < high
    assert schedule.recommendation == "schedule"


def test_a_schedule_is_no_worse_than_one_pair_a_phase():
    """Where scatter undoes the solver's finer schedule, one pair a phase is the schedule."""
    time = np.array([[1e5, 1e5, 1.02e5], [1e5, 1e5, 3e5]])
    energy = np.array([[30.0, 30.0, 15.0], [30.0, 30.0, 35.0]])
    rows = np.repeat([0, 1], 100)
    switches = pd.DataFrame(
        [
            {
                "from_core_mhz": a.core_mhz, "from_mem_mhz": 5000, "to_core_mhz": b.core_mhz,
                "to_mem_mhz": 5000, "latency_ns_p50": 2e6, "latency_ns_p95": 5e6,
                "provenance": "measured",
            }
            for a, b in ((FAST, SLOW), (SLOW, FAST))
        ]
    )  # fmt: skip
    trace = make_trace(
        time, energy, rows, (GOVERNOR, *PAIRS), switches=tables.SWITCHES.frame(switches),
        semantic="lag", sd=(1e-4 * time, 1e-4 * energy), n=5,
        phases=["forward"] * 100 + ["backward"] * 100,
    )  # fmt: skip
    for budget in (0.01, 0.03, 0.1):
        schedule = optimize_trace(trace, Request(budget))
        rival = next(entry for entry in schedule.baselines if entry.name == PASS_LEVEL)
        assert schedule.predicted.saving >= rival.saving - 1e-3
        assert schedule.predicted.slowdown <= budget
