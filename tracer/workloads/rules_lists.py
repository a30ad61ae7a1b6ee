"""Operators on lists of tensors, the optimizers above all: chunked multi-tensor kernels.

Each launch of a call works on a slice of the elements, so bytes and FLOPs are shared out by
elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .kernel_call import Kernel, OpCall, dtype_name
from .multi_tensor import split_launches

__all__ = ["FUSED_OPTIMIZERS", "foreach", "fused_optimizer"]


@dataclass(frozen=True)
class FusedOptimizer:
    """A fused optimizer kernel: which lists of arguments it reads and writes, FLOPs an element."""

    functor: str
    read: tuple[str, ...]
    written: tuple[str, ...]
    flops_per_element: int


# Costs count the published update rule with a
# division and a square root as eight operations each, as in rules_pointwise.
_ADAM_STATE = ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")
_ADAM = FusedOptimizer(
    "FusedAdamMathFunctor", ("self", "grads", *_ADAM_STATE), ("self", *_ADAM_STATE), 30
)
FUSED_OPTIMIZERS = {
    "_fused_adamw_": _ADAM,
    "_fused_adam_": _ADAM,
    "_fused_sgd_": FusedOptimizer(
        "FusedSgdMathFunctor",
        ("self", "grads", "momentum_buffer_list"),
        ("self", "momentum_buffer_list"),
        6,
    ),
    "_fused_adagrad_": FusedOptimizer(
        "FusedAdagradMathFunctor", ("self", "grads", "state_sums"), ("self", "state_sums"), 22
    ),
}


def fused_optimizer(call: OpCall) -> list[Kernel]:
    """The chunked launches of one fused optimizer step over all its parameters."""
    spec = FUSED_OPTIMIZERS[call.name]
    params = call.arg("self", [])
    if not params:
        return []
    lists = {n: call.arg(n, []) for n in dict.fromkeys((*spec.read, *spec.written))}
    size = {name: tensors[0].element_size() for name, tensors in lists.items() if tensors}
    dtype = dtype_name(params[0].dtype)
    return [
        Kernel(
            f"multi_tensor_apply_kernel<{spec.functor}>",
            launch.elements * spec.flops_per_element,
            launch.elements * sum(size[i] for i in spec.read if i in size),
            launch.elements * sum(size[i] for i in spec.written if i in size),
            "fp32",
            dtype,
            launch.elements,
            f"[{len(size)} lists, {launch.tensors} tensors, {launch.elements} elements]",
        )
        for launch in split_launches([p.numel() for p in params], len(size))
    ]


def _norm(call: OpCall, tensors: list[torch.Tensor], kernels: list[Kernel]) -> list[Kernel]:
    """A norm of each tensor leaves partial sums a chunk, which a second kernel joins."""
    count = len(tensors)
    cleanup = Kernel(
        "lpnorm_cleanup",
        count,
        count * 4,
        sum(t.element_size() for t in call.outputs),
        "fp32",
        elements=count,
        shapes=f"[{count} tensors]",
    )
    return [*kernels, cleanup]


def foreach(call: OpCall) -> list[Kernel]:
    """The chunked launches of one ``_foreach_*`` call."""
    lists = [a for a in call.args.values() if isinstance(a, list | tuple) and a]
    tensor_lists = [a for a in lists if isinstance(a[0], torch.Tensor)]
    scalar_list = any(not isinstance(a[0], torch.Tensor) for a in lists)
    if not tensor_lists:
        return []
    operation = call.name.removeprefix("_foreach_").rstrip("_")
    first = tensor_lists[0]
    in_place = call.name.endswith("_")
    reads = tensor_lists[1:] if operation in {"copy", "zero"} else tensor_lists
    is_norm = operation == "norm"
    targets = [first] if in_place else ([] if is_norm else [call.outputs])
    depth = len(tensor_lists) + (0 if in_place or is_norm else 1)
    weight = {"sqrt": 8, "div": 8, "addcdiv": 10, "addcmul": 3, "lerp": 3, "norm": 2}
    kernels = [
        Kernel(
            f"multi_tensor_apply_kernel<{operation}>",
            0 if operation in {"copy", "zero"} else launch.elements * weight.get(operation, 1),
            launch.elements * sum(t[0].element_size() for t in reads),
            launch.elements * sum(t[0].element_size() for t in targets)
            + (launch.blocks * 4 * is_norm),
            None,
            dtype_name(first[0].dtype),
            launch.elements,
            f"[{depth} lists, {launch.tensors} tensors, {launch.elements} elements]",
        )
        for launch in split_launches([t.numel() for t in first], depth, scalar_list=scalar_list)
    ]
    return _norm(call, list(first), kernels) if is_norm else kernels
