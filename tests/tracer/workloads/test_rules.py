"""Single operators: how many kernels each becomes, and what they move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from clockwright.tracer.work import KernelWork
from clockwright.tracer.workloads.capture import capture_step
from clockwright.tracer.workloads.step import Step


def kernels(make: Callable[[], Callable[[], object]]) -> list[KernelWork]:
    """What a function launches; ``make`` builds its tensors on fake ones."""
    step = capture_step(lambda: Step(run=make()), "test", {})
    return [step.works[i.work] for i in step.items]


def test_views_and_allocations_launch_nothing() -> None:
    def make() -> Callable[[], object]:
        x = torch.randn(4, 6)
        return lambda: (x.t(), x.view(2, 12), x[1:], torch.empty(3), x.detach(), x + 1)

    assert [k.name for k in kernels(make)] == ["vectorized_elementwise_kernel<add>"]


def test_a_transposed_operand_names_the_gemm_s_layout() -> None:
    def make() -> Callable[[], object]:
        a, b = torch.randn(4, 8), torch.randn(16, 8)
        return lambda: a @ b.t()

    (gemm,) = kernels(make)
    assert gemm.name == "gemm_float32_nt"
    assert (gemm.flops, gemm.bytes_read, gemm.bytes_written) == (1024, 4 * (32 + 128), 4 * 64)


def test_a_tensor_used_twice_is_read_once_and_a_broadcast_one_is_small() -> None:
    def make() -> Callable[[], object]:
        x, row = torch.randn(100, 10), torch.randn(10)
        return lambda: (x * x, x + row.expand(100, 10))

    square, add = kernels(make)
    assert square.bytes_read == 4_000
    assert add.bytes_read == 4_040


def test_writing_over_a_tensor_does_not_read_it() -> None:
    def make() -> Callable[[], object]:
        x, y = torch.randn(100), torch.randn(100)
        return lambda: (x.copy_(y), x.fill_(1.0), x.add_(y))

    copy, fill, add = kernels(make)
    assert (copy.bytes_read, copy.bytes_written) == (400, 400)
    assert (fill.bytes_read, fill.bytes_written) == (0, 400)
    assert (add.bytes_read, add.bytes_written) == (800, 400)


@pytest.mark.parametrize(("indices", "count"), [(3_072, 2), (3_073, 15)])
def test_many_indices_make_the_embedding_s_gradient_sort(indices: int, count: int) -> None:
    def make() -> Callable[[], object]:
        grad, index = torch.randn(indices, 8), torch.zeros(indices, dtype=torch.long)
        return lambda: torch.ops.aten.embedding_dense_backward(grad, index, 50_257, -1, False)

    found = kernels(make)
    assert len(found) == count
    assert ("DeviceRadixSortOnesweepKernel" in {k.name for k in found}) == (indices > 3_072)
    assert sum(k.bytes_written for k in found) >= 50_257 * 8 * 4


def test_an_embedding_reads_rows_not_its_table() -> None:
    def make() -> Callable[[], object]:
        table, index = torch.randn(50_000, 8), torch.zeros(10, dtype=torch.long)
        return lambda: functional.embedding(index, table)

    (gather,) = kernels(make)
    assert gather.bytes_read == 10 * 8 * 4 + 10 * 8


def test_a_layer_norm_is_one_kernel_forward_and_two_backward() -> None:
    def make() -> Callable[[], object]:
        norm, x = torch.nn.LayerNorm(16), torch.randn(4, 16, requires_grad=True)
        return lambda: torch.autograd.grad(norm(x).sum(), [x, norm.weight, norm.bias])

    ops = [k.op for k in kernels(make)]
    assert ops.count("aten::native_layer_norm") == 1
    assert ops.count("aten::native_layer_norm_backward") == 2


def test_a_masked_attention_is_the_memory_efficient_one() -> None:
    def make() -> Callable[[], object]:
        q = torch.randn(1, 2, 16, 8, dtype=torch.bfloat16)
        mask = torch.zeros(16, 16, dtype=torch.bfloat16)
        return lambda: functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    (attention,) = kernels(make)
    assert attention.name == "fmha_cutlassF_bfloat16_d8"
    assert attention.op == "aten::_scaled_dot_product_efficient_attention"


def test_grouped_heads_do_the_work_of_all_query_heads() -> None:
    def make() -> Callable[[], object]:
        q = torch.randn(1, 8, 16, 32, dtype=torch.bfloat16)
        k = torch.randn(1, 2, 16, 32, dtype=torch.bfloat16)
        return lambda: functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    (attention,) = kernels(make)
    assert attention.flops == 4 * 8 * 16 * 16 * 32
    assert attention.bytes_read == 2 * 32 * 16 * (8 + 2)


def test_a_convolution_has_one_kernel_for_each_gradient() -> None:
    def make() -> Callable[[], object]:
        conv, x = torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 10, 10, requires_grad=True)
        return lambda: torch.autograd.grad(conv(x).sum(), [x, conv.weight, conv.bias])

    found = {k.name: k.flops for k in kernels(make)}
    product = 2 * 2 * 8 * 8 * 8 * 3 * 3 * 3
    assert found["conv_fprop_float32"] == product
    assert found["conv_dgrad_float32"] == found["conv_wgrad_float32"] == product


def test_an_operator_outside_the_table_is_named_so() -> None:
    def make() -> Callable[[], object]:
        x = torch.randn(6, 6)
        return lambda: torch.linalg.inv_ex(x)

    assert [k.name for k in kernels(make)] == ["unmapped<aten::linalg_inv_ex>"]


def test_reading_a_value_lets_the_step_go_on() -> None:
    def make() -> Callable[[], object]:
        x = torch.randn(4)

        def run() -> float:
            total = x.sum()
            return float(total.item()) + len(str(bool((total > 0).item())))

        return run

    assert [k.op for k in kernels(make)] == ["aten::sum", "aten::gt"]
