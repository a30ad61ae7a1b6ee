"""``plot`` draws the clocks of a schedule over kernels, or over time with its trace."""

import json
from dataclasses import replace

import pytest

from clockwright.cli import main
from clockwright.data import schedule as schedules
from clockwright.data import trace as traces
from clockwright.data.schedule import Segment
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.optimizer.request import Request, optimize_trace
from tests.optimizer.steps import random_trace

PHASES = ["forward"] * 6 + ["backward"] * 4 + ["optimizer"] * 2


@pytest.fixture
def folder(tmp_path):
    trace = random_trace(1, phases=PHASES)
    traces.write(trace, tmp_path / "T")
    schedules.write(optimize_trace(trace, Request(0.05, "free")), tmp_path / "S.json")
    return tmp_path


def draw(folder, *more):
    path = folder / "t.svg"
    assert main(["plot", str(folder / "S.json"), "-o", str(path), *map(str, more)]) == 0
    return path.read_text()


def test_without_a_trace_the_axis_counts_kernels(folder):
    text = draw(folder)
    assert "kernel of the step" in text
    assert "core clock (MHz)" in text
    assert "memory clock (MHz)" in text
    assert "predicted saving" in text


def test_with_its_trace_the_axis_is_time_and_phases_are_named(folder):
    text = draw(folder, "--trace", folder / "T")
    assert "time under the schedule" in text
    for phase in ("forward", "backward", "optimizer"):
        assert phase in text


def test_another_trace_is_refused(folder, capsys):
    traces.write(random_trace(2, phases=PHASES), folder / "other")
    command = ["plot", folder / "S.json", "-o", folder / "t.png", "--trace", folder / "other"]
    assert main([*map(str, command)]) == 2
    assert "another trace" in capsys.readouterr().err
    assert not (folder / "t.png").exists()


def test_a_simulated_schedule_says_so(folder):
    simulated = replace(schedules.read(folder / "S.json"), simulated=True)
    schedules.write(simulated, folder / "S.json")
    assert "(simulated)" in draw(folder)


def test_clocks_left_to_the_governor_are_drawn_as_such(folder):
    schedule = schedules.read(folder / "S.json")
    halves = (Segment(0, 6, GOVERNOR, 0), Segment(6, 12, ClockPair(1200, None), 6))
    schedules.write(replace(schedule, segments=halves), folder / "S.json")
    text = draw(folder)
    assert "left to the governor" in text
    assert "memory clock" not in text


def test_json_names_the_file(folder, capsys):
    command = ["plot", str(folder / "S.json"), "-o", str(folder / "t.png"), "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kernels"] == 12
    assert (folder / "t.png").read_bytes().startswith(b"\x89PNG")
