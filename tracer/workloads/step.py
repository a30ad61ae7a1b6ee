"""What a workload hands over: one training or inference step that can be run again and again.

The same `Step` serves three masters: the capture on fake tensors (no weights), the recording on a
real GPU, and the replay that switches clocks at its modules' and optimizer's edges. A step must do
the same work every time it runs; what depends on data (early exits, ragged batches) is outside the
model.

This module imports no torch: a `Step` only holds what a builder made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...data.errors import WorkloadError

__all__ = ["Step", "as_step"]


@dataclass
class Step:
    """One step of a model, built on one device.

    Attributes:
        run: does the whole step (forward, backward and optimizer, or forward alone). What it
            returns is ignored. It must not synchronize more than the user's own loop does.
        model: the ``torch.nn.Module`` whose module paths name the kernels and the anchors, or
            None; paths then start with the class name of each module called first.
        optimizer: the ``torch.optim.Optimizer`` that ``run`` steps, or None.
        device: the device string it was built for, such as ``cuda:0`` or ``cpu``.
        tokens: samples or tokens one step consumes, where known (for throughput), else None.
    """

    run: Callable[[], object]
    model: Any = None
    optimizer: Any = None
    device: str = "cpu"
    tokens: int | None = None


def as_step(returned: object, device: str, where: str) -> Step | None:
    """Read what a user's function returned as a `Step`.

    Args:
        returned: a `Step`; or ``(model, optimizer, run)``; or a callable that runs one step.
        device: recorded in the step where the user gave none.
        where: the spec, for messages.

    Returns:
        The step, or None where ``returned`` is none of these: the function is then itself the
        step, and that call was its first run.

    Raises:
        WorkloadError: it looks like a step and is not one (a bare model, a tuple of another form).
    """
    if isinstance(returned, Step):
        return returned
    if hasattr(returned, "named_modules"):
        raise WorkloadError(
            f"{where} returned a model alone; return (model, optimizer, run), where run() does "
            "one step"
        )
    if isinstance(returned, tuple) and len(returned) == 3 and callable(returned[2]):
        model, optimizer, run = returned
        if model is not None and not hasattr(model, "named_modules"):
            raise WorkloadError(
                f"{where} must return (model, optimizer, run); the first is a "
                f"{type(model).__name__}, not a torch.nn.Module"
            )
        return Step(run=run, model=model, optimizer=optimizer, device=device)
    if callable(returned):
        return Step(run=returned, device=device)
    return None
