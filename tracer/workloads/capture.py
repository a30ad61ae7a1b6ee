"""Runs one step on fake tensors and records the kernels CUDA would launch, without a GPU.

Model: a dispatch mode above PyTorch's FakeTensorMode sees every operator of forward, backward and
optimizer, below autograd, with shapes and types but no data. rules.py says which kernels each
becomes. No weight is allocated, so the cost is Python's: some seconds and under 2 GB of memory for
GPT-3-XL. The first step is run to let optimizers make their state; the second is recorded; its
forward and backward must repeat the first's, else a third decides.

Left out: kernels of NCCL, custom Triton or CUDA kernels without a registered fake form, what
``torch.compile`` would fuse, host-device copies, and everything that depends on data. Launch
configurations (grid, registers) are unknown: a signature is name, operator, shapes and type.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ...data.errors import ClockwrightError, WorkloadError
from ..work import KernelWork, StepItem, StepWork
from .attribution import Attribution, layer_of
from .cuda_semantics import as_on_cuda
from .failures import describe
from .kernel_call import OpCall
from .rules import NO_KERNEL, kernels_of
from .step import Step

__all__ = ["capture_step", "recording"]

_aten = torch.ops.aten
_SKIPPED_NAMESPACES = frozenset({"prim", "profiler", "prims"})
# Operators that only a CPU has, and the CUDA operator whose FLOP formula is theirs.
_FLOPS_AS = {
    "_scaled_dot_product_flash_attention_for_cpu": _aten._scaled_dot_product_flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}


def _attention_flops(name: str, formula: Callable[..., int], args: tuple[Any, ...]) -> int:
    shapes = [tuple(t.shape) for t in args if isinstance(t, torch.Tensor)]
    backward = name.endswith("backward")
    lead, (query, key, value) = (shapes[:1], shapes[1:4]) if backward else ([], shapes[:3])
    heads = query[1]  # grouped heads do the work of all query heads
    key, value = (key[0], heads, *key[2:]), (value[0], heads, *value[2:])
    # Shapes stand where the formula reads shapes: it passes what is no tensor through.
    return int(formula(*lead, query, key, value, out_val=None))


def _flops(func: Any, name: str, args: tuple[Any, ...], kwargs: Any, result: Any) -> int:
    alias = _FLOPS_AS.get(name)
    if alias is not None:
        return _attention_flops(name, flop_registry[alias], args)
    formula = flop_registry.get(func._overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


class _ScalarReader(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers ``item()`` while a step is built, where nothing is recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten._local_scalar_dense.default:
            return _read_scalar(func, args)
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records kernels of every operator, and answers what would need data with a constant."""

    def __init__(self, attribution: Attribution) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._attribution = attribution
        self._works: dict[KernelWork, int] = {}
        self.items: list[StepItem] = []

    @property
    def works(self) -> tuple[KernelWork, ...]:
        """Distinct kernels, in order of first launch."""
        return tuple(self._works)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            return _read_scalar(func, args)
        if func.namespace in _SKIPPED_NAMESPACES:
            return func(*args, **kwargs)
        # Under inference_mode autograd has not taken composite operators apart before us. Some
        # of them (to, contiguous, reshape) are views only if they have nothing to copy.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        if not func.is_view:
            self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        if name in NO_KERNEL:
            return
        names = [argument.name for argument in func._schema.arguments]
        call = OpCall(
            name=name,
            op=func._schema.name,
            args={**dict(zip(names, args, strict=False)), **kwargs},
            result=result,
            flops=_flops(func, name, args, kwargs, result),
            tf32=torch.get_float32_matmul_precision() != "highest",
            pointwise=torch.Tag.pointwise in func.tags,
            reduction=hasattr(torch.Tag, "reduction") and torch.Tag.reduction in func.tags,
        )
        if not call.inputs and not call.outputs:
            return
        if call.inputs and id(call.inputs[0]) in self._attribution.host:
            return
        phase, path = self._attribution.locate()
        layer = layer_of(path)
        for kernel in kernels_of(call):
            work = self._works.setdefault(call.work(kernel), len(self._works))
            self.items.append(StepItem(work, phase, path, layer))


def _read_scalar(func: Any, args: Any) -> Any:
    """``item()``: the value where it is known; else 0.0, 1 or False, which let steps go on.

    A loss scaler then finds no infinity, a count of tokens no zero to divide by.
    """
    try:
        return func(*args)
    except DataDependentOutputException:
        dtype = args[0].dtype
        if dtype == torch.bool:
            return False
        return 0.0 if dtype.is_floating_point else 1


def _record_once(mode: FakeTensorMode, step: Step) -> tuple[tuple[KernelWork, ...], list[StepItem]]:
    attribution = Attribution(step.model)
    recorder = _Recorder(attribution)
    with as_on_cuda(mode, attribution.calling_backward), attribution.following(), recorder:
        step.run()
    return recorder.works, recorder.items


@contextmanager
def recording(model: torch.nn.Module | None, *, on_cuda: bool) -> Iterator[Callable[[], StepWork]]:
    """Record what runs inside on real tensors; the value gives what was recorded, at any time.

    Args:
        model: whose modules name the paths.
        on_cuda: True if the tensors are on a GPU; False counts CPU operators as CUDA's.
    """
    attribution = Attribution(model)
    recorder = _Recorder(attribution)
    with ExitStack() as stack:
        if not on_cuda:
            stack.enter_context(as_on_cuda(None, attribution.calling_backward))
        stack.enter_context(attribution.following())
        stack.enter_context(recorder)
        yield lambda: StepWork("recorded", recorder.works, tuple(recorder.items), {})


def _pass_signature(
    works: tuple[KernelWork, ...], items: list[StepItem], *, with_optimizer: bool
) -> list[tuple[KernelWork, str]]:
    return [
        (works[i.work], i.phase)
        for i in items
        if with_optimizer or i.phase in {"forward", "backward"}
    ]


@contextmanager
def _quiet() -> Iterator[None]:
    """Fake tensors log a traceback for an operator that refuses; we raise one line instead."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def capture_step(
    build: Callable[[], Step], workload: str, options: dict[str, str | int | float | bool]
) -> StepWork:
    """Build a step on fake tensors, run it, and return what it launches.

    Args:
        build: makes the step on the device ``cpu``; called under FakeTensorMode.
        workload: the spec, kept in the result and named in messages.
        options: kept in the result.

    Raises:
        WorkloadError: the user's code raised, launched nothing, depends on data, or launches
            different kernels from step to step.
    """
    try:
        with _quiet(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            with as_on_cuda(mode), _ScalarReader():  # type: ignore[no-untyped-call]
                step = build()
            first = _record_once(mode, step)
            recorded = _record_once(mode, step)
            if _differs(first, recorded, with_optimizer=False):
                first, recorded = recorded, _record_once(mode, step)
                if where := _differs(first, recorded, with_optimizer=True):
                    raise WorkloadError(
                        f"workload {workload} launches other kernels from step to step ({where}); "
                        "give it batches of one shape"
                    )
    except ClockwrightError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise WorkloadError(
            f"workload {workload} has a shape or value that depends on data, which a capture "
            f"without a GPU does not have ({describe(error)}); use fixed shapes, or record on a GPU"
        ) from error
    except Exception as error:
        raise WorkloadError(f"workload {workload} failed: {describe(error)}") from error
    works, items = recorded
    if not items:
        raise WorkloadError(f"workload {workload} launched no kernel; does its step do any work?")
    return StepWork(workload, works, tuple(items), dict(options))


_Recorded = tuple[tuple[KernelWork, ...], list[StepItem]]


def _differs(first: _Recorded, second: _Recorded, *, with_optimizer: bool) -> str | None:
    """Where two recordings part, in words; None where they are the same."""
    ours = _pass_signature(*first, with_optimizer=with_optimizer)
    theirs = _pass_signature(*second, with_optimizer=with_optimizer)
    if ours == theirs:
        return None
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return (
                f"kernel {index}: {one[0].op} {one[0].shapes} then {other[0].op} {other[0].shapes}"
            )
    return f"{len(ours)} kernels, then {len(theirs)}"
