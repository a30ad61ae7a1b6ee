"""Segments, triggers and anchors of the file are those of the solution."""

from dataclasses import replace

import numpy as np
import pytest

from clockwright.data import schedule as schedules
from clockwright.data.errors import MismatchError
from clockwright.data.schedule import Anchor
from clockwright.data.sequence import sequence_of, unpack
from clockwright.optimizer.from_trace import from_trace
from clockwright.optimizer.plan import solve_step
from clockwright.optimizer.request import Request, optimize_trace
from clockwright.optimizer.switch_model import ConstantStall, Lag
from clockwright.optimizer.switch_source import SwitchChoice
from clockwright.optimizer.to_schedule import make_schedule, segments_of
from clockwright.replay.source import scheduled_switches
from tests.optimizer.steps import random_trace

MODULES = ["wte", "wte", "h.0", "h.0", "h.1", "h.1", "h.1", "head", "head", "head", None, None]
PHASES = ["forward"] * 7 + ["backward"] * 3 + ["optimizer"] * 2


def test_segments_give_every_kernel_its_chosen_pair():
    step = from_trace(random_trace(3)).with_switch(ConstantStall(10.0))
    found = solve_step(step, 0.1)
    segments = segments_of(step, found)
    pairs = [segment.pair for segment in segments for _ in range(segment.start, segment.end)]
    assert pairs == [step.problem.pairs[f] for f in found.choice]
    assert all(segment.trigger == segment.start for segment in segments)
    assert len(segments) > 1


def test_under_lag_a_segment_is_triggered_where_it_was_requested():
    step = from_trace(random_trace(3)).with_switch(Lag(1.0, 0.0))
    plain = solve_step(from_trace(random_trace(3)), 0.1)
    # Item 5 to 8 at pair 2, asked for at 4; back to pair 1 from 9, asked for at 7.
    choice = np.array([1] * 5 + [2] * 4 + [1] * 3, np.int32)
    found = replace(
        plain,
        choice=choice,
        request_item=np.array([4, 7], np.int32),
        request_pair=np.array([2, 1], np.int32),
    )
    assert [(s.start, s.end, s.trigger) for s in segments_of(step, found)] == [
        (0, 5, 0),
        (5, 9, 4),
        (9, 12, 7),
    ]


def test_a_request_may_lie_in_the_step_before():
    step = from_trace(random_trace(3)).with_switch(Lag(1.0, 0.0))
    plain = solve_step(from_trace(random_trace(3)), 0.1)
    found = replace(
        plain,
        choice=np.array([1] * 5 + [2] * 7, np.int32),
        request_item=np.array([4, 11], np.int32),
        request_pair=np.array([2, 1], np.int32),
    )
    assert segments_of(step, found)[0].trigger == 11


def test_a_schedule_names_the_cost_of_each_change_it_makes():
    step = from_trace(random_trace(3))
    latency = np.arange(16.0).reshape(4, 4) * (1 - np.eye(4))
    step = step.with_switch(Lag(latency, 0.0))
    plain = solve_step(from_trace(random_trace(3)), 0.1)
    found = replace(
        plain,
        choice=np.array([1] * 5 + [2] * 7, np.int32),
        request_item=np.array([4, 11], np.int32),
        request_pair=np.array([2, 1], np.int32),
    )
    switches = SwitchChoice(step.problem.switch, {"semantic": "lag", "source": "test"}, ())
    schedule = make_schedule(step, found, 0.1, switches)
    one, two = (str(step.problem.pairs[f]) for f in (1, 2))
    assert schedule.switch_model["changes"] == [[one, two, 6.0], [two, one, 9.0]]
    behaviour = scheduled_switches(schedule)
    assert behaviour.kind == "lag"
    assert behaviour.nominal_ns(step.problem.pairs[1], step.problem.pairs[2]) == 6.0
    assert behaviour.nominal_ns(step.problem.pairs[2], step.problem.pairs[1]) == 9.0


def test_with_module_anchors_every_switch_has_its_hook():
    trace = random_trace(4, modules=MODULES, phases=PHASES)
    schedule = optimize_trace(trace, Request(0.03, switches="free", anchors="module"))
    edges = {0, 2, 4, 7, 10}
    assert {segment.start for segment in schedule.segments} <= edges
    assert len(schedule.segments) > 1
    by_start = {segment.start: segment.anchor for segment in schedule.segments}
    known = {
        0: Anchor("", "step_start"),
        2: Anchor("h.0", "forward_pre"),
        4: Anchor("h.1", "forward_pre"),
        7: Anchor("head", "backward_pre"),
        10: Anchor("", "optimizer_pre"),
    }
    assert by_start == {start: known[start] for start in by_start}
    free = optimize_trace(trace, Request(0.03, switches="free"))
    assert free.predicted.energy_mj <= schedule.predicted.energy_mj


def test_the_file_carries_the_sequence_and_survives_a_round_trip(tmp_path):
    trace = random_trace(4)
    schedule = optimize_trace(trace, Request(0.05, switches="1us"))
    schedules.write(schedule, tmp_path / "s.json")
    again = schedules.read(tmp_path / "s.json")
    assert again.to_json() == schedule.to_json()
    schedules.check_trace(again, trace)
    carried = unpack(again.extra["sequence"])
    assert carried == sequence_of(trace.timeline, trace.signatures)
    assert again.predicted.slowdown <= 0.05
    assert again.proof.gap == pytest.approx(
        1 - again.proof.lower_bound_mj / again.predicted.energy_mj, abs=1e-12
    )
    assert {entry.name for entry in again.baselines} >= {
        "governor",
        "best single pair",
        "pass-level",
        "per-kernel, switches free",
    }


def test_spread_gives_intervals_and_a_confidence():
    plain = random_trace(4)
    sd = tuple(plain.grid(column) * 0.002 for column in ("duration_ns", "energy_mj"))
    trace = random_trace(4, sd=sd)
    schedule = optimize_trace(trace, Request(0.2, switches="free"))
    assert schedule.budget["confidence"] == 0.95
    low, high = schedule.predicted.saving_interval
    assert low < schedule.extra["noise"]["saving"] < high
    believed = optimize_trace(trace, Request(0.2, switches="free", confidence=None))
    assert believed.budget["confidence"] is None
    assert believed.predicted.saving_interval is None
    assert believed.predicted.energy_mj <= schedule.predicted.energy_mj


def test_a_trace_of_another_gpu_is_not_the_schedules():
    trace = random_trace(4)
    schedule = optimize_trace(trace, Request(0.05, switches="1us"))
    other = replace(trace, gpu={"name": "another GPU", "simulated": False})
    with pytest.raises(MismatchError, match="this trace is of another GPU"):
        schedules.check_trace(schedule, other)
    with pytest.raises(MismatchError, match="this trace is of another GPU"):
        schedules.check_trace(schedule, other, sequence=False)


def test_a_gap_that_caution_leaves_is_not_called_optimal():
    plain = random_trace(4)
    sd = tuple(plain.grid(column) * 0.01 for column in ("duration_ns", "energy_mj"))
    trace = random_trace(4, sd=sd)
    cautious = optimize_trace(trace, Request(0.01, switches="free")).proof
    assert (cautious.status, cautious.gap > 1e-2) == ("limit", True)
    believed = optimize_trace(trace, Request(0.01, switches="free", confidence=None)).proof
    assert (believed.status, believed.gap < 1e-6) == ("optimal", True)


@pytest.mark.parametrize("switches", ["free", "1us", "1us,3us"])
def test_a_step_of_two_streams_is_written_and_read(tmp_path, switches):
    starts = [0, 1000, 2000, 3000]
    trace = random_trace(4, kernels=4, starts=starts, durations=[900] * 4, streams=[7, 9, 7, 9])
    late = trace.timeline.assign(duration_ns=[1500, 1500, 900, 900])  # kernels overlap
    schedule = optimize_trace(replace(trace, timeline=late), Request(0.2, switches=switches))
    schedules.write(schedule, tmp_path / "S.json")
    assert schedules.read(tmp_path / "S.json").to_json() == schedule.to_json()
    assert any("overlap" in note for note in schedule.notes)


@pytest.mark.parametrize("seed", range(6))
def test_the_limit_of_free_switches_is_no_worse_than_the_schedule(seed):
    schedule = optimize_trace(random_trace(seed, 60, 9), Request(0.03, switches="free"))
    free = next(entry for entry in schedule.baselines if entry.name.startswith("per-kernel"))
    assert free.energy_mj <= schedule.predicted.energy_mj
