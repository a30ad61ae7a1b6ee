"""Matrix products, convolutions and attention: the kernels CUDA launches for each.

FLOPs come from torch's own counter. One correction: the counter counts the whole square of a
causal attention, while the fused kernels skip what lies above the diagonal; they are given the
share of query-key pairs that causality leaves, (n + 1) / (2 n).

Kernel names are families. Which cuBLAS or cuDNN kernel a heuristic picks, and whether it splits
the sum (split-K, a second small kernel), is only known on the GPU and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from .kernel_call import Kernel, OpCall, dtype_name, tensor_bytes

__all__ = ["attention_backward", "attention_forward", "convolution", "convolution_backward", "gemm"]


def _layout(matrix: torch.Tensor) -> str:
    """CuBLAS's letter: ``t`` where the last dimension is not the contiguous one."""
    return "t" if matrix.dim() >= 2 and matrix.stride(-1) != 1 and matrix.stride(-2) == 1 else "n"


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
    weight, bias = call.arg("weight"), call.arg("bias")
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
    mask = call.arg("output_mask", [True, True, True])
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


@dataclass(frozen=True)
class _Attention:
    """One attention call, under its CPU or any of its CUDA names."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    flops: int
    family: str  # flash, cudnn or efficient
    op: str

    @classmethod
    def of(cls, call: OpCall) -> _Attention:
        query, key = call.args["query"], call.args["key"]
        mask = call.arg("attn_mask", call.arg("attn_bias"))
        if call.name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
            # Flash attention takes 16-bit types, heads to 256 wide, and no mask of its own.
            half = query.dtype in (torch.float16, torch.bfloat16)
            family = "flash" if half and mask is None and query.shape[-1] <= 256 else "efficient"
        else:
            family = next(f for f in ("flash", "cudnn", "efficient") if f in call.name)
        causal = bool(call.arg("is_causal", False))
        flops = _causal_flops(call.flops, query.shape[-2], key.shape[-2], causal)
        backward = "_backward" if call.name.endswith("_backward") else ""
        op = f"aten::_scaled_dot_product_{family}_attention{backward}"
        return cls(query, key, call.args["value"], mask, flops, family, op)

    @property
    def variant(self) -> str:
        """What the kernel's template is instantiated for."""
        return f"{dtype_name(self.query.dtype)}_d{self.query.shape[-1]}"


_FORWARD_NAMES = {
    "flash": "flash_fwd_kernel",
    "cudnn": "cudnn_sdpa_fprop",
    "efficient": "fmha_cutlassF",
}


def attention_forward(call: OpCall) -> list[Kernel]:
    """One fused kernel: flash attention where CUDA can use it, else memory-efficient attention."""
    attention = _Attention.of(call)
    return [
        Kernel(
            f"{_FORWARD_NAMES[attention.family]}_{attention.variant}",
            attention.flops,
            math=call.matrix_unit(attention.query.dtype),
            op=attention.op,
        )
    ]


def attention_backward(call: OpCall) -> list[Kernel]:
    """Three kernels: sums of dO*O, the main one, and what goes before or after it."""
    attention = _Attention.of(call)
    make = _efficient_backward if attention.family == "efficient" else _flash_backward
    return [replace(kernel, op=attention.op) for kernel in make(call, attention)]


def _flash_backward(call: OpCall, attention: _Attention) -> list[Kernel]:
    """Rows of dO*O (which clears the float32 accumulator of dQ), main, conversion of dQ."""
    query, key, out = attention.query, attention.key, call.args["out"]
    grad = call.inputs[0]
    row_bytes = call.args["logsumexp"].numel() * 4
    accumulator_bytes = query.numel() * 4
    qkv = sum(tensor_bytes(t) for t in (query, key, attention.value))
    main = (
        "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
        if attention.family == "flash"
        else "cudnn_sdpa_bprop"
    )
    return [
        Kernel(
            "flash_bwd_dot_do_o_kernel",
            2 * out.numel(),
            tensor_bytes(grad) + tensor_bytes(out),
            row_bytes + accumulator_bytes,
            "fp32",
            elements=out.numel(),
        ),
        Kernel(
            f"{main}_{attention.variant}",
            attention.flops,
            qkv + tensor_bytes(grad) + 2 * row_bytes + accumulator_bytes,
            tensor_bytes(key) + tensor_bytes(attention.value) + accumulator_bytes,
            call.matrix_unit(query.dtype),
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


def _efficient_backward(call: OpCall, attention: _Attention) -> list[Kernel]:
    """PyTorch multiplies and sums dO*O in float32 with two ordinary kernels, then runs one."""
    out, grad = call.args["out"], call.inputs[0]
    rows = call.args["logsumexp"].numel()
    product_bytes = out.numel() * 4
    qkv = sum(tensor_bytes(t) for t in (attention.query, attention.key, attention.value))
    mask_bytes = 0 if attention.mask is None else tensor_bytes(attention.mask)
    return [
        Kernel(
            "elementwise_kernel<mul>",
            out.numel(),
            tensor_bytes(grad) + tensor_bytes(out),
            product_bytes,
            "fp32",
            "float32",
            out.numel(),
        ),
        Kernel("reduce_kernel<sum>", out.numel(), product_bytes, rows * 4, "fp32", "float32", rows),
        Kernel(
            f"fmha_cutlassB_{attention.variant}",
            attention.flops,
            qkv + tensor_bytes(grad) + 2 * rows * 4 + mask_bytes,
            qkv,
            call.matrix_unit(attention.query.dtype),
            elements=attention.key.numel(),
        ),
    ]
