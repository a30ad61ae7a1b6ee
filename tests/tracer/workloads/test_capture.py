"""Captured steps of small models: phases, precisions, optimizers, and agreement with real runs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from clockwright.tracer import workloads
from clockwright.tracer.work import KernelWork, StepWork

SMALL: dict[str, str | int | float | bool] = {
    "layers": 1, "width": 64, "heads": 2, "vocab": 100, "batch": 2, "sequence": 32,
}  # fmt: skip

PARAMETERS = 2 + 12 + 2  # tensors: embeddings, one layer, final norm (the output layer is tied)


def capture(name: str = "gpt2", **options: str | int | float) -> StepWork:
    return workloads.load(name, {**SMALL, **options}).capture()


def launched(step: StepWork, phase: str | None = None) -> list[KernelWork]:
    return [step.works[i.work] for i in step.items if phase in (None, i.phase)]


def names(step: StepWork, phase: str | None = None) -> Counter[str]:
    return Counter(w.name for w in launched(step, phase))


def gemms(step: StepWork) -> list[KernelWork]:
    return [w for w in launched(step) if w.name.startswith("gemm_")]


def test_a_capture_repeats_itself_exactly() -> None:
    assert capture() == capture()


def test_inference_is_forward_alone() -> None:
    step = capture(mode="infer")
    assert {i.phase for i in step.items} == {"forward"}
    assert not any("bwd" in w.name or "backward" in w.op for w in step.works)
    # Weights are in bfloat16 already: no cast.
    assert not any("cast" in w.name for w in step.works)


def test_inference_of_float32_weights_casts_them() -> None:
    step = capture(mode="infer", weights="fp32")
    assert any("cast" in w.name for w in step.works)
    assert {w.math for w in gemms(step)} == {"tensor_16"}
    assert not any(w.name.startswith("unmapped") for w in step.works)


@pytest.mark.parametrize(
    ("precision", "unit", "dtype", "attention"),
    [
        ("bf16", "tensor_16", "bfloat16", "flash_fwd_kernel_bfloat16_d32"),
        ("fp16", "tensor_16", "float16", "flash_fwd_kernel_float16_d32"),
        ("fp32", "fp32", "float32", "fmha_cutlassF_float32_d32"),
        ("tf32", "tensor_tf32", "float32", "fmha_cutlassF_float32_d32"),
    ],
)
def test_precision_decides_unit_type_and_attention_kernel(
    precision: str, unit: str, dtype: str, attention: str
) -> None:
    before = torch.get_float32_matmul_precision()
    step = capture(precision=precision)
    assert {(w.math, w.dtype) for w in gemms(step)} == {(unit, dtype)}
    assert names(step)[attention] == 1
    assert torch.get_float32_matmul_precision() == before


def test_mixed_float16_scales_its_loss() -> None:
    found = names(capture(precision="fp16"))
    assert found["multi_tensor_apply_kernel<non_finite_check_and_unscale>"] == 1
    assert found["amp_update_scale_cuda_kernel"] == 1


def test_mixed_precision_casts_weights_and_low_precision_does_not() -> None:
    mixed, low = names(capture()), names(capture(weights="same"))
    cast = "unrolled_elementwise_kernel<cast>"
    assert mixed[cast] > 15
    assert low[cast] == 0


def test_flops_agree_with_torch_s_counter_on_a_real_run() -> None:
    workload = workloads.load("gpt2", {**SMALL, "precision": "fp32"})
    real = workload.build("cpu")
    with FlopCounterMode(display=False) as counter:
        real.run()
    # The counter knows no CPU attention, so it counts what is not attention.
    assert sum(w.flops for w in gemms(workload.capture())) == counter.get_total_flops() > 0


def test_a_real_step_on_the_cpu_trains() -> None:
    step = workloads.load("gpt2", {**SMALL, "precision": "bf16", "clip": 1}).build("cpu")
    before = [p.detach().clone() for p in step.model.parameters()]
    step.run()
    step.run()
    assert all(p.device.type == "cpu" for p in step.model.parameters())
    assert any(not torch.equal(p, q) for p, q in zip(step.model.parameters(), before, strict=True))
    assert all(p.grad is None for p in step.model.parameters())
    assert step.tokens == 64


def test_accumulation_repeats_forward_and_backward_and_adds_gradients() -> None:
    once, thrice = capture(precision="fp32"), capture(precision="fp32", accumulate=3)
    attention = "fmha_cutlassF_float32_d32"
    assert names(thrice)[attention] == 3 * names(once)[attention]
    assert names(thrice, "optimizer") == names(once, "optimizer")
    added = [
        i for i in thrice.items
        if i.phase == "backward" and thrice.works[i.work].op == "aten::add_"
    ]  # fmt: skip
    assert len(added) == 2 * PARAMETERS
    assert {i.module for i in added} >= {"h.0.attn.qkv", "h.0.mlp.down", "wte", "ln_f"}


def test_clipping_comes_between_backward_and_optimizer() -> None:
    step = capture(clip=1.0)
    phases = [i.phase for i in step.items]
    assert phases.index("other") > max(n for n, p in enumerate(phases) if p == "backward")
    assert names(step, "other")["multi_tensor_apply_kernel<norm>"] == 1
    assert names(capture(), "other") == {}


@pytest.mark.parametrize(
    ("implementation", "kernels"), [("fused", 2), ("foreach", 8), ("loop", 8 * PARAMETERS)]
)
def test_the_optimizer_s_implementation_sets_its_kernels(implementation: str, kernels: int) -> None:
    # Fused: step counts and update. The others keep step counts on the host.
    step = capture(implementation=implementation)
    assert len(launched(step, "optimizer")) == kernels
    assert all(i.module is None for i in step.items if i.phase == "optimizer")


def test_momentum_sgd_is_one_fused_kernel() -> None:
    assert names(capture(optimizer="sgd"), "optimizer") == {
        "multi_tensor_apply_kernel<FusedSgdMathFunctor>": 1
    }


def test_dropout_is_one_fused_kernel_each_way() -> None:
    found = names(capture("bert-base"))
    assert found["fused_dropout_kernel_vec"] == 3  # embedding, attention's output, MLP's
    assert found["vectorized_elementwise_kernel<masked_scale>"] == 3
    # Attention's own dropout is inside the attention kernel.
    assert found["flash_fwd_kernel_bfloat16_d32"] == 1


def test_bert_attends_both_ways() -> None:
    step = capture("bert-base")
    flash = next(w for w in launched(step) if w.name.startswith("flash_fwd"))
    batch, heads, length, size = 2, 2, 32, 32
    assert flash.flops == 4 * batch * heads * length * length * size


def test_backward_kernels_carry_the_module_that_made_them() -> None:
    step = capture("bert-base")
    for item in step.items:
        work = step.works[item.work]
        if work.op == "aten::native_layer_norm_backward":
            assert item.module in {"norm", "layer.0.norm_1", "layer.0.norm_2", "transform_norm"}
        if work.op == "aten::gelu_backward":
            assert item.module in {"layer.0.act", "act"}
        if work.op == "aten::embedding_dense_backward":
            assert item.module in {"tokens", "positions", "types"}
