"""Hugging Face types from their configuration, nothing downloaded."""

from __future__ import annotations

import pytest

from clockwright.data.errors import InputError
from clockwright.tracer import workloads

pytest.importorskip("transformers", reason="transformers is an optional dependency")


def test_a_llama_is_built_from_its_configuration() -> None:
    step = workloads.load("hf:llama", {"layers": 1, "sequence": 16}).capture()
    phases = {i.phase for i in step.items}
    assert {"forward", "backward", "optimizer"} <= phases
    assert any(i.module == "model.layers.0.mlp.gate_proj" and i.layer == 0 for i in step.items)
    assert not any(w.name.startswith("unmapped") for w in step.works)
    # Seven linear layers and the head, once forward and twice backward.
    assert sum(step.works[i.work].name.startswith("gemm_") for i in step.items) == 3 * 8


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("hf:lama", {}, "no model type 'lama'; near it: .*llama"),
        ("hf:gpt2", {"sequence": 1025}, "at most its 1024 positions"),
        ("hf:gpt2", {"width": 5}, "no option 'width'"),
        ("hf:vit", {}, "no language model"),
    ],
)
def test_a_wrong_type_or_option_is_one_line(
    spec: str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        workloads.load(spec, options).capture()
