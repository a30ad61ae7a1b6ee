"""The main job from end to end: trace, optimize, replay, draw, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clockwright.cli import main
from clockwright.data import schedule as schedules
from clockwright.data import trace as traces

SMALL = ["--layers", "2", "--batch", "1", "--sequence", "256"]
PAIRS = "1950/9501,1860/9501,1815/9501,1440/9501,1740/5001,1050/9501,1050/5001"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A traced and optimized two-layer GPT-3-XL, made once by the real commands."""
    place = tmp_path_factory.mktemp("job")
    command = ["trace", "gpt3-xl", *SMALL, "--gpu", "sim:rtx3080ti", "--pairs", PAIRS]
    assert main([*command, "-o", str(place / "T")]) == 0
    command = ["optimize", str(place / "T"), "-o", str(place / "S.json"), "--max-slowdown", "2%"]
    assert main(command) == 0
    return place


def run_json(capsys, *arguments):
    capsys.readouterr()
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_trace_holds_the_captured_step_at_every_pair(folder):
    trace = traces.read(folder / "T")
    assert trace.simulated
    assert len(trace.pairs) == 8
    assert {"forward", "backward", "optimizer"} <= set(trace.timeline["phase"])
    assert trace.timeline["layer"].max() == 1
    assert len(trace.profile) == len(trace.signatures) * 8


def test_the_schedule_holds_its_proof_and_its_baselines(folder):
    schedule = schedules.read(folder / "S.json")
    assert schedule.simulated
    assert schedule.predicted.slowdown <= 0.02
    assert schedule.proof.lower_bound_mj <= schedule.predicted.energy_mj
    names = {entry.name for entry in schedule.baselines}
    assert {"governor", "best single pair", "pass-level", "per-kernel, switches free"} <= names
    assert schedule.switch_model["semantic"] == "lag"
    assert schedule.trace["fingerprint"] == traces.read(folder / "T").fingerprint


def test_the_replay_verifies_the_schedule(folder, capsys):
    command = ["replay", folder / "S.json", "--trace", folder / "T", "--gpu", "sim:rtx3080ti"]
    status, document = run_json(capsys, *command, "-o", folder / "R.json")
    assert status in (0, 3)
    assert document["simulated"] is True
    assert (status == 0) == (document["verdict"] == "within")
    assert (folder / "R.json").exists()


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_charts_are_drawn(folder, suffix):
    chart, timeline = folder / f"pareto.{suffix}", folder / f"timeline.{suffix}"
    assert main(["pareto", str(folder / "T"), "-o", str(chart), "--switches", "free"]) == 0
    assert main(["plot", str(folder / "S.json"), "-o", str(timeline)]) == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert chart.read_bytes().startswith(start)
    assert timeline.read_bytes().startswith(start)
    if suffix == "svg":
        assert "simulated" in chart.read_text()
        assert "simulated" in timeline.read_text()


def test_report_prints_the_recommendation(folder, capsys):
    assert main(["report", str(folder / "S.json")]) == 0
    out = capsys.readouterr().out
    assert "simulated" in out
    assert "recommendation" in out


def test_a_sweep_travels_out_and_in_with_the_same_best_energy(folder, capsys):
    assert main(["export", str(folder / "T"), "-o", str(folder / "sweep.csv")]) == 0
    assert main(["import", str(folder / "sweep.csv"), "-o", str(folder / "U")]) == 0
    found = []
    for name in ("T", "U"):
        command = ["optimize", folder / name, "-o", folder / f"{name}.json", "--switches", "free"]
        _, document = run_json(capsys, *command, "--confidence", "none", "--max-slowdown", "1%")
        found.append(document)
    assert found[1]["simulated"] is True
    # The CSV has no idle gaps, so totals differ; the kernels' own part must not.
    assert len(found[1]["segments"]) > 1
    assert found[1]["predicted"]["saving"] == pytest.approx(
        found[0]["predicted"]["saving"], abs=0.03
    )


def test_a_users_own_script_runs_beside_its_own_data_and_optimizer(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("WIDTH = 64\n")
    (tmp_path / "optimizer.py").write_text("RATE = 0.1\n")
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "import data, optimizer\n"
        "def step():\n"
        "    model = torch.nn.Linear(data.WIDTH, data.WIDTH)\n"
        "    tuner = torch.optim.SGD(model.parameters(), lr=optimizer.RATE)\n"
        "    def run():\n"
        "        tuner.zero_grad()\n"
        "        model(torch.randn(8, data.WIDTH)).sum().backward()\n"
        "        tuner.step()\n"
        "    return model, tuner, run\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "clockwright", "trace", "train.py:step",
         "--gpu", "sim:h200", "-o", "T", "--pairs", "1980/3201,1500/3201", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernels"] > 3


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["trace", "gpt9", "--gpu", "sim:h200", "-o", "T"], "gpt3-xl"),
        (["trace", "gpt2", "--gpu", "sim:cray1", "-o", "T"], "rtx3080ti"),
        (["trace", "gpt2", "--gpu", "abacus", "-o", "T"], "nvml:INDEX"),
        (["trace", "--gpu", "sim:h200", "-o", "T"], "WORKLOAD"),
        (["trace", "gpt2", "--gpu", "sim:h200", "-o", "T", "--pairs", "fast"], "CORE/MEM"),
        (["trace", "gpt2", "--gpu", "sim:h200", "-o", "T", "--pairs", "7/9"], "not"),
        (["trace", "gpt2", "--gpu", "sim:h200", "-o", "T", "--option", "x"], "KEY=VALUE"),
        (["optimize", "nowhere", "-o", "S.json"], "not a trace folder"),
        (["optimize", "nowhere", "-o", "S.json", "--max-slowdown", "-1"], "percentage"),
        (["replay", "nowhere.json", "--gpu", "sim:h200"], "no such file"),
        (["report", "nowhere.json"], "no such file"),
        (["import", "nowhere.csv", "-o", "T"], "no such file"),
        (["pareto", "nowhere", "-o", "x.png"], "not a trace folder"),
        (["dance"], "dance"),
        (["optimize"], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("clockwright: error: ")
    assert len(err.strip().splitlines()) == 1
    assert list(Path(tmp_path).iterdir()) == []


def test_a_schedule_for_another_trace_is_refused(folder, tmp_path, capsys):
    command = ["trace", "gpt3-xl", "--layers", "1", "--batch", "1", "--sequence", "256"]
    command += ["--gpu", "sim:rtx3080ti", "--pairs", "1950/9501", "-o", str(tmp_path / "other")]
    assert main(command) == 0
    capsys.readouterr()
    command = ["replay", str(folder / "S.json"), "--trace", str(tmp_path / "other")]
    assert main([*command, "--gpu", "sim:rtx3080ti"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_an_infeasible_budget_says_what_would_do(tmp_path, capsys):
    (tmp_path / "slow.csv").write_text(
        "kernel,core_mhz,mem_mhz,time_ms,energy_mj\na,auto,auto,1,10\na,1000,800,1.5,5\n"
    )
    assert main(["import", str(tmp_path / "slow.csv"), "-o", str(tmp_path / "T")]) == 0
    capsys.readouterr()
    status = main(["optimize", str(tmp_path / "T"), "-o", str(tmp_path / "S.json")])
    err = capsys.readouterr().err
    assert status == 2
    assert "50" in err
    assert not (tmp_path / "S.json").exists()
