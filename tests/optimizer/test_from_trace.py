"""A trace becomes the problem a reader would write down by hand, or one clear refusal."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from clockwright.data.errors import InputError
from clockwright.data.trace import Baseline
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.optimizer.certificate import evaluate
from clockwright.optimizer.from_trace import from_trace
from tests.optimizer.steps import PAIRS, make_trace, random_trace
from tests.strategies import traces

TIME = [[1000.0, 1000.0, 1100.0, 1000.0], [2000.0, 2000.0, 2600.0, 2200.0]]
ENERGY = [[0.3, 0.25, 0.2, 0.24], [0.5, 0.45, 0.4, 0.44]]


def test_a_single_stream_becomes_its_kernels_in_order(small_trace):
    step = from_trace(small_trace)
    problem = step.problem
    assert problem.row.tolist() == [0, 1, 0]
    assert problem.baseline_time_ns == 4000.0
    assert problem.baseline_energy_mj == pytest.approx(1.1)
    assert problem.baseline_pair == GOVERNOR
    assert step.relaxed is None
    assert problem.gap_ns is None


def test_launches_and_own_scales_multiply_a_kernel():
    trace = make_trace(TIME, ENERGY, [0, 1], PAIRS, launches=[3, 1], durations=[3000, 1000])
    trace.timeline["time_scale"] = np.array([1.0, 0.5])
    trace.timeline["energy_scale"] = np.array([2.0, 1.0])
    problem = from_trace(trace).problem
    assert problem.time_scale.tolist() == [3.0, 0.5]
    assert problem.energy_scale.tolist() == [6.0, 1.0]
    assert problem.baseline_time_ns == 4000.0
    assert problem.baseline_energy_mj == pytest.approx(2.3)


def test_gaps_of_the_timeline_count_with_the_idle_power_of_the_held_pair():
    trace = make_trace(
        TIME, ENERGY, [0, 1], PAIRS, starts=[0, 1500], idle_power_w=[100.0, 90.0, 60.0, 80.0]
    )
    problem = from_trace(trace).problem
    assert problem.gap_ns.tolist() == [0.0, 500.0]
    assert problem.baseline_time_ns == 3500.0
    assert problem.baseline_energy_mj == pytest.approx(0.8 + 500 * 100 * 1e-6)
    cost = evaluate(problem, np.array([2, 1]))
    assert cost.energy_mj == pytest.approx(0.2 + 0.45 + 500 * 60 * 1e-6)


def test_gaps_without_idle_power_are_told():
    step = from_trace(make_trace(TIME, ENERGY, [0, 1], PAIRS, starts=[0, 1500]))
    assert any("idle power is unknown" in note for note in step.notes)


def without_cell(trace, signature, pair, column=None):
    profile = trace.profile
    here = (profile["signature"] == signature) & (profile["pair"] == pair)
    if column is None:
        return replace(trace, profile=profile[~here].reset_index(drop=True)).checked()
    profile = profile.copy()
    profile.loc[here, column] = None
    return replace(trace, profile=profile).checked()


def test_a_missing_cell_names_kernel_and_pair():
    trace = without_cell(random_trace(1), 2, 3)
    with pytest.raises(InputError, match=r"'kernel2' has no time at 1800/5000"):
        from_trace(trace)


def test_a_missing_energy_is_a_missing_cell():
    trace = without_cell(random_trace(1), 2, 3, "energy_mj")
    with pytest.raises(InputError, match=r"'kernel2' has no energy at 1800/5000"):
        from_trace(trace)


def test_incomplete_pairs_are_dropped_on_request():
    step = from_trace(without_cell(random_trace(1), 2, 3), drop_incomplete_pairs=True)
    assert ClockPair(1800, 5000) not in step.problem.pairs
    assert any("left out" in note for note in step.notes)


def test_a_cell_of_a_signature_that_is_never_launched_may_be_missing():
    trace = make_trace(TIME, ENERGY, [0, 0], PAIRS)
    assert from_trace(without_cell(trace, 1, 2)).problem.n_pairs == 4


def test_a_governor_without_cells_stands_by_its_own_measurement():
    trace = without_cell(make_trace(TIME, ENERGY, [0, 1], PAIRS), 1, 0)
    trace = replace(trace, baseline=Baseline(GOVERNOR, 3100.0, 0.9))
    step = from_trace(trace)
    assert step.baseline is None
    assert (step.problem.baseline_time_ns, step.problem.baseline_energy_mj) == (3100.0, 0.9)
    assert step.notes[0].startswith("1 of 2 signatures have no cell at the governor")
    bare = without_cell(trace, 0, 0)
    assert not any("no cell" in note for note in from_trace(bare).notes)


def test_a_baseline_that_is_not_there_lists_the_nearest():
    with pytest.raises(InputError, match=r"1750/9000 is not among .* nearest are 1800/9000"):
        from_trace(random_trace(1), baseline="1750/9000")


def test_the_baseline_falls_back_to_the_governor_then_the_highest_pair():
    trace = random_trace(1)
    elsewhere = replace(trace, baseline=Baseline(ClockPair(1, 1), None, None))
    assert from_trace(elsewhere).problem.baseline_pair == GOVERNOR
    locked = make_trace(TIME, ENERGY, [0, 1], [ClockPair(9, 9), *PAIRS[1:]])
    locked = replace(locked, baseline=Baseline(ClockPair(1, 1), None, None))
    assert from_trace(locked).problem.baseline_pair == ClockPair(1800, 9000)


def test_the_spread_fills_its_holes_with_the_median_relative_one():
    sd = (np.full((2, 4), 10.0), np.full((2, 4), 0.01))
    trace = make_trace(TIME, ENERGY, [0, 1], PAIRS, sd=sd)
    trace.profile.loc[0, "duration_sd_ns"] = None
    step = from_trace(trace)
    others = np.delete((sd[0] / np.asarray(TIME)).ravel(), 0)
    assert step.sd[0][0, 0] == pytest.approx(np.median(others) * 1000.0)
    assert any("duration_sd_ns is unknown" in note for note in step.notes)
    assert from_trace(random_trace(1)).sd is None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_the_baselines_own_cells_add_up_to_the_baseline(trace):
    if len(trace.pairs) == 1:
        with pytest.raises(InputError, match="only one is the governor"):
            from_trace(trace)
        return
    step = from_trace(trace)
    problem = replace(step.problem, allowed=np.ones(step.problem.n_pairs, bool))
    cost = evaluate(problem, np.zeros(problem.n_items, np.int32))
    assert cost.time_ns == problem.baseline_time_ns
    assert cost.energy_mj == problem.baseline_energy_mj
