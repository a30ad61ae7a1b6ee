"""What a step does, kernel by kernel, before any clock is known: work, not time.

A `KernelWork` is one distinct kernel (the signature of a simulated trace); a `StepWork` is the
sequence a training or inference step launches. Captured from a real model by
`clockwright.tracer.workloads`, timed by a simulated GPU. Holds no torch object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["KernelWork", "MathUnit", "Phase", "StepItem", "StepWork"]

MathUnit = Literal["tensor_16", "tensor_tf32", "fp32", "fp64", "int", "none"]
Phase = Literal["forward", "backward", "optimizer", "other"]


@dataclass(frozen=True)
class KernelWork:
    """One distinct kernel's work.

    Attributes:
        name: kernel name (for a captured op: the CUDA kernel family it maps to).
        op: the operator that launches it, such as ``aten::addmm``.
        shapes: its input shapes as text, such as ``[[4096, 2048], [2048, 8192]]``.
        dtype: main data type, such as ``bfloat16``.
        flops: arithmetic operations (a multiply-add is two).
        bytes_read: bytes read from device memory at the least (each input once).
        bytes_written: bytes written at the least (each output once).
        math: the unit that does the arithmetic.
        elements: output elements, from which the number of thread blocks follows.
    """

    name: str
    op: str
    shapes: str
    dtype: str
    flops: int
    bytes_read: int
    bytes_written: int
    math: MathUnit
    elements: int

    @property
    def bytes(self) -> int:
        """Bytes moved, both ways."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class StepItem:
    """One launch in the step: which work, and where in the model it came from."""

    work: int
    phase: Phase
    module: str | None = None
    layer: int | None = None
    stream: int = 7


@dataclass(frozen=True)
class StepWork:
    """A whole step: ``works`` (S distinct), ``items`` (K launches in order)."""

    workload: str
    works: tuple[KernelWork, ...]
    items: tuple[StepItem, ...]
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
