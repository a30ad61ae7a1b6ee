"""``clockwright replay``: verdicts, exit statuses, files, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clockwright.cli import main
from clockwright.data import report as report_file
from clockwright.data import schedule as schedule_file
from clockwright.data import trace as trace_file
from clockwright.data.schedule import Alternative, Anchor, Cost, Predicted, Proof, Schedule, Segment
from clockwright.data.sequence import pack, sequence_of
from clockwright.data.trace import Trace
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer import workloads
from clockwright.tracer.gpu.simulated import open_simulated
from clockwright.tracer.record_simulated import record_simulated

SCRIPT = """
import torch

def step(device):
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2048))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.zeros(4096, 2048, device=device)

    def run():
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, run
"""
PAIR, SLOW = ClockPair(1875, 9501), ClockPair(1500, 9501)
FAST = ["--rounds", "12", "--block", "100ms"]


def _schedule(trace: Trace, pair: ClockPair, budget: float) -> Schedule:
    kernels = len(trace.timeline)
    half = kernels // 2
    at = trace.baseline
    assert at.time_ns is not None
    assert at.energy_mj is not None
    return Schedule(
        gpu=dict(trace.gpu),
        workload=dict(trace.workload),
        trace={"fingerprint": trace.fingerprint, "kernels": kernels},
        simulated=True,
        provenance="simulated",
        budget={"max_slowdown": budget, "confidence": 0.95},
        switch_model={"semantic": "stall", "source": "test", "core_ns": 2e4, "mem_ns": 6e4},
        segments=(
            Segment(0, half, pair, 0, Anchor("", "step_start")),
            Segment(half, kernels, ClockPair(1800, 9501), half),
        ),
        baseline=Cost(at.time_ns, at.energy_mj),
        baseline_pair=GOVERNOR,
        predicted=Predicted(at.time_ns * 1.02, at.energy_mj * 0.9, 0.02, 0.1),
        proof=Proof(1.0, 0.0, "test", "optimal"),
        baselines=(Alternative("best single pair", 1.0, 1.0, 0.0, 0.0, (str(SLOW),)),),
        created_by="test",
        extra={"sequence": pack(sequence_of(trace.timeline, trace.signatures))},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, its simulated trace, and schedules with a wide and with no room."""
    path = tmp_path_factory.mktemp("replay")
    script = path / "train.py"
    script.write_text(SCRIPT)
    step = workloads.load(f"{script}:step", {}).capture()
    gpu = open_simulated("rtx3080ti", seed=4)
    trace = record_simulated(step, gpu, pairs=[PAIR, ClockPair(1800, 9501), SLOW])
    trace_file.write(trace, path / "T")
    schedule_file.write(_schedule(trace, PAIR, 0.5), path / "wide.json")
    schedule_file.write(_schedule(trace, ClockPair(1500, 9501), 0.0001), path / "tight.json")
    return path


def test_a_schedule_within_its_budget_exits_0_and_leaves_report_and_chart(folder, tmp_path, capsys):
    report, chart = tmp_path / "r.json", tmp_path / "c.png"
    command = ["replay", str(folder / "wide.json"), *FAST, "--switches", "stall"]
    assert main([*command, "-o", str(report), "--chart", str(chart)]) == 0
    told = capsys.readouterr().out
    assert "verdict: within the budget of 50.000%" in told
    assert "simulated" in told
    assert "predicted: slowdown 2.000%" in told
    read = report_file.read(report)
    assert read.verdict == "within"
    assert read.simulated
    assert read.schedule["sha256"]
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_a_schedule_over_its_budget_exits_3(folder, capsys):
    assert main(["replay", str(folder / "tight.json"), *FAST, "--switches", "stall"]) == 3
    assert "verdict: over the budget of 0.010%" in capsys.readouterr().out


def test_a_table_is_played_from_the_trace_and_printed_as_json(folder, capsys):
    command = ["replay", str(folder / "wide.json"), "--gpu", "table", "--trace", str(folder / "T")]
    assert main([*command, *FAST, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"]
    assert [entry["arm"] for entry in document["comparisons"]] == ["schedule", "best single pair"]
    assert any("table" in note for note in document["notes"])


def test_a_dry_replay_is_labelled(folder, capsys):
    command = ["replay", str(folder / "wide.json"), "--block", "100ms", "--dry", "--no-single"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "dry (no clock was set)" in told
    assert "in time as fast as the baseline" in told
    assert "best single pair" not in told


def test_equal_commands_give_equal_reports(folder, tmp_path):
    command = ["replay", str(folder / "wide.json"), *FAST, "--seed", "7", "-o"]
    for name in ("a.json", "b.json"):
        main([*command, str(tmp_path / name)])
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def test_another_step_is_refused_with_the_first_difference(folder, tmp_path, capsys):
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.replace("lr=0.1", "lr=0.1, momentum=0.9"))
    assert main(["replay", str(folder / "wide.json"), f"{other}:step", *FAST]) == 2
    told = capsys.readouterr().err
    assert "kernel" in told
    assert "the schedule expects" in told
    assert told.count("\n") == 1


def test_drift_that_is_allowed_is_played_and_told(folder, tmp_path, capsys):
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.replace("lr=0.1", "lr=0.1, momentum=0.9"))
    command = ["replay", str(folder / "wide.json"), f"{other}:step", *FAST]
    assert main([*command, "--allow-drift", "50%"]) in (0, 3)
    told = capsys.readouterr().out
    assert "of the kernels differ from the schedule's" in told
    assert "predicted" not in told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpu", "sim:v100"], "made for NVIDIA GeForce RTX 3080 Ti"),
        (["--gpu", "sim:nothing"], "there are"),
        (["--gpu", "table"], "--trace"),
        (["--set-clocks", "--dry"], "contradict"),
        (["--rounds", "3"], "at least 6 rounds"),
        (["--block", "5"], "duration"),
        (["--precision", "0"], "precision"),
        (["--confidence", "100%"], "confidence"),
        (["--confidence", "nan"], "expected a percentage"),
        (["--seed", "-1"], "seed must be 0 or more"),
        (["--gpu", "sim:rtx3080ti?seed=-1"], "must be 0 or more, got sim:rtx3080ti?seed=-1"),
        (["--triggers", "graph"], "--triggers graph is for a real GPU"),
        (["--allow-drift", "200%"], "allowed drift must lie between 0 and 100%"),
        (["--max-slowdown", "much"], "percentage"),
        (["--trace", "nowhere"], "not a trace folder"),
        (["no-such-workload"], "unknown workload"),
        (["--chart", "c.gif"], ".png or .svg"),
        (["--chart", "nowhere/c.png"], "nowhere does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2_and_leaves_nothing(
    folder, tmp_path, capsys, monkeypatch, more, said
):
    monkeypatch.chdir(tmp_path)
    assert main(["replay", str(folder / "wide.json"), *FAST, "-o", "r.json", *more]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_measured_schedule_does_not_guess_its_gpu(folder, tmp_path, capsys):
    text = (folder / "wide.json").read_text().replace('"simulated": true', '"simulated": false')
    path = tmp_path / "s.json"
    path.write_text(text)
    assert main(["replay", str(path)]) == 2
    assert "say what to replay on" in capsys.readouterr().err
