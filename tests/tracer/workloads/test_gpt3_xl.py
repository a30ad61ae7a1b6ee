"""The main workload: one GPT-3-XL training step, captured once in a process of its own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from clockwright.tracer.work import KernelWork, StepItem, StepWork

LAYERS, WIDTH, VOCAB, TOKENS = 24, 2_048, 50_257, 2_048
PARAMETERS = LAYERS * (12 * WIDTH**2 + 13 * WIDTH) + (VOCAB + TOKENS) * WIDTH + 2 * WIDTH

_CAPTURE = """
import pickle, resource, sys
from clockwright.tracer import workloads
step = workloads.load("gpt3-xl").capture()
peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(sys.argv[1], "wb") as out:
    pickle.dump((step, peak_kib), out)
"""


class Captured(NamedTuple):
    step: StepWork
    peak_bytes: int


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    path: Path = tmp_path_factory.mktemp("gpt3") / "step.pickle"
    subprocess.run([sys.executable, "-c", _CAPTURE, str(path)], check=True, timeout=240)
    step, peak_kib = pickle.loads(path.read_bytes())
    return Captured(step, peak_kib * 1024)


def _works(step: StepWork, **wanted: object) -> list[KernelWork]:
    return [
        step.works[i.work]
        for i in step.items
        if all(getattr(i, name) == value for name, value in wanted.items())
    ]


def _layer(step: StepWork, phase: str, layer: int) -> list[tuple[KernelWork, str]]:
    prefix = f"h.{layer}"
    return [
        (step.works[i.work], (i.module or "").removeprefix(prefix))
        for i in step.items
        if i.phase == phase and i.layer == layer
    ]


def test_memory_stays_under_two_gigabytes(captured: Captured) -> None:
    # The weights alone are 5.3 GB.
    assert PARAMETERS * 4 > 5e9
    assert captured.peak_bytes < 2e9


def test_gemm_flops_are_six_a_parameter_and_token(captured: Captured) -> None:
    gemms = [w for w in _works(captured.step) if w.name.startswith("gemm_")]
    multiplied = LAYERS * 12 * WIDTH**2 + VOCAB * WIDTH
    assert sum(w.flops for w in gemms) == 6 * multiplied * TOKENS
    assert {w.math for w in gemms} == {"tensor_16"}


def test_attention_flops_are_the_causal_half_of_seven_products(captured: Captured) -> None:
    flash = [w for w in _works(captured.step) if w.name.startswith("flash_") and "d128" in w.name]
    pairs = TOKENS * (TOKENS + 1) // 2
    # Two products forward; five backward, as flash attention computes the scores again.
    assert sum(w.flops for w in flash) == LAYERS * 7 * 2 * pairs * WIDTH


def test_the_total_is_near_six_n_d(captured: Captured) -> None:
    products = sum(w.flops for w in _works(captured.step) if w.math.startswith("tensor"))
    assert products == pytest.approx(6 * PARAMETERS * TOKENS, rel=0.1)


def test_every_layer_launches_the_same_kernels(captured: Captured) -> None:
    for phase in ("forward", "backward"):
        middle = _layer(captured.step, phase, 1)
        assert len(middle) > 15
        assert all(_layer(captured.step, phase, k) == middle for k in range(LAYERS))


def test_the_backward_pass_visits_the_layers_in_reverse(captured: Captured) -> None:
    def order(phase: str) -> list[int]:
        found = [i.layer for i in captured.step.items if i.phase == phase and i.layer is not None]
        return [k for n, k in enumerate(found) if n == 0 or found[n - 1] != k]

    assert order("forward") == list(range(LAYERS))
    assert order("backward") == list(reversed(range(LAYERS)))


def test_phases_follow_one_another(captured: Captured) -> None:
    phases = [i.phase for i in captured.step.items]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)
    assert set(phases) == {"forward", "backward", "optimizer"}


def test_each_linear_layer_has_one_gemm_forward_and_two_backward(captured: Captured) -> None:
    gemms: Counter[tuple[str, str | None]] = Counter()
    for item in captured.step.items:
        if captured.step.works[item.work].name.startswith("gemm_"):
            gemms[item.phase, item.module] += 1
    linear = [f"h.{k}.{m}" for k in range(LAYERS) for m in ("attn.qkv", "attn.proj")]
    linear += [f"h.{k}.mlp.{m}" for k in range(LAYERS) for m in ("up", "down")] + ["head"]
    assert gemms == {("forward", m): 1 for m in linear} | {("backward", m): 2 for m in linear}


def test_the_optimizer_walks_every_parameter_once(captured: Captured) -> None:
    fused = [w for w in _works(captured.step, phase="optimizer") if "FusedAdam" in w.name]
    assert sum(w.elements for w in fused) == PARAMETERS
    # Weight, gradient and two moments read, all but the gradient written, in float32.
    assert sum(w.bytes_read for w in fused) == 16 * PARAMETERS
    assert sum(w.bytes_written for w in fused) == 12 * PARAMETERS
    # Chunks of 65,536 elements, none shared by two tensors, 2,240 to a launch.
    layer = 4 + (192 + 1) + (64 + 1) + 2 * 256 + 2
    chunks = LAYERS * layer + -(-VOCAB * WIDTH // 65_536) + TOKENS * WIDTH // 65_536 + 2
    assert len(fused) == -(-chunks // 2_240)


def test_works_are_distinct_and_all_used(captured: Captured) -> None:
    step = captured.step
    assert len(set(step.works)) == len(step.works)
    assert {i.work for i in step.items} == set(range(len(step.works)))
    assert all(isinstance(i, StepItem) for i in step.items)


def test_nothing_is_unmapped(captured: Captured) -> None:
    assert [w.name for w in captured.step.works if w.name.startswith("unmapped")] == []
