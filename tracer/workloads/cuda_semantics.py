"""Makes PyTorch on CPU tensors take the decisions it would take on CUDA ones.

The CPU build cannot make fake CUDA tensors, and several of PyTorch's choices depend on the device
before any operator is dispatched. Each is set as CUDA would, only while a step is captured:

- devices named ``cuda`` in the user's code mean the fake CPU device;
- ``torch.autocast("cuda")`` is CPU autocast with CUDA's default type and CUDA's list of
  operators kept in float32;
- dropout is the fused ``native_dropout``, and attention's own dropout stays in the fused kernel;
- optimizers and gradient clipping prefer their multi-tensor (foreach) form;
- what a DataLoader does is host work: it runs on real tensors and is not recorded.

Left out: calls into the CUDA runtime itself (events, streams, graphs, memory statistics); without
a GPU they raise in the user's step.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader

__all__ = ["as_on_cuda"]

# CUDA autocast runs these in float32 (ATen/autocast_mode.h, AT_FORALL_FP32 and
# AT_FORALL_FP32_SET_OPT_DTYPE), as far as a model calls them by these names.
_FLOAT32_UNDER_AUTOCAST = frozenset(
    {
        "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax",
        "cumsum", "cumprod", "prod", "sum", "norm", "exp", "expm1", "log", "log10", "log2",
        "log1p", "reciprocal", "rsqrt", "pow", "softplus", "logsumexp", "nll_loss",
        "cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
        "binary_cross_entropy_with_logits", "cosine_similarity", "cosine_embedding_loss",
        "cdist", "renorm", "interpolate",
    }
)  # fmt: skip
_HALF = (torch.float16, torch.bfloat16)
# Modules that ask whether a device has multi-tensor kernels.
_FOREACH_QUESTION = "_get_foreach_kernels_supported_devices"
_FOREACH_ASKERS = ("torch.utils._foreach_utils", "torch.optim.optimizer")


def _is_cuda(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if _is_cuda(value) else value


def _widen(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in _HALF
    return value.float() if half else value


class _CudaFunctions(TorchFunctionMode):
    """Rewrites the calls that depend on the device; tells when backward is called."""

    def __init__(self, around_backward: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._around_backward = around_backward

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "backward":
            with self._around_backward():
                return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            return args[0]
        if "device" in kwargs or name == "to":
            args = tuple(_on_cpu(a) for a in args)
            kwargs = {k: _on_cpu(v) for k, v in kwargs.items()}
        if name == "scaled_dot_product_attention":
            return func(*_without_dropout(args), **{**kwargs, **_no_dropout(args)})
        if name == "dropout" and func in (torch.nn.functional.dropout, torch.dropout):
            return _dropout(*args, **kwargs)
        if name in _FLOAT32_UNDER_AUTOCAST and torch.is_autocast_enabled("cpu"):
            args = tuple(_widen(a) for a in args)
        return func(*args, **kwargs)


def _without_dropout(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args


def _no_dropout(args: tuple[Any, ...]) -> dict[str, float]:
    return {} if len(args) > 4 else {"dropout_p": 0.0}


def _dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> torch.Tensor:
    if not (training if train is None else train) or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


@contextmanager
def _fake_tensors_in_lists() -> Iterator[None]:
    """PyTorch asks for its own tensor types before it takes lists; fake ones stand for them."""
    askers = [importlib.import_module(name) for name in _FOREACH_ASKERS]
    lists = {id(t): t for a in askers if (t := getattr(a, "_foreach_supported_types", None))}
    for types in lists.values():
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in lists.values():
            types.remove(FakeTensor)


@contextmanager
def _cuda_autocast() -> Iterator[None]:
    autocast = torch.amp.autocast_mode.autocast
    original = autocast.__init__

    @functools.wraps(original)
    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *args, **kwargs)

    with mock.patch.object(autocast, "__init__", init):
        yield


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def on_host(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return on_host


@contextmanager
def _loaders_on_host() -> Iterator[None]:
    loader, iterator = dataloader.DataLoader, dataloader._BaseDataLoaderIter
    with (
        mock.patch.object(loader, "__iter__", _on_host(loader.__iter__)),
        mock.patch.object(iterator, "__next__", _on_host(iterator.__next__)),
    ):
        yield


@contextmanager
def _swappable(mode: FakeTensorMode) -> Iterator[None]:
    """``Module.to`` swaps fake parameters, which the mode's own memo of them would forbid."""
    original = torch.utils.swap_tensors

    def swap(one: torch.Tensor, other: torch.Tensor) -> None:
        mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        original(one, other)  # type: ignore[no-untyped-call]

    with mock.patch.object(torch.utils, "swap_tensors", swap):
        yield


@contextmanager
def as_on_cuda(
    mode: FakeTensorMode | None = None,
    around_backward: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[None]:
    """Everything of the module docstring, while the context lasts.

    Args:
        mode: the fake mode that is active, or None for real tensors.
        around_backward: entered around each call of ``backward()``.
    """
    with ExitStack() as stack:
        for asker in _FOREACH_ASKERS:
            module = importlib.import_module(asker)
            question = getattr(module, _FOREACH_QUESTION, None)
            # Absent in some releases: the loop form is then captured, one kernel a tensor.
            if question is not None:
                devices = [*question(), "cpu"]
                stack.enter_context(
                    mock.patch.object(module, _FOREACH_QUESTION, lambda devices=devices: devices)
                )
        stack.enter_context(_fake_tensors_in_lists())
        stack.enter_context(_cuda_autocast())
        stack.enter_context(_loaders_on_host())
        if mode is not None:
            stack.enter_context(_swappable(mode))
        stack.enter_context(_CudaFunctions(around_backward))
        yield
