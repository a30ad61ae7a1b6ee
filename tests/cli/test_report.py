"""``report`` and ``export`` say what the files hold, no more."""

import json

import pytest

from clockwright.cli import main
from clockwright.data import schedule as schedules
from clockwright.data import trace as traces
from clockwright.data.sweep_csv import read_sweep
from clockwright.optimizer.request import Request, optimize_trace
from tests.optimizer.steps import random_trace


@pytest.fixture
def folder(tmp_path):
    plain = random_trace(1)
    sd = tuple(plain.grid(column) * 0.002 for column in ("duration_ns", "energy_mj"))
    trace = random_trace(1, sd=sd)
    traces.write(trace, tmp_path / "T")
    schedules.write(optimize_trace(trace, Request(0.05, "1us")), tmp_path / "S.json")
    return tmp_path


def test_words_hold_prediction_interval_baselines_and_recommendation(folder, capsys):
    assert main(["report", str(folder / "S.json")]) == 0
    out = capsys.readouterr().out
    schedule = schedules.read(folder / "S.json")
    assert f"saving {schedule.predicted.saving:.2%}" in out
    assert "on cells it was not chosen from" in out
    assert "95% confidence" in out
    assert f"gap {schedule.proof.gap:.1e}" in out
    assert f"recommendation: {schedule.recommendation}" in out
    for entry in schedule.baselines:
        assert entry.name in out


def test_json_counts_kernels_at_each_pair(folder, capsys):
    assert main(["report", str(folder / "S.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(entry["kernels"] for entry in document["clock_pairs"]) == 12
    assert document["noise"]["confidence"] == 0.95
    assert document["proof"] == schedules.read(folder / "S.json").to_json()["proof"]


def test_a_file_that_is_no_schedule_is_refused(folder, capsys):
    (folder / "x.json").write_text('{"format": "other"}')
    assert main(["report", str(folder / "x.json")]) == 2
    assert "clockwright-schedule" in capsys.readouterr().err


def test_an_exported_sweep_reads_back_with_equal_cells(folder, capsys):
    assert main(["export", str(folder / "T"), "-o", str(folder / "x.csv")]) == 0
    assert "left out" in capsys.readouterr().out
    again = read_sweep(folder / "x.csv")
    trace = traces.read(folder / "T")
    rows = trace.timeline["signature"].to_numpy(dtype=int)
    for column in ("duration_ns", "energy_mj"):
        assert again.grid(column) == pytest.approx(trace.grid(column)[rows], rel=1e-12)


def test_export_writes_csv_only(folder, capsys):
    assert main(["export", str(folder / "T"), "-o", str(folder / "x.parquet")]) == 2
    assert ".csv" in capsys.readouterr().err
