"""How one call on lists of tensors becomes several kernels on CUDA.

PyTorch's multi-tensor kernels take the addresses of many tensors as launch arguments and cut each
tensor into chunks of 65,536 elements, one thread block each. A launch goes out when its table of
tensors or of blocks is full. The limits come from the space for kernel arguments: 4 KB, or 32 KB
in builds for CUDA 13 and later (``ATen/native/cuda/MultiTensorApply.cuh``, PyTorch 2.13, whose
default wheels are built for CUDA 13; we use those). A build for an older CUDA launches about seven
times as many, smaller kernels for the same elements.

Left out: the slow path, taken where the tensors of one call differ in type or layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CHUNK_ELEMENTS", "Launch", "split_launches"]

CHUNK_ELEMENTS = 65_536
_MAX_TENSORS = (770, 448, 336, 252, 210)
_MAX_TENSORS_SCALAR_LIST = (672, 448, 336, 252, 210)
_MAX_BLOCKS = 2_240


@dataclass(frozen=True)
class Launch:
    """One kernel of a multi-tensor call: how many tensors it touches, blocks, elements a list."""

    tensors: int
    blocks: int
    elements: int


def split_launches(numels: Sequence[int], depth: int, *, scalar_list: bool = False) -> list[Launch]:
    """The launches of one multi-tensor call.

    Args:
        numels: elements of each tensor in a list, in order; empty tensors take no block.
        depth: how many lists the kernel walks side by side (1 to 5; more are taken as 5).
        scalar_list: whether each tensor has a scalar of its own, which costs argument space.

    Returns:
        The launches in order. Their elements sum to ``sum(numels)``.
    """
    limits = _MAX_TENSORS_SCALAR_LIST if scalar_list else _MAX_TENSORS
    max_tensors = limits[min(max(depth, 1), 5) - 1]
    launches: list[Launch] = []
    tensors = blocks = elements = 0
    for numel in numels:
        if numel == 0:
            continue
        tensors += 1
        left = numel
        while left:
            room = min(_MAX_BLOCKS - blocks, -(-left // CHUNK_ELEMENTS))
            taken = min(left, room * CHUNK_ELEMENTS)
            blocks, elements, left = blocks + room, elements + taken, left - taken
            if blocks == _MAX_BLOCKS or (left == 0 and tensors == max_tensors):
                launches.append(Launch(tensors, blocks, elements))
                # A tensor cut by a full table of blocks is the first of the next launch.
                tensors, blocks, elements = (1 if left else 0), 0, 0
    if blocks:
        launches.append(Launch(tensors, blocks, elements))
    return launches
