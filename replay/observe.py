"""Sees which kernels the running model launches in one step, to compare with the schedule.

Two ways, chosen by what the schedule was made from. A schedule from a captured step names
operators: a dispatch mode records them, under the rules that captured them, which slows that one
step and no other. A schedule from a recorded GPU timeline names kernels with their grids: one step
runs under PyTorch's profiler.

A captured step may hold kernels before the model's forward (a mask made on the GPU); what is seen
here begins with the forward, so a sequence that lies in one piece within the scheduled one, with
only the step's ends missing, is taken for the same step.

Left out: steps whose kernels differ every time; only one step is compared.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from ..data.errors import MismatchError
from ..data.schedule import Schedule
from ..data.sequence import KernelSequence
from .matching import Match, match_schedule, scheduled_sequence
from .plan import plan_of
from .source import sequence_of_step

__all__ = ["KernelObserver", "Observer", "OperatorObserver", "compare", "observer_for"]

# Kernels of a step that may lie before its forward or after its optimizer: a share of a long step,
# a few of a short one, never a fifth.
_UNSEEN_SHARE, _UNSEEN_KERNELS, _UNSEEN_MOST = 0.02, 8, 0.2


class Observer(Protocol):
    """Watches one step."""

    def start(self) -> None:
        """The step begins."""
        ...

    def end(self) -> KernelSequence:
        """The step has ended; what it launched."""
        ...


class OperatorObserver:
    """Records operators as `clockwright.tracer.workloads` captures them.

    Args:
        model: whose modules are followed.
        on_cuda: True if the tensors are on a GPU; False has CPU operators counted as the CUDA
            kernels they stand for.
    """

    def __init__(self, model: Any, *, on_cuda: bool) -> None:
        self._model, self._on_cuda = model, on_cuda
        self._stack = ExitStack()
        self._recorded: Any = None

    def start(self) -> None:
        """Enter the dispatch mode."""
        from ..tracer.workloads.capture import recording

        self._recorded = self._stack.enter_context(recording(self._model, on_cuda=self._on_cuda))

    def end(self) -> KernelSequence:
        """Leave it; what was launched in between."""
        self._stack.close()
        return sequence_of_step(self._recorded())


class KernelObserver:
    """Profiles the step and reads its kernels from the trace."""

    def __init__(self) -> None:
        self._profiler: Any = None

    def start(self) -> None:
        """Start PyTorch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        # One cycle is all there is; without the last option some versions warn that more are lost.
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            record_shapes=True,
            acc_events=True,
        )
        self._profiler.start()

    def end(self) -> KernelSequence:
        """Stop it and read what ran."""
        import torch

        from ..tracer.measure.observed import sequence_of_profile

        torch.cuda.synchronize()
        self._profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            self._profiler.export_chrome_trace(str(path))
            return sequence_of_profile(path)


def observer_for(schedule: Schedule, model: Any, *, on_cuda: bool) -> Observer:
    """The observer that sees what the schedule's sequence names."""
    scheduled = scheduled_sequence(schedule)
    by_operator = scheduled is None or all("|?|?|" in text for text in scheduled.texts)
    if by_operator or not on_cuda:
        return OperatorObserver(model, on_cuda=on_cuda)
    return KernelObserver()


def compare(schedule: Schedule, running: KernelSequence, allow_drift: float) -> Match:
    """Match what was seen, allowing for ends of the step that an observer cannot see.

    Raises:
        MismatchError: more differs than allowed; the first difference is named.
    """
    scheduled = scheduled_sequence(schedule)
    if scheduled is not None and _only_ends_missing(scheduled, running):
        plan = plan_of(schedule)
        return Match(plan, plan, 1.0, 1 - len(running) / len(scheduled), None)
    try:
        return match_schedule(schedule, running, allow_drift=allow_drift)
    except MismatchError as error:
        raise MismatchError(f"{error} (the clocks stay at the baseline)") from error


def _only_ends_missing(scheduled: KernelSequence, running: KernelSequence) -> bool:
    """True if what was seen lies in one piece within the scheduled step and is nearly all of it."""
    unseen = len(scheduled) - len(running)
    most = min(max(_UNSEEN_SHARE * len(scheduled), _UNSEEN_KERNELS), _UNSEEN_MOST * len(scheduled))
    if not 0 < unseen <= most:
        return False
    whole = [scheduled.texts[index] for index in scheduled.order]
    part = [running.texts[index] for index in running.order]
    return any(whole[start : start + len(part)] == part for start in range(unseen + 1))
