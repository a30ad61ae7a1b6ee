"""Where in the model a kernel comes from: module path, layer and phase.

Forward kernels belong to the innermost module being called (global module hooks, so nothing in
the user's model is touched). Backward kernels belong to the autograd node that launches them;
autograd numbers nodes in the order the forward pass makes them, so the module that was entered or
left last before a node's number is the module that made it. Gradient accumulation belongs to its
parameter's module. Recomputation (activation checkpointing) enters modules again, during the
backward phase, and is named by them.

Left out: modules called from other threads, and nodes made by a nested backward pass.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from ..work import Phase

__all__ = ["Attribution", "layer_of"]

_LAYER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def layer_of(path: str | None) -> int | None:
    """The first number in a module path: 3 for ``transformer.h.3.attn``; None if there is none."""
    match = _LAYER.search(path) if path else None
    return int(match[1]) if match else None


class Attribution:
    """Follows a step through modules, backward pass and optimizer.

    Args:
        model: the module whose ``named_modules`` name the paths, or None (then the first module
            called, by its class name, is the root of its own paths).
    """

    def __init__(self, model: torch.nn.Module | None) -> None:
        self._paths: dict[int, str] = {}
        self._owners: dict[int, str] = {}
        self._named = model is not None
        if model is not None:
            self._name(model, "")
        self._stack: list[str] = []
        self._entered_at: list[int] = []
        self._entered: list[str | None] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._after_backward = False
        self._calling_backward = 0
        # Identities of tensors that CUDA would keep in host memory: operators on them, no kernel.
        self.host: frozenset[int] = frozenset()

    def _name(self, root: torch.nn.Module, prefix: str) -> None:
        for name, module in root.named_modules():
            path = f"{prefix}.{name}" if prefix and name else prefix or name
            self._paths.setdefault(id(module), path)
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), path)

    def _mark(self) -> None:
        # Before any module, and after the outermost one, nodes belong to the step itself.
        self._entered_at.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._entered.append(self._stack[-1] if self._stack else None)

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        if id(module) not in self._paths:
            self._name(module, type(module).__name__)
        if not self._stack and torch._C._current_autograd_node() is None:
            self._after_backward = False
        self._stack.append(self._paths[id(module)])
        self._mark()

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._mark()

    def _start_optimizer(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizer = optimizer
        # Step counts live on the GPU only for fused or capturable optimizers.
        on_host = [
            state["step"]
            for group in optimizer.param_groups
            if not (group.get("fused") or group.get("capturable"))
            for parameter in group["params"]
            if isinstance(state := optimizer.state.get(parameter), dict)
            and isinstance(state.get("step"), torch.Tensor)
        ]
        self.host = frozenset(map(id, on_host))

    def _end_optimizer(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizer = None
        self.host = frozenset()

    @contextmanager
    def following(self) -> Iterator[Attribution]:
        """Hook every module and optimizer of this process while a step runs."""
        handles = [
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave, always_call=True),
            torch_optimizer.register_optimizer_step_pre_hook(self._start_optimizer),
            torch_optimizer.register_optimizer_step_post_hook(self._end_optimizer),
        ]
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def calling_backward(self) -> Iterator[None]:
        """While ``backward()`` is being called, also outside its nodes (the gradient of 1)."""
        self._calling_backward += 1
        try:
            yield
        finally:
            self._calling_backward -= 1
            self._after_backward = True

    def _path_of_node(self, node: Any) -> str | None:
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            return self._owners.get(id(variable))
        index = bisect_right(self._entered_at, node._sequence_nr()) - 1
        return self._entered[index] if index >= 0 else None

    def locate(self) -> tuple[Phase, str | None]:
        """Phase and module path of an operator called now."""
        if self._optimizer is not None:
            return "optimizer", None
        node: Any = torch._C._current_autograd_node()
        inside = self._stack[-1] if self._stack else None
        if node is not None:
            self._after_backward = True
            return "backward", inside if inside is not None else self._path_of_node(node)
        if self._calling_backward:
            return "backward", inside
        return ("other" if self._after_backward and inside is None else "forward"), inside
