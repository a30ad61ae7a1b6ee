"""Elementwise kernels, reductions and copies: names and arithmetic an element.

torch's counter counts matrix products and nothing else. A simulated GPU needs the rest too, since
a kernel of few bytes an element feels the core clock, so the table declares operations an output
element: one for each add or multiply of the formula, eight for a division, square root,
exponential or logarithm (a special-function instruction with its range reduction), twenty for erf
and tanh (PyTorch evaluates polynomials). They are counts of the formula, not measurements.
"""

from __future__ import annotations

from math import prod

import torch

from .kernel_call import Kernel, OpCall, distinct_bytes

__all__ = ["FILLS", "OVERWRITES", "REDUCTIONS", "copy", "fill", "pointwise", "reduction"]

_OPERATIONS = {
    "gelu": 26,
    "gelu_backward": 45,
    "silu": 18,
    "silu_backward": 24,
    "sigmoid": 17,
    "sigmoid_backward": 3,
    "tanh": 20,
    "tanh_backward": 3,
    "erf": 20,
    "exp": 8,
    "log": 8,
    "sqrt": 8,
    "rsqrt": 8,
    "reciprocal": 8,
    "div": 8,
    "pow": 16,
    "cos": 16,
    "sin": 16,
    "addcmul": 3,
    "addcdiv": 10,
    "lerp": 3,
    "where": 1,
}
_MOVES = frozenset({"copy", "_to_copy", "clone", "contiguous", "fill", "zero"})

# Written whole without being read first.
OVERWRITES = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
)
FILLS = frozenset(
    {
        "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like",
        "new_full", "fill", "fill_", "zero", "zero_", "arange", "linspace", "eye", "scalar_tensor",
        "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "normal_",
        "uniform_", "bernoulli_", "random_", "exponential_", "tril_indices", "triu_indices",
    }
)  # fmt: skip
REDUCTIONS = frozenset(
    {
        "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "argmax", "argmin",
        "norm", "linalg_vector_norm", "var", "var_mean", "std", "logsumexp",
    }
)  # fmt: skip


def _is_dense(tensor: torch.Tensor) -> bool:
    """True where elements fill memory without holes, in any order of dimensions."""
    return prod(tensor.shape) == 0 or tensor.is_contiguous() or _permuted_dense(tensor)


def _permuted_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _order(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Sizes and strides that matter: dimensions of one element hold no order."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple((size, stride) for size, stride in pairs if size != 1)


def _family(call: OpCall) -> str:
    """Which elementwise kernel PyTorch's TensorIterator picks."""
    tensors = [t for t in (*call.inputs, *call.outputs) if t.dim()]
    same_order = len({_order(t) for t in tensors}) <= 1
    if not (same_order and all(_is_dense(t) for t in tensors)):
        return "elementwise_kernel"
    if len({t.dtype for t in tensors}) > 1:
        return "unrolled_elementwise_kernel"
    return "vectorized_elementwise_kernel"


def pointwise(call: OpCall) -> list[Kernel]:
    """One elementwise kernel over the output."""
    base = call.name.rstrip("_")
    count = call.out.numel()
    if count == 0:
        return []
    per_element = 0 if base in _MOVES else _OPERATIONS.get(base, 1)
    read = _read_of_sources(call) if call.name in OVERWRITES else None
    return [Kernel(f"{_family(call)}<{base}>", count * per_element, bytes_read=read)]


def _read_of_sources(call: OpCall) -> int:
    """Bytes read by an operator that overwrites its first argument."""
    return distinct_bytes(call.inputs[1:])


def copy(call: OpCall) -> list[Kernel]:
    """A copy, a cast or a change of layout; ``_to_copy`` is a cast where the type changes."""
    if call.out.numel() == 0:
        return []
    source = call.inputs[-1]
    what = "copy" if source.dtype == call.out.dtype else "cast"
    read = _read_of_sources(call) if call.name in OVERWRITES else None
    return [Kernel(f"{_family(call)}<{what}>", 0, bytes_read=read)]


def fill(call: OpCall) -> list[Kernel]:
    """A constant, a range or random numbers written; nothing is read."""
    if call.out.numel() == 0:
        return []
    base = call.name.rstrip("_").removesuffix("_like").removeprefix("new_")
    base = {"zeros": "fill", "ones": "fill", "zero": "fill", "full": "fill"}.get(base, base)
    return [
        Kernel(
            f"vectorized_elementwise_kernel<{base}>",
            0,
            bytes_read=0,
            shapes=str([list(call.out.shape)]),
        )
    ]


def reduction(call: OpCall) -> list[Kernel]:
    """One reduction kernel over the input."""
    source = call.inputs[0]
    if source.numel() == 0:
        return []
    base = "norm" if call.name == "linalg_vector_norm" else call.name
    return [Kernel(f"reduce_kernel<{base}>", source.numel() * (2 if base == "norm" else 1))]
