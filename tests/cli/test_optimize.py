"""``optimize`` as a user runs it: published optima, measured tables, refusals, batches."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from clockwright.cli import main
from clockwright.data import schedule as schedules
from clockwright.data import trace as traces
from clockwright.data.sweep_csv import read_sweep
from tests.optimizer.steps import random_trace

AUTO_MJ = 568841.419
# Measured per-kernel oracle that the table's authors publish, by slowdown allowed.
PUBLISHED_MJ = {"0": 492626.458, "1%": 475689.800, "2%": 459748.981, "5%": 454562.833}
TABLE = "rtx3080ti_polybench_rodinia_65kernels.csv"


@pytest.fixture
def folder(tmp_path):
    traces.write(random_trace(1), tmp_path / "T")
    return tmp_path


def run_json(capsys, *arguments):
    capsys.readouterr()
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def measured(datasets, tmp_path_factory):
    """The public 3080 Ti table, imported by the command."""
    place = tmp_path_factory.mktemp("measured") / "T"
    assert main(["import", str(datasets / "unified" / TABLE), "-o", str(place)]) == 0
    return place


@pytest.mark.parametrize(("budget", "published_mj"), PUBLISHED_MJ.items())
def test_the_published_oracle_is_reached(measured, tmp_path, capsys, budget, published_mj):
    status, document = run_json(
        capsys, "optimize", measured, "-o", tmp_path / "S.json",
        "--switches", "free", "--max-slowdown", budget,
    )  # fmt: skip
    assert status == 0
    assert document["baseline"]["energy_mj"] == pytest.approx(AUTO_MJ, rel=1e-8)
    assert document["baseline"]["pair"] == "governor"
    # The table's cells have eight digits, so its sums agree with the published ones to about 1e-8.
    energy_mj = document["predicted"]["energy_mj"]
    assert published_mj * (1 - 1e-6) <= energy_mj <= published_mj * (1 + 5e-8)
    assert document["proof"]["gap"] <= 1e-6


def unified():
    folder = Path(__file__).parents[2].parent / "shared" / "datasets" / "unified"
    names = [path.name for path in sorted(folder.glob("*.csv"))] if folder.is_dir() else []
    return names or [pytest.param("", marks=pytest.mark.skip(reason="no public sweeps here"))]


@pytest.mark.parametrize("name", unified())
def test_every_public_table_is_solved_with_its_proof(datasets, tmp_path, capsys, name):
    sweep = datasets / "unified" / name
    traces.write(read_sweep(sweep, drop_incomplete_pairs=True), tmp_path / "T")
    status, document = run_json(
        capsys, "optimize", tmp_path / "T", "-o", tmp_path / "S.json",
        "--switches", "1ms", "--max-slowdown", "2%", "--time-limit", "20", "--gap", "1e-4",
    )  # fmt: skip
    assert status == 0
    assert document["predicted"]["slowdown"] <= 0.02
    assert document["proof"]["lower_bound_mj"] <= document["predicted"]["energy_mj"]
    assert document["proof"]["gap"] <= 2e-3
    single = next(e for e in document["baselines"] if e["name"] == "best single pair")
    assert document["predicted"]["energy_mj"] <= single["energy_mj"] * (1 + 1e-9)


def test_the_json_is_the_file_without_the_long_parts(folder, capsys):
    status, document = run_json(
        capsys, "optimize", folder / "T", "-o", folder / "S.json", "--switches", "1us"
    )
    assert status == 0
    written = schedules.read(folder / "S.json").to_json()
    for key in ("baseline", "predicted", "proof", "segments", "baselines", "recommendation"):
        assert document[key] == written[key]
    assert "sequence" not in document["extra"]
    assert document["segment_count"] == len(written["segments"])


def test_words_tell_saving_slowdown_proof_and_baselines(folder, capsys):
    command = ["optimize", str(folder / "T"), "-o", str(folder / "S.json"), "--switches", "free"]
    assert main(command) == 0
    out = capsys.readouterr().out
    for word in ("saving", "slowdown", "proof: no schedule takes less", "best single pair",
                 "pass-level", "recommendation"):  # fmt: skip
        assert word in out


def test_no_switch_table_is_an_assumption_that_is_told(folder, capsys):
    assert main(["optimize", str(folder / "T"), "-o", str(folder / "S.json")]) == 0
    assert "switches are taken as free" in capsys.readouterr().out


def test_what_a_trace_lacks_is_told_by_its_schedule_and_its_front(tmp_path, capsys):
    partial = replace(random_trace(1), partial="the sweep was cut short", notes=("it was hot",))
    traces.write(partial, tmp_path / "T")
    assert main(["optimize", str(tmp_path / "T"), "-o", str(tmp_path / "S.json")]) == 0
    said = capsys.readouterr().out
    for words in ("incomplete: the sweep was cut short", "it was hot"):
        assert words in said
        assert any(words in note for note in schedules.read(tmp_path / "S.json").notes)
    front = ["pareto", str(tmp_path / "T"), "-o", str(tmp_path / "p.svg"), "--latencies", "free"]
    assert main(front) == 0
    assert "incomplete: the sweep was cut short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--switches", "soon"], "switches must be"),
        (["--switches", "measured"], "no switch table"),
        (["--baseline", "1750/9000"], "nearest are"),
        (["--max-slowdown", "fast"], "percentage"),
        (["--max-slowdown", "60"], "write 60% for a percentage"),
        (["--confidence", "0.2"], "--confidence"),
        (["--seed", "-1"], "--seed"),
        (["--budgets", ""], "--budgets is an empty list"),
        (["--latencies", ""], "--latencies is an empty list"),
        (["--switches", "1us", "--semantic", "stall", "--min-dwell", "2ms"], "--semantic lag"),
        (["--gap", "-1"], "--gap"),
        (["--time-limit", "0"], "--time-limit"),
        (["--workers", "2"], "batch"),
        (["--min-dwell", "5"], "duration"),
    ],
)
def test_bad_options_are_one_line_and_leave_nothing(folder, capsys, more, message):
    command = ["optimize", str(folder / "T"), "-o", str(folder / "S.json"), *more]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (folder / "S.json").exists()


def test_a_batch_writes_rows_and_is_resumed(folder, capsys):
    traces.write(random_trace(2), folder / "U")
    command = [
        "optimize", folder / "T", folder / "U", "-o", folder / "R", "--budgets", "0,5",
        "--latencies", "free,1us+5us", "--workers", "2", "--gap", "1e-4",
    ]  # fmt: skip
    status, document = run_json(capsys, *command)
    assert status == 0
    assert (document["jobs"], document["solved"]) == (8, 8)
    assert run_json(capsys, *command)[1]["solved"] == 0
    frame = pd.read_parquet(folder / "R")
    assert len(frame) == 8
    assert set(frame["budget"]) == {0.0, 0.05}
    assert set(frame["switches"]) == {"free", "1us,5us"}
    assert (frame["slowdown"] <= frame["budget"] + 1e-12).all()
