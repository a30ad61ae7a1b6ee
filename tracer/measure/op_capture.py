"""The distinct operators of a step, with arguments to run each again alone.

A dispatch mode sees every operator below autograd, in the forward pass, the backward pass and the
optimizer. The first of each kind (operator, shapes, strides, types and scalars equal) keeps copies
of its arguments, with the step's own values: a matrix product on zeros draws less power than on
real data. Views, allocations and reads back to the host launch nothing worth a loop and are left
out; so are kernels launched outside PyTorch's dispatcher (custom extensions without an operator).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CapturedOp", "OpCapture", "clone_arguments", "make_capture_mode", "tensor_bytes"]

_SKIPPED = ("_local_scalar_dense", "item", "nonzero", "lift_fresh", "detach", "alias", "set_")
_ALLOCATES = ("empty", "new_empty")


@dataclass
class CapturedOp:
    """One kind of operator call.

    Attributes:
        function: the overload, such as ``aten.mm.default``.
        args, kwargs: copies of the first call's arguments.
        count: calls in the step.
        bytes: of its tensor arguments.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    count: int = 1
    bytes: int = 0

    @property
    def name(self) -> str:
        """The overload's name and its tensors' shapes."""
        shapes = [str(tuple(t.shape)) for t in _tensors((self.args, self.kwargs))]
        shown = " ".join(shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "")
        return f"{self.function} {shown}"

    def run(self) -> Any:
        """Call it once."""
        return self.function(*self.args, **self.kwargs)


@dataclass
class OpCapture:
    """What a step called.

    Attributes:
        ops: the distinct calls in order of first appearance.
        missed: operators whose arguments could not be copied, with the reason.
        calls: operator calls seen, views and allocations included.
    """

    ops: list[CapturedOp] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)
    calls: int = 0


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for item in value for tensor in _tensors(item)]


def tensor_bytes(value: Any) -> int:
    """Bytes of the tensors in nested arguments or results."""
    return sum(t.numel() * t.element_size() for t in _tensors(value))


def _clone_tensor(tensor: Any) -> Any:
    """A copy with the same strides, overlapping ones (expanded tensors) included."""
    if tensor.numel() == 0:
        return tensor.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.shape, tensor.stride())


def clone_arguments(value: Any) -> Any:
    """Nested arguments with every tensor copied; all else as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        return _clone_tensor(value)
    if isinstance(value, dict):
        return {key: clone_arguments(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(clone_arguments(item) for item in value)
    return value


def _key(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return ("T", value.dtype, tuple(value.shape), value.stride(), value.device.type)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(_key(item) for item in value)
    return repr(value)


def _launches_nothing(function: Any) -> bool:
    name = function.overloadpacket.__name__
    if name in _SKIPPED or name.startswith(_ALLOCATES):
        return True
    returns = function._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def make_capture_mode(capture: OpCapture, device_type: str = "cuda") -> Any:
    """A dispatch mode that fills ``capture`` with the operators that touch ``device_type``.

    Run exactly one step within it.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    known: dict[Any, CapturedOp | None] = {}

    def note(function: Any, args: Any, kwargs: Any) -> None:
        key = (str(function), _key(args), _key(kwargs))
        if key in known:
            op = known[key]
            if op is not None:
                op.count += 1
            return
        known[key] = None
        try:
            op = CapturedOp(function, clone_arguments(args), clone_arguments(kwargs))
        except torch.OutOfMemoryError as error:
            capture.missed[str(function)] = f"out of memory: {str(error).splitlines()[0]}"
            return
        except (RuntimeError, TypeError) as error:
            capture.missed[str(function)] = str(error).splitlines()[0]
            return
        op.bytes = tensor_bytes((args, kwargs))
        known[key] = op
        capture.ops.append(op)

    class CaptureMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            capture.calls += 1
            on_device = any(t.device.type == device_type for t in _tensors((args, kwargs)))
            made = str(kwargs.get("device", "")).startswith(device_type)
            if (on_device or made) and not _launches_nothing(func):
                note(func, args, kwargs)
            return func(*args, **kwargs)

    made: Any = CaptureMode
    return made()
