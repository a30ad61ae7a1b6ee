"""One operator call as the capture sees it, and the kernels a rule makes of it.

Bytes are the least that device memory must move: each input once, each output once, a tensor
passed twice once, an expanded dimension (stride 0) once. Caches make the truth smaller for what a
former kernel left behind, and larger for what is read twice; the model leaves both out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch

from ..work import KernelWork, MathUnit

__all__ = ["Kernel", "OpCall", "distinct_bytes", "dtype_name", "tensor_bytes"]


def dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes the tensor's elements occupy, broadcast dimensions counted once."""
    sizes = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or n == 0)
    return int(prod(sizes)) * tensor.element_size()


def _flat_tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(_flat_tensors(value))
    return found


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of all tensors, one that is given twice counted once."""
    seen: set[tuple[object, ...]] = set()
    total = 0
    for tensor in tensors:
        key = (
            tensor.untyped_storage()._cdata,
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
        )
        if key not in seen:
            seen.add(key)
            total += tensor_bytes(tensor)
    return total


@dataclass(frozen=True)
class Kernel:
    """One kernel of a call; what is None is taken from the call (see `OpCall.work`)."""

    name: str
    flops: int = 0
    bytes_read: int | None = None
    bytes_written: int | None = None
    math: MathUnit | None = None
    dtype: str | None = None
    elements: int | None = None
    shapes: str | None = None
    op: str | None = None


@dataclass(frozen=True, eq=False)
class OpCall:
    """One operator call, its arguments and result tensors that may be fake.

    Attributes:
        name: such as ``addmm`` (namespace aten) or ``mylib::op``.
        op: the operator as text, such as ``aten::addmm``.
        args: the arguments given, by their names in the schema and in its order.
        result: what it returned.
        flops: what torch's own counter says (0 for operators it does not know).
        tf32: whether float32 matrix products may use TF32 here.
        pointwise: whether torch tags the operator as pointwise.
        reduction: whether torch tags it as a reduction.
    """

    name: str
    op: str
    args: Mapping[str, Any]
    result: Any
    flops: int
    tf32: bool
    pointwise: bool
    reduction: bool

    @cached_property
    def inputs(self) -> list[torch.Tensor]:
        """Tensors among the arguments, lists flattened, in order."""
        return _flat_tensors(self.args.values())

    @cached_property
    def outputs(self) -> list[torch.Tensor]:
        """Tensors among the results."""
        return _flat_tensors([self.result])

    @property
    def out(self) -> torch.Tensor:
        """The first output; the first input where the operator returns nothing."""
        return (self.outputs or self.inputs)[0]

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument by its schema's name."""
        value = self.args.get(name)
        return default if value is None else value

    @cached_property
    def bytes_read(self) -> int:
        """Least bytes of all inputs."""
        return distinct_bytes(self.inputs)

    @cached_property
    def bytes_written(self) -> int:
        """Least bytes of all outputs; of the mutated first input where nothing is returned."""
        return distinct_bytes(self.outputs or self.inputs[:1])

    @cached_property
    def shapes(self) -> str:
        """Input shapes as text."""
        return str([list(t.shape) for t in self.inputs])

    def matrix_unit(self, dtype: torch.dtype) -> MathUnit:
        """The unit a matrix product of this type runs on."""
        if dtype in (torch.bfloat16, torch.float16):
            return "tensor_16"
        if dtype == torch.float32:
            return "tensor_tf32" if self.tf32 else "fp32"
        return "fp64" if dtype in (torch.float64, torch.complex128) else self.vector_unit(dtype)

    @staticmethod
    def vector_unit(dtype: torch.dtype) -> MathUnit:
        """The unit of an elementwise kernel: 16-bit types are computed in float32."""
        if dtype in (torch.float64, torch.complex128):
            return "fp64"
        return "fp32" if dtype.is_floating_point or dtype.is_complex else "int"

    def work(self, kernel: Kernel) -> KernelWork:
        """Fill a kernel's open fields from the call."""
        out = self.out
        dtype = kernel.dtype or dtype_name(out.dtype)
        math: MathUnit = self.vector_unit(out.dtype) if kernel.flops else "none"
        return KernelWork(
            name=kernel.name,
            op=kernel.op or self.op,
            shapes=self.shapes if kernel.shapes is None else kernel.shapes,
            dtype=dtype,
            flops=kernel.flops,
            bytes_read=self.bytes_read if kernel.bytes_read is None else kernel.bytes_read,
            bytes_written=(
                self.bytes_written if kernel.bytes_written is None else kernel.bytes_written
            ),
            math=kernel.math or math,
            elements=int(out.numel()) if kernel.elements is None else kernel.elements,
        )
