"""``pareto`` draws what its JSON says, for every switch model asked for."""

import json

import pytest

from clockwright.cli import main
from clockwright.data import trace as traces
from tests.optimizer.steps import random_trace


@pytest.fixture
def folder(tmp_path):
    traces.write(random_trace(1), tmp_path / "T")
    return tmp_path


def test_fronts_bounds_and_baselines_are_in_the_json(folder, capsys):
    command = ["pareto", folder / "T", "-o", folder / "p.png", "--latencies", "free,1us,2us+20us"]
    assert main([*map(str, command), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["fronts"]) == 3
    for front in document["fronts"]:
        energies = [point["energy_mj"] for point in front["points"]]
        assert energies == sorted(energies, reverse=True)
        assert all(point["lower_bound_mj"] <= point["energy_mj"] for point in front["points"])
        assert front["points"][0]["budget"] == 0.0
        assert front["points"][-1]["budget"] == 0.2
    assert {"governor", "best single pair", "pass-level"} <= {
        entry["name"] for entry in document["baselines"]
    }
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")


def test_svg_text_names_models_baselines_and_provenance(folder):
    command = ["pareto", folder / "T", "-o", folder / "p.svg", "--latencies", "free,1us"]
    assert main([*map(str, command)]) == 0
    text = (folder / "p.svg").read_text()
    for word in (
        "switches free",
        "switches 1us (stall)",
        "governor",
        "best single pair",
        "pass-level",
        "lower bounds",
        "slowdown against governor",
        "energy saved",
    ):
        assert word in text
    assert "(measured)" in text
    assert "simulated" not in text


def test_equal_runs_draw_equal_files(folder):
    for name in ("a.svg", "b.svg"):
        command = ["pareto", folder / "T", "-o", folder / name, "--latencies", "free"]
        assert main([*map(str, command)]) == 0
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()


def test_models_that_come_down_to_the_same_are_one_front(folder, capsys):
    command = ["pareto", folder / "T", "-o", folder / "p.png", "--latencies", "auto,free"]
    assert main([*map(str, command), "--json"]) == 0
    (front,) = json.loads(capsys.readouterr().out)["fronts"]
    assert front["label"] == "schedule, switches free"


def test_no_single_pair_lies_under_the_front(folder, capsys):
    command = ["pareto", folder / "T", "-o", folder / "p.png", "--latencies", "1ms"]
    assert main([*map(str, command), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (front,) = document["fronts"]
    for single in document["single_pairs"]:
        above = [p for p in front["points"] if p["budget"] >= single["slowdown"] - 1e-12]
        assert not above or above[0]["lower_bound_mj"] <= single["energy_mj"] * (1 + 1e-9)
    assert len(document["single_pairs"]) == 3
    trace = traces.read(folder / "T")
    rows = trace.timeline["signature"].to_numpy(dtype=int)
    time_ns, energy_mj = (trace.grid(c)[rows].sum(axis=0) for c in ("duration_ns", "energy_mj"))
    under = 0
    for pair, own_ns, own_mj in zip(trace.clock_pairs(), time_ns, energy_mj, strict=True):
        for point in front["points"]:
            if not pair.is_governor and own_ns / time_ns[0] - 1 <= point["budget"]:
                assert point["energy_mj"] <= own_mj * (1 + 1e-9)
                under += 1
    assert under >= len(front["points"]), "some single pair is within every budget"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-o", "p.png", "--up-to", "20"], "write 20% for a percentage"),
        (["-o", "p.pdf"], ".png or .svg"),
        (["-o", "nowhere/p.png"], "does not exist"),
        (["-o", "p.png", "--up-to", "0"], "--up-to"),
        (["-o", "p.png", "--latencies", "soon"], "switches must be"),
        (["-o", "p.png", "--latencies", " ,"], "--latencies is an empty list"),
    ],
)
def test_bad_options_leave_nothing(folder, monkeypatch, capsys, more, message):
    monkeypatch.chdir(folder)
    assert main(["pareto", "T", *more]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["T"]
