"""Matrix products, convolutions and attention: the kernels CUDA launches for each.

FLOPs come from torch's own counter. One correction: the counter counts the whole square of a
causal attention, while the fused kernels skip what lies above the diagonal; they are given the
share of query-key pairs that causality leaves, (n + 1) / (2 n).

Kernel names are families. Which cuBLAS or cuDNN kernel a heuristic picks, and whether it splits
the sum (split-K, a second small kernel), is only known on the GPU and left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .kernel_call import Kernel, OpCall, dtype_name, tensor_bytes

__all__ = ["attention_backward", "attention_forward", "convolution", "convolution_backward", "gemm"]


def _layout(matrix: torch.Tensor) -> str:
    """CuBLAS's letter: ``t`` where the last dimension is not the contiguous one."""
    return "t" if matrix.dim() >= 2 and matrix.stride(-1) != 1 and matrix.stride(-2) == 1 else "n"


_FLASH = "aten::_scaled_dot_product_flash_attention"
_EFFICIENT = "aten::_scaled_dot_product_efficient_attention"


def gemm(call: OpCall) -> list[Kernel]:
    """One GEMM kernel; a bias vector is added in its epilogue (cuBLASLt), which is no kernel."""
    left, right = [t for t in call.inputs if t.dim() >= 2][-2:]
    dtype = left.dtype
    name = f"gemm_{dtype_name(dtype)}_{_layout(left)}{_layout(right)}"
    if call.name in {"bmm", "baddbmm"}:
        name = "batched_" + name
    return [Kernel(name, call.flops, math=call.matrix_unit(dtype), dtype=dtype_name(dtype))]


def convolution(call: OpCall) -> list[Kernel]:
    """An implicit GEMM, and an elementwise add where there is a bias (cuDNN through PyTorch)."""
    weight, bias = call.arg(1, "weight"), call.arg(2, "bias")
    dtype = dtype_name(weight.dtype)
    kernels = [
        Kernel(f"conv_fprop_{dtype}", call.flops, math=call.matrix_unit(weight.dtype), dtype=dtype)
    ]
    if bias is not None:
        out_bytes = tensor_bytes(call.out)
        kernels.append(
            Kernel(
                "elementwise_kernel<add>",
                call.out.numel(),
                bytes_read=out_bytes + tensor_bytes(bias),
                bytes_written=out_bytes,
            )
        )
    return kernels


def convolution_backward(call: OpCall) -> list[Kernel]:
    """Gradients of input and weight are one kernel each, the bias's a reduction."""
    grad, data, weight = call.inputs[:3]
    mask = call.arg(10, "output_mask", [True, True, True])
    unit, dtype = call.matrix_unit(weight.dtype), dtype_name(weight.dtype)
    products = sum(bool(m) for m in mask[:2]) or 1
    made = [
        ("conv_dgrad", mask[0], tensor_bytes(grad) + tensor_bytes(weight), data),
        ("conv_wgrad", mask[1], tensor_bytes(grad) + tensor_bytes(data), weight),
    ]
    kernels = [
        Kernel(
            f"{name}_{dtype}",
            call.flops // products,
            read,
            tensor_bytes(target),
            unit,
            dtype,
            target.numel(),
        )
        for name, wanted, read, target in made
        if wanted
    ]
    if mask[2]:
        channels = grad.shape[1]
        kernels.append(
            Kernel(
                "reduce_kernel<sum>",
                grad.numel(),
                tensor_bytes(grad),
                channels * grad.element_size(),
                elements=channels,
            )
        )
    return kernels


def _causal_flops(flops: int, queries: int, keys: int, is_causal: bool) -> int:
    """FLOPs a kernel runs that skips masked pairs; the mask is aligned to the top left."""
    if not is_causal:
        return flops
    seen = min(queries, keys)
    pairs = seen * (seen + 1) // 2 + max(queries - keys, 0) * keys
    return flops * pairs // (queries * keys)


def _is_flash(query: torch.Tensor, mask: Any) -> bool:
    """Flash attention takes 16-bit types, heads to 256 wide, and no mask of its own."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    return half and mask is None and query.shape[-1] <= 256


def attention_forward(call: OpCall) -> list[Kernel]:
    """One fused kernel: flash attention where CUDA can use it, else memory-efficient attention."""
    query, key = call.inputs[:2]
    mask = call.kwargs.get("attn_mask")
    flops = _causal_flops(
        call.flops, query.shape[-2], key.shape[-2], bool(call.arg(4, "is_causal", False))
    )
    flash = _is_flash(query, mask)
    name = "flash_fwd_kernel" if flash else "fmha_cutlassF"
    name = f"{name}_{dtype_name(query.dtype)}_d{query.shape[-1]}"
    return [
        Kernel(name, flops, math=call.matrix_unit(query.dtype), op=_FLASH if flash else _EFFICIENT)
    ]


def attention_backward(call: OpCall) -> list[Kernel]:
    """Three kernels for flash attention; for memory-efficient attention, the row sums and one.

    Flash attention: rows of dO*O summed (which also clears the float32 accumulator of dQ), the
    main kernel, and the conversion of dQ. Memory-efficient attention: PyTorch multiplies and sums
    dO*O with two ordinary kernels, then runs one.
    """
    grad, query, key, value, out, lse = call.inputs[:6]
    flops = _causal_flops(
        call.flops, query.shape[-2], key.shape[-2], bool(call.arg(7, "is_causal", False))
    )
    unit, dtype, width = call.matrix_unit(query.dtype), dtype_name(query.dtype), query.shape[-1]
    rows = lse.numel()
    row_bytes, accumulator_bytes = rows * 4, query.numel() * 4
    qkv = sum(tensor_bytes(t) for t in (query, key, value))
    grads_kv = tensor_bytes(key) + tensor_bytes(value)
    read = tensor_bytes(grad) + tensor_bytes(out)
    mask = call.kwargs.get("attn_mask")
    if _is_flash(query, mask):
        kernels = [
            Kernel(
                "flash_bwd_dot_do_o_kernel",
                2 * out.numel(),
                read,
                row_bytes + accumulator_bytes,
                "fp32",
                elements=out.numel(),
            ),
            Kernel(
                f"flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel_{dtype}_d{width}",
                flops,
                qkv + tensor_bytes(grad) + 2 * row_bytes + accumulator_bytes,
                grads_kv + accumulator_bytes,
                unit,
                elements=key.numel(),
            ),
            Kernel(
                "flash_bwd_convert_dq_kernel",
                query.numel(),
                accumulator_bytes,
                tensor_bytes(query),
                "fp32",
                elements=query.numel(),
            ),
        ]
        return [replace(kernel, op=_FLASH + "_backward") for kernel in kernels]
    product_bytes = out.numel() * 4
    mask_bytes = 0 if mask is None else tensor_bytes(mask)
    kernels = [
        Kernel(
            "elementwise_kernel<mul>",
            out.numel(),
            read,
            product_bytes,
            "fp32",
            "float32",
            out.numel(),
        ),
        Kernel(
            "reduce_kernel<sum>", out.numel(), product_bytes, row_bytes, "fp32", "float32", rows
        ),
        Kernel(
            f"fmha_cutlassB_{dtype}_d{width}",
            flops,
            qkv + tensor_bytes(grad) + 2 * row_bytes + mask_bytes,
            grads_kv + tensor_bytes(query),
            unit,
            elements=key.numel(),
        ),
    ]
    return [replace(kernel, op=_EFFICIENT + "_backward") for kernel in kernels]
