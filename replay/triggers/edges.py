"""Fires at the edges of modules and of the optimizer, where an eager step can ask for a clock.

Edges are those of `clockwright.data.schedule.Anchor`, in the order in which the kernels on either
side are launched:

* ``forward_pre``, ``forward_post``: module hooks. A forward that runs again inside the backward
  pass (activation checkpointing) is no forward edge.
* ``backward_pre``: just before the autograd node that made the module's output runs.
* ``backward_post``: just before the node that made the module's input runs, which autograd does
  once that input's gradient is whole, so after the last kernel of the module's backward. Where no
  input needs a gradient (an embedding), after the node of the module's output.
* ``optimizer_pre``, ``optimizer_post``: the optimizer's step hooks.

PyTorch's full backward hooks are not used: they put nodes of their own around every module, which
forbids in-place changes of its output, and warn where no input needs a gradient.

Left out: modules inside a compiled region (their hooks do not run), gradients of gradients, and
outputs that are no tensors in (nested) tuples, lists or dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...data.errors import MismatchError

__all__ = ["EdgeHooks"]

OnEdge = Callable[[str, str], None]
_KEY = "clockwright-edges"


class EdgeHooks:
    """Hooks on the modules that are named, and on the optimizer; nothing else is touched.

    Args:
        model: the module that paths are relative to.
        optimizer: the optimizer, or None for inference.
        wanted: (module path, edge) to fire at.
        on_edge: called with module path and edge, in the thread that launches the kernels.

    Raises:
        MismatchError: the model has no module of that path.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        wanted: Iterable[tuple[str, str]],
        on_edge: OnEdge,
    ) -> None:
        self._on_edge = on_edge
        self._handles: list[RemovableHandle] = []
        by_module: dict[str, set[str]] = {}
        for module, edge in wanted:
            by_module.setdefault(module, set()).add(edge)
        known = dict(model.named_modules())
        for path, edges in by_module.items():
            if path not in known:
                raise MismatchError(
                    f"the schedule switches at module {path!r}, which {type(model).__name__} does "
                    "not have; pass the module its paths are relative to"
                )
            self._hook_module(known[path], path, edges)
        if optimizer is not None:
            self._hook_optimizer(
                optimizer, {edge for edges in by_module.values() for edge in edges}
            )

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook_module(self, module: torch.nn.Module, path: str, edges: set[str]) -> None:
        if "forward_pre" in edges:

            def before(_module: Any, _args: Any) -> None:
                if not _recomputing():
                    self._on_edge(path, "forward_pre")

            self._handles.append(module.register_forward_pre_hook(before))
        if edges & {"forward_post", "backward_pre", "backward_post"}:

            def after(_module: Any, args: Any, kwargs: Any, output: Any) -> None:
                if _recomputing():
                    return
                self._follow_backward(path, edges, (args, kwargs), output)
                if "forward_post" in edges:
                    self._on_edge(path, "forward_post")

            self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def _hook_optimizer(self, optimizer: torch.optim.Optimizer, edges: set[str]) -> None:
        for edge, register in (
            ("optimizer_pre", optimizer.register_step_pre_hook),
            ("optimizer_post", optimizer.register_step_post_hook),
        ):
            if edge in edges:

                def fire(_optimizer: Any, _args: Any, _kwargs: Any, edge: str = edge) -> None:
                    self._on_edge("", edge)

                self._handles.append(register(fire))

    def _follow_backward(self, path: str, edges: set[str], inputs: Any, output: Any) -> None:
        """Hang this call's backward edges on the nodes that autograd will run."""
        ends = [tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None]
        if not ends:
            return
        if "backward_pre" in edges:
            fire = _Once(self._on_edge, path, "backward_pre")
            for node in ends:
                _edges_before(node).entered.append(fire)
        if "backward_post" in edges:
            fire = _Once(self._on_edge, path, "backward_post")
            starts = [tensor.grad_fn for tensor in _tensors(inputs) if tensor.grad_fn is not None]
            for node in starts:
                _edges_before(node).left.append(fire)
            if not starts:
                ends[-1].register_hook(lambda _inputs, _outputs: fire())


class _Once:
    """One call's edge: of several nodes the first to run fires it."""

    def __init__(self, on_edge: OnEdge, path: str, edge: str) -> None:
        self._on_edge, self._path, self._edge, self._fired = on_edge, path, edge, False

    def __call__(self) -> None:
        if not self._fired:
            self._fired = True
            self._on_edge(self._path, self._edge)


class _EdgesBefore:
    """What fires before one autograd node: modules left, inner first, then entered, outer first.

    Forward hooks of inner modules run before those of the modules they lie in, so both lists are
    made from the inside out.
    """

    def __init__(self) -> None:
        self.left: list[_Once] = []
        self.entered: list[_Once] = []

    def __call__(self, _gradients: Any) -> None:
        for fire in (*self.left, *reversed(self.entered)):
            fire()


def _edges_before(node: Any) -> _EdgesBefore:
    # The node keeps its metadata; the Python object that stands for it comes and goes.
    found: _EdgesBefore | None = node.metadata.get(_KEY)
    if found is None:
        found = node.metadata[_KEY] = _EdgesBefore()
        node.register_prehook(found)
    return found


def _recomputing() -> bool:
    return torch._C._current_autograd_node() is not None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
