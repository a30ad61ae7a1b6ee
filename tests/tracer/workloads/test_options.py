"""Specs and options: one clear error, and what resolves to what."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clockwright.data.errors import InputError
from clockwright.tracer import workloads


def test_known_names() -> None:
    assert workloads.known() == ("gpt3-xl", "gpt2", "bert-base")


def test_an_unknown_workload_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"gpt4.*gpt3-xl, gpt2, bert-base.*hf:NAME"):
        workloads.load("gpt4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers .*whole number from 1 to 1000; got 0"),
        ({"layers": "2.5"}, "layers .*whole number"),
        ({"layers": "many"}, "layers .*'many'"),
        ({"batch": -1}, "batch .*from 1"),
        ({"sequence": 2049}, "sequence .*at most the context 2048"),
        ({"precision": "int4"}, "precision .*bf16, fp16, fp32, tf32; got 'int4'"),
        ({"mode": "eval"}, "mode .*train, infer"),
        ({"dropout": 1.0}, "dropout .*from 0 to 0.99"),
        ({"dropout": "nan"}, "dropout .*a number"),
        ({"heads": 7}, "heads .*divide the width 2048"),
        ({"accumulate": 0}, "accumulate"),
        ({"layer": 2}, "no option 'layer'; known: mode, layers"),
    ],
)
def test_a_wrong_option_says_what_is_expected(
    options: dict[str, str | int | float], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        workloads.load("gpt3-xl", options)
    assert "gpt3-xl" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_and_numbers_resolve_alike() -> None:
    text = workloads.load("gpt2", {"layers": "2", "clip": "1", "precision": "FP16"})
    number = workloads.load("gpt2", {"clip": 1.0, "precision": "fp16", "layers": 2})
    assert text.options == number.options
    assert text.fingerprint == number.fingerprint


def test_the_fingerprint_tells_options_and_workloads_apart() -> None:
    prints = {
        workloads.load(*spec).fingerprint
        for spec in [("gpt2", {}), ("gpt2", {"batch": 2}), ("gpt3-xl", {}), ("bert-base", {})]
    }
    assert len(prints) == 4
    assert workloads.load("gpt2", {"batch": 1}).fingerprint == workloads.load("gpt2").fingerprint


def test_gpt3_xl_is_the_paper_s_size() -> None:
    options = workloads.load("gpt3-xl").options
    assert (options["layers"], options["width"], options["context"]) == (24, 2048, 2048)
    assert (options["heads"], options["vocab"], options["precision"]) == (16, 50_257, "bf16")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no/such/train.py:step", "no script at no/such/train.py"),
        ("no_such_module_anywhere:step", "no module named 'no_such_module_anywhere'"),
        ("train.py:not a name", "function's name"),
        ("a-b:step", "package.module:function"),
        (":step", "unknown workload"),
    ],
)
def test_a_function_that_cannot_be_found(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        workloads.load(spec)


def test_transformers_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="hf:llama needs the transformers package"):
        workloads.load("hf:llama")


def test_loading_a_workload_loads_no_torch() -> None:
    code = (
        "import sys, clockwright.tracer; from clockwright.tracer import workloads;"
        "workloads.load('gpt3-xl', {'layers': 2}).fingerprint; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_device_that_is_not_here() -> None:
    workload = workloads.load("gpt2", {"layers": 1})
    with pytest.raises(InputError, match="cuda:99 is not here"):
        workload.build("cuda:99")
    with pytest.raises(InputError, match="'abacus'"):
        workload.build("abacus")
