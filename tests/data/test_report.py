"""The replay report survives writing and reading, and anything else is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clockwright.data import report
from clockwright.data.errors import FormatError, InputError, VersionError
from clockwright.data.report import Block, Comparison, Estimate, Prediction, Report


def _report() -> Report:
    blocks = tuple(
        Block(number, position, arm, 5, 1000 + number, 2e6, energy, None, 51.5, 0, 1410, 3)
        for number in range(2)
        for position, (arm, energy) in enumerate([("baseline", 100.0), ("schedule", None)])
    )
    return Report(
        gpu={"name": "test GPU", "simulated": True},
        workload={"name": "test"},
        schedule={"fingerprint": "sha256:" + "1" * 64, "kernels": 9, "segments": 3},
        simulated=True,
        mode="set",
        budget={"max_slowdown": 0.006},
        confidence=0.95,
        settings={"seed": 1},
        blocks=blocks,
        comparisons=(Comparison("schedule", Estimate(0.004, 0.003, 0.005), None, "slower"),),
        verdict="within",
        prediction=Prediction(0.005, 0.1, Estimate(-0.001, None, None), None, None, None),
        stopped="decided",
        coverage=0.5,
        requests={"set": 12},
        notes=("a note",),
        created_by="test",
    )


def test_a_report_reads_back_as_written(tmp_path):
    report.write(_report(), tmp_path / "r.json")
    assert report.read(tmp_path / "r.json") == _report()


def test_a_report_with_energy_reads_back_as_written(tmp_path):
    saving = Estimate(0.1, 0.09, 0.11)
    full = replace(
        _report(),
        comparisons=(Comparison("schedule", Estimate(0.0), saving, "unresolved"),),
        prediction=Prediction(0.005, 0.1, Estimate(0.0), saving, True, False),
    )
    report.write(full, tmp_path / "r.json")
    again = report.read(tmp_path / "r.json")
    assert again == full
    assert again.rounds == 2
    assert again.comparison("schedule") == full.comparisons[0]
    assert again.comparison("another") is None


def _changed(tmp_path, **fields):
    document = _report().to_json() | fields
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    return path


def test_an_unknown_version_is_refused(tmp_path):
    with pytest.raises(VersionError, match="reads version 1"):
        report.read(_changed(tmp_path, version=2))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("verdict", "fine", "verdict"),
        ("confidence", 95, "confidence"),
        ("stopped", None, "stopped"),
        ("blocks", [], "blocks"),
        ("budget", {}, "budget"),
        ("requests", {"set": -1}, "requests/set"),
        ("surprise", 1, "surprise"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, field, value, named):
    with pytest.raises(FormatError, match=named):
        report.read(_changed(tmp_path, **{field: value}))


def test_blocks_of_an_arm_that_is_not_compared_are_refused(tmp_path):
    with pytest.raises(FormatError, match="not compared"):
        report.read(_changed(tmp_path, comparisons=[
            {"arm": "other", "slowdown": {"value": 0, "low": None, "high": None},
             "saving": None, "difference": "slower"}
        ]))  # fmt: skip


def test_another_format_is_refused(tmp_path):
    with pytest.raises(FormatError, match="clockwright-report"):
        report.read(_changed(tmp_path, format="clockwright-schedule"))
    with pytest.raises(InputError, match="folder"):
        report.read(tmp_path)


def test_a_number_that_is_not_finite_leaves_no_file(tmp_path):
    broken = replace(_report(), comparisons=(
        Comparison("schedule", Estimate(float("nan")), None, "slower"),
    ))  # fmt: skip
    with pytest.raises(FormatError, match="not finite"):
        report.write(broken, tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []
