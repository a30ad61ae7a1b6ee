"""From a schedule to a report: arms, identity, notes, and a file that must not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clockwright.data import report as report_file
from clockwright.data import schedule as schedule_file
from clockwright.data.errors import InputError, MismatchError
from clockwright.data.report import BASELINE, SCHEDULE, SINGLE
from clockwright.data.schedule import Alternative
from clockwright.data.units import ClockPair
from clockwright.replay.matching import match_schedule
from clockwright.replay.run import arms_of, check_gpu, run_replay
from clockwright.replay.simulated import StepPlayer
from clockwright.replay.source import sequence_of_step
from clockwright.replay.verify import Settings
from clockwright.replay.watched import read_watched
from clockwright.tracer.gpu.simulated import open_simulated
from tests.replay.builders import phase_rows, schedule, small_step

FAST, SLOW = ClockPair(1725, 9501), ClockPair(1665, 9501)
SETTINGS = Settings(max_rounds=12, block_ns=100_000_000)


def _single(pair: str) -> tuple[Alternative, ...]:
    return (
        Alternative("governor", 1.0, 1.0, 0.0, 0.0, ("governor",)),
        Alternative(SINGLE, 1.0, 1.0, 0.01, 0.1, (pair,)),
    )


def _made(**fields):
    step = small_step()
    ran = sequence_of_step(step)
    made = schedule(phase_rows(FAST, SLOW), **{"baselines": _single("1500/9501")} | fields)
    return replace(made, trace={"fingerprint": ran.fingerprint, "kernels": 40}, extra={}), step


def _run(made, step, source=None, **options):
    gpu = open_simulated("rtx3080ti", seed=1, switch="stall")
    match = match_schedule(made, sequence_of_step(step))
    return run_replay(
        source or made, StepPlayer(gpu, step), match, gpu.info, settings=SETTINGS, **options
    )


def test_the_best_single_pair_is_an_arm_unless_it_is_one_already():
    made, step = _made()
    match = match_schedule(made, sequence_of_step(step))
    assert [arm.name for arm in arms_of(made, match)] == [BASELINE, SCHEDULE, SINGLE]
    assert [arm.name for arm in arms_of(made, match, single=False)] == [BASELINE, SCHEDULE]
    same = replace(made, baselines=_single("governor"))
    assert [arm.name for arm in arms_of(same, match)] == [BASELINE, SCHEDULE]


def test_a_replay_becomes_a_report_that_its_file_keeps(tmp_path):
    made, step = _made()
    path = tmp_path / "s.json"
    schedule_file.write(made, path)
    report = _run(made, step, read_watched(path), notes=("told",))
    assert report.simulated
    assert report.rounds == 12
    assert report.notes[0] == "told"
    assert report.schedule["path"] == str(path)
    assert len(report.schedule["sha256"]) == 64
    assert {entry.arm for entry in report.comparisons} == {SCHEDULE, SINGLE}
    report_file.write(report, tmp_path / "r.json")
    assert report_file.read(tmp_path / "r.json") == report


def test_a_dry_replay_is_not_held_to_the_promise():
    made, step = _made()
    report = _run(made, step, dry=True)
    assert report.mode == "dry"
    assert report.prediction is None
    assert any("no clock was set" in note for note in report.notes)


def test_a_schedule_file_changed_under_way_ends_the_replay(tmp_path):
    made, step = _made()
    path = tmp_path / "s.json"
    schedule_file.write(made, path)
    watched = read_watched(path)

    def change(rounds, _):
        if rounds == 2:
            schedule_file.write(replace(made, notes=("changed",)), path)

    with pytest.raises(MismatchError, match="has changed since"):
        _run(made, step, watched, on_round=change)


def test_a_schedule_file_removed_under_way_ends_the_replay(tmp_path):
    made, step = _made()
    path = tmp_path / "s.json"
    schedule_file.write(made, path)
    watched = read_watched(path)
    path.unlink()
    with pytest.raises(MismatchError, match="is gone"):
        _run(made, step, watched)


def test_another_product_is_refused():
    made, _ = _made()
    info = open_simulated("v100").info
    with pytest.raises(MismatchError, match="made for test GPU"):
        check_gpu(made, info)
    check_gpu(replace(made, gpu={"name": info.name}), info)


def test_a_negative_budget_is_refused():
    made, step = _made()
    with pytest.raises(InputError, match="negative"):
        _run(made, step, max_slowdown=-0.1)
