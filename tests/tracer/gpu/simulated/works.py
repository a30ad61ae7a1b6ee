"""Kernels that the simulator's tests share."""

from clockwright.tracer.work import KernelWork, StepItem, StepWork


def gemm(size: int) -> KernelWork:
    return KernelWork(
        "gemm", "aten::mm", f"[[{size}, {size}], [{size}, {size}]]", "bfloat16",
        2 * size**3, 4 * size**2, 2 * size**2, "tensor_16", size**2,
    )  # fmt: skip


def copy(moved: int) -> KernelWork:
    half = moved // 2
    return KernelWork(
        "copy", "aten::copy_", f"[[{half}]]", "bfloat16", 0, half, half, "none", half // 2
    )


def tiny() -> KernelWork:
    return KernelWork("add", "aten::add", "[[256]]", "bfloat16", 256, 1024, 512, "fp32", 256)


def pointwise(op: str, elements: int) -> KernelWork:
    return KernelWork(
        op, f"aten::{op}", f"[[{elements}]]", "bfloat16",
        26 * elements, 2 * elements, 2 * elements, "fp32", elements,
    )  # fmt: skip


def step_of(*works: KernelWork, times: int = 1) -> StepWork:
    items = tuple(StepItem(work, "forward") for _ in range(times) for work in range(len(works)))
    return StepWork("test", works, items)
