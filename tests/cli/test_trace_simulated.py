"""``clockwright trace`` on a simulated GPU, as a user runs it."""

import json
import re

import pytest

from clockwright.cli import main
from clockwright.data import trace as trace_file

SMALL = ["--layers", "1", "--batch", "8", "--sequence", "1024"]
PAIRS = "1800/9501,1200/9501"


def run(*argv):
    return main([str(word) for word in argv])


def test_a_named_model_is_traced_at_the_pairs_asked_for(tmp_path, capsys):
    code = run(
        "trace", "gpt2", "--gpu", "sim:rtx3080ti", "-o", tmp_path / "T", *SMALL, "--pairs", PAIRS
    )
    said = capsys.readouterr().out
    assert code == 0
    assert "3 clock pairs" in said
    assert "(simulated)" in said
    assert [str(p) for p in trace_file.read(tmp_path / "T").clock_pairs()] == [
        "governor",
        *PAIRS.split(","),
    ]


def test_json_says_that_it_is_simulated(tmp_path, capsys):
    assert run(
        "trace", "gpt2", "--gpu", "sim:v100", "-o", tmp_path / "T", *SMALL, "--json",
        "--pairs", "1380/877", "--repeats", "2",
    ) == 0  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    assert document["clock_pairs"] == 2
    assert document["partial"] is None


SCRIPT = """
import torch

def step(width: int = 2048):
    model = torch.nn.Linear(width, width)
    batch = torch.randn(65536, width)

    def run():
        model(batch).sum().backward()

    return model, None, run

def raises():
    raise ValueError("no data here")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_of_the_users_own_is_traced(script, tmp_path):
    assert run(
        "trace", f"{script}:step", "--gpu", "sim:rtx3080ti", "-o", tmp_path / "T",
        "--option", "width=4096", "--pairs", PAIRS,
    ) == 0  # fmt: skip
    assert trace_file.read(tmp_path / "T").workload["options"] == {"width": 4096}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["gpt2", "--gpu", "sim:nothing"], 2, "no simulated GPU is called 'nothing'"),
        (["no-such", "--gpu", "sim:rtx3080ti"], 2, "unknown workload 'no-such'"),
        (["gpt2", "--gpu", "sim:rtx3080ti", "--pairs", "fast"], 2, "clock pair must be CORE/MEM"),
        (["gpt2", "--gpu", "sim:rtx3080ti", "--pairs", "governor"], 2, "lists locked pairs"),
        (["gpt2", "--gpu", "sim:rtx3080ti", "--option", "layers"], 2, "takes KEY=VALUE"),
        (["--gpu", "sim:rtx3080ti"], 2, "name a WORKLOAD"),
        (["SCRIPT:raises", "--gpu", "sim:rtx3080ti"], 5, "no data here (train.py, line 14)"),
        (["SCRIPT:nothing", "--gpu", "sim:rtx3080ti"], 2, "its functions: raises, step"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(script, tmp_path, capsys, words, code, message):
    words = [word.replace("SCRIPT", str(script)) for word in words]
    assert run("trace", *words, "-o", tmp_path / "T") == code
    said = capsys.readouterr().err
    assert said.startswith("clockwright: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "T").exists()


def test_a_folder_of_other_files_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "main.tex").write_text("x")
    code = run(
        "trace", "gpt2", "--gpu", "sim:rtx3080ti", "-o", tmp_path / "thesis", *SMALL,
        "--pairs", PAIRS,
    )  # fmt: skip
    assert code == 2
    assert "holds other files" in capsys.readouterr().err
    assert (tmp_path / "thesis" / "main.tex").read_text() == "x"


@pytest.mark.parametrize(
    "word", [["--set-clocks"], ["--exhaustive"], ["--minutes", "5"], ["--target-error", "1%"]]
)
def test_options_of_a_real_gpu_are_refused_on_a_simulated_one(tmp_path, capsys, word):
    assert run("trace", "gpt2", "--gpu", "sim:v100", "-o", tmp_path / "T", *SMALL, *word) == 2
    assert f"{word[0]} is for a real GPU" in capsys.readouterr().err
    assert not (tmp_path / "T").exists()


def test_measured_switches_stand_in_the_trace_and_it_says_so(tmp_path, capsys):
    given = ["--gpu", "sim:v100", "-o", tmp_path / "T", *SMALL, "--pairs", "1380/877,877/877"]
    assert run("trace", "gpt2", *given, "--repeats", "2", "--switches", "--json") == 0
    trace = trace_file.read(tmp_path / "T")
    assert any("stand in place of its model's own table" in note for note in trace.notes)
    assert run("trace", "--switches", "--gpu", "sim:v100", "-o", tmp_path / "s.csv") == 0
    assert re.search(r"median latency \d+\.\d{3} to \d+\.\d{3} ms", capsys.readouterr().out)


def test_a_negative_seed_is_refused(tmp_path, capsys):
    assert run("trace", "gpt2", "--gpu", "sim:v100", "-o", tmp_path / "T", "--seed", "-1") == 2
    assert "--seed" in capsys.readouterr().err
