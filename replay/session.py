"""In a training script: one line that plays a schedule on the user's own loop.

::

    with clockwright.replay("schedule.json", model, optimizer, set_clocks=True):
        train()

The session opens GPU and keeper, hooks the model at the schedule's anchors, watches one step to see
that it is the scheduled one, and plays the schedule from then on (`follower`). Whatever happens in
the loop, leaving the ``with`` gives the clocks back; a loop that stands still (an exception in a
notebook, a breakpoint) is noticed and put to the baseline; and if the process dies, the keeper does
it. A fault of the keeper ends the playing, not the training.

Left out: models inside ``torch.compile``, whose hooks do not run, and several models in one step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import replace as changed
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ..data import schedule as schedule_file
from ..data.errors import ClockwrightError, InputError
from ..data.schedule import Schedule
from ..data.units import ClockPair
from ..tracer.clocks import ClockEvent, ClockKeeper, Limits, LocalKeeper, TriggerPage, open_keeper
from ..tracer.gpu.protocol import Gpu
from ..tracer.gpu.select import open_gpu
from .follower import FollowerState, StepFollower
from .matching import Match, check_allowed_drift
from .plan import Plan, plan_of
from .ranks import schedule_path
from .run import check_gpu
from .triggers.eager import AnchoredTriggers
from .triggers.writers import HostWriter, SideStreamWriter, Writer

if TYPE_CHECKING:
    import torch

    from .observe import Observer

__all__ = ["ReplaySession", "replay"]

_log = logging.getLogger("clockwright.replay")
_IDLE_S = 10.0
_NO_LIMIT = 1_000_000


class ReplaySession:
    """A schedule attached to a training loop; see `replay`. Use as a context manager.

    Attributes:
        schedule: what is played.
        match: how the observed step compares; None until it was observed.
        fault: why playing ended early; None while all is well.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        gpu: str | Gpu | None,
        set_clocks: bool,
        allow_drift: float,
        keeper: ClockKeeper | None,
        on_fault: Literal["warn", "raise"],
        idle_s: float,
        told_by_loop: bool,
    ) -> None:
        check_allowed_drift(allow_drift)
        if not idle_s > 0:
            raise InputError(f"idle_s must be positive, got {idle_s!r}")
        self.schedule = schedule
        self.match: Match | None = None
        self.fault: ClockwrightError | None = None
        self._model, self._optimizer = model, optimizer
        self._gpu_asked, self._keeper_given = gpu, keeper
        self._set_clocks, self._allow_drift = set_clocks, allow_drift
        self._on_fault, self._idle_s, self._told_by_loop = on_fault, idle_s, told_by_loop
        self._pause_sequence = len(plan_of(schedule).table) + 1
        # Refuses a schedule without anchors before anything is opened.
        self._edges = AnchoredTriggers(plan_of(schedule)).edges
        self._stack = ExitStack()
        self._last_event_s = time.monotonic()
        self._resting = False
        self._keeper: ClockKeeper | None = None
        self._page: TriggerPage | None = None
        self._events: tuple[ClockEvent, ...] = ()
        self._follower: StepFollower | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            gpu = self._open_gpu(stack)
            keeper = self._open_keeper(gpu, stack)
            table = self._table()
            keeper.acquire(gpu.info.uuid, table)
            page = stack.enter_context(TriggerPage.create())
            writer = self._open_writer(gpu, keeper, page)
            stack.callback(writer.close)
            keeper.arm(page)
            stack.callback(self._disarm)
            self._keeper, self._page = keeper, page
            self._follower = self._make_follower(writer)
            self._hook(stack)
            self._watch(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks away and give the clocks back. Safe to call twice."""
        self._stack.close()

    @property
    def state(self) -> FollowerState:
        """Where the loop is."""
        return self._entered.state

    @property
    def steps_played(self) -> int:
        """Steps played whole."""
        return self._entered.played

    @property
    def times_outside(self) -> int:
        """How often the loop left the known step, and the clocks went to the baseline."""
        return self._entered.outside

    def events(self) -> tuple[ClockEvent, ...]:
        """What was asked of the GPU, oldest first; kept after the end."""
        if self._keeper is not None:
            self._events = self._keeper.events()
        return self._events

    def begin_step(self, key: Hashable, *, trains: bool = True) -> None:
        """The loop's own word that a (micro-)batch begins, where the model's forward is not called.

        Args:
            key: what tells one shape of input from another; `batch_key` of a batch.
            trains: False for an evaluation.
        """
        self._alive()
        self._entered.forward(key, trains=trains)

    def begin_optimizer(self) -> None:
        """The loop's own word that gradients are done and the optimizer's kernels come next."""
        self._entered.edge("", "optimizer_pre")

    def end_step(self) -> None:
        """The loop's own word that the optimizer has stepped."""
        self._alive()
        self._entered.end()

    @property
    def _entered(self) -> StepFollower:
        if self._follower is None:
            raise InputError("this replay has not begun: use it as a context manager")
        return self._follower

    def _table(self) -> dict[int, ClockPair]:
        return {**plan_of(self.schedule).table, self._pause_sequence: self.schedule.baseline_pair}

    def _open_gpu(self, stack: ExitStack) -> Gpu:
        asked = self._gpu_asked
        if asked is not None and not isinstance(asked, str):
            check_gpu(self.schedule, asked.info)
            return asked
        if asked is None:
            device = next(iter(self._model.parameters())).device
            if device.type != "cuda":
                raise InputError(
                    f"the model is on {device}; say which GPU's clocks to set, such as "
                    "gpu='nvml:0' or gpu='sim:rtx3080ti'"
                )
            asked = f"nvml:{device.index or 0}"
        gpu = open_gpu(asked)
        stack.callback(gpu.close)
        check_gpu(self.schedule, gpu.info)
        return gpu

    def _open_keeper(self, gpu: Gpu, stack: ExitStack) -> ClockKeeper:
        if self._keeper_given is not None:
            return self._keeper_given
        keeper: ClockKeeper
        if gpu.info.simulated:
            # No driver is held up by many switches here, and a CPU step is of any length.
            keeper = LocalKeeper(gpu, limits=Limits(max_switches_per_s=_NO_LIMIT))
        else:
            keeper = open_keeper(gpu, dry=not self._set_clocks)
        stack.callback(keeper.close)
        return keeper

    def _open_writer(self, gpu: Gpu, keeper: ClockKeeper, page: TriggerPage) -> Writer:
        device = next(iter(self._model.parameters())).device
        if device.type != "cuda":
            return HostWriter(page, keeper, gpu if gpu.info.simulated else None)
        from .triggers.cuda_driver import CudaDriver

        # The loop's current device may be another than the model's.
        return SideStreamWriter(page, CudaDriver.load(), device=device.index)

    def _disarm(self) -> None:
        if self._keeper is not None:
            self._events = self._keeper.events()
            self._keeper.disarm()
            if self._keeper_given is not None:
                self._keeper.end()
            self._keeper = None

    def _make_follower(self, writer: Writer) -> StepFollower:
        observer = self._observer()

        def finish() -> AnchoredTriggers:
            from .observe import compare

            self.match = compare(self.schedule, observer.end(), self._allow_drift)
            if self.match.difference is not None:
                _log.warning("playing matched segments only: %s", self.match.difference)
            return self._renumbered(self.match.anchored)

        return StepFollower(
            writer.write,
            self._pause_sequence,
            start_observing=observer.start,
            end_observing=finish,
        )

    def _renumbered(self, plan: Plan) -> AnchoredTriggers:
        """The plan with the numbers its pairs have in the table granted before the match."""
        granted = plan_of(self.schedule)
        if plan == granted:
            return AnchoredTriggers(plan)
        numbers: dict[ClockPair, int] = {self.schedule.baseline_pair: self._pause_sequence}
        numbers |= {pair: sequence for sequence, pair in reversed(granted.table.items())}
        triggers = tuple(
            changed(trigger, sequence=numbers[trigger.pair]) for trigger in plan.triggers
        )
        return AnchoredTriggers(changed(plan, triggers=triggers), numbers[plan.entry])

    def _observer(self) -> Observer:
        from .observe import observer_for

        device = next(iter(self._model.parameters())).device
        return observer_for(self.schedule, self._model, on_cuda=device.type == "cuda")

    def _hook(self, stack: ExitStack) -> None:
        from .triggers.edges import EdgeHooks

        told = {("", "optimizer_pre")} if self._told_by_loop else set()
        hooks = EdgeHooks(self._model, self._optimizer, self._edges - told, self._edge)
        stack.callback(hooks.remove)
        if not self._told_by_loop:
            stack.callback(self._hook_forward().remove)
            if self._optimizer is None:
                handle = self._model.register_forward_hook(lambda *_: self.end_step())
                stack.callback(handle.remove)
        if self._optimizer is not None:
            post = self._optimizer.register_step_post_hook(lambda *_: self.end_step())
            stack.callback(post.remove)

    def _hook_forward(self) -> Any:
        import torch

        def begins(module: Any, args: Any, kwargs: Any) -> None:
            if torch._C._current_autograd_node() is not None:
                return  # recomputed within the backward pass
            trains = self._optimizer is None or (module.training and torch.is_grad_enabled())
            self.begin_step(batch_key((args, kwargs)), trains=trains)

        # First of all hooks, so that the step has begun before any anchor fires.
        return self._model.register_forward_pre_hook(begins, with_kwargs=True, prepend=True)

    def _edge(self, module: str, edge: str) -> None:
        self._entered.edge(module, edge)

    def _alive(self) -> None:
        """Something happens: note when, see whether the keeper still follows."""
        self._last_event_s = time.monotonic()
        if self._resting and self._page is not None:
            self._resting = False
            self._page.resume()
        if self.fault is not None or self._keeper is None:
            return
        try:
            self._keeper.check()
        except ClockwrightError as error:
            self.fault = error
            self._entered.rest()
            if self._on_fault == "raise":
                raise
            _log.warning("the schedule is no longer played, training goes on: %s", error)

    def _watch(self, stack: ExitStack) -> None:
        """Put a loop that stands still to the baseline."""
        done = threading.Event()

        def run() -> None:
            while not done.wait(self._idle_s / 4):
                idle_s = time.monotonic() - self._last_event_s
                if idle_s > self._idle_s and not self._resting and self._page is not None:
                    self._resting = True
                    self._page.stop()
                    self._entered.rest()
                    if isinstance(self._keeper, LocalKeeper):
                        self._keeper.poll()

        thread = threading.Thread(target=run, name="clockwright-idle", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(done.set)


def batch_key(value: Any) -> Hashable:
    """Shapes and types of the tensors in a (nested) batch."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return (tuple(shape), str(dtype))
    if hasattr(value, "items"):
        return tuple((str(name), batch_key(item)) for name, item in sorted(value.items()))
    if isinstance(value, (tuple, list)):
        return tuple(batch_key(item) for item in value)
    return type(value).__name__


def replay(
    schedule: Schedule | str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    gpu: str | Gpu | None = None,
    set_clocks: bool = False,
    allow_drift: float = 0.0,
    keeper: ClockKeeper | None = None,
    on_fault: Literal["warn", "raise"] = "warn",
    idle_s: float = _IDLE_S,
    told_by_loop: bool = False,
) -> ReplaySession:
    """Play a schedule on a training (or inference) loop.

    Args:
        schedule: the schedule, its file, or a file name with ``{rank}`` or ``{local_rank}`` in it
            where each rank has its own.
        model: the module that the schedule's module paths are relative to.
        optimizer: its optimizer; None for inference, where each forward is a step.
        gpu: whose clocks to set: ``nvml:0``, ``sim:rtx3080ti``, or an open GPU. Default: the GPU
            the model is on.
        set_clocks: let the keeper set clocks on a real GPU; otherwise it only counts.
        allow_drift: share of kernels that may differ from the schedule's, 0 to 1.
        keeper: a keeper to use instead of opening one; it stays open.
        on_fault: what to do when the keeper gives up: ``warn`` and train on, or ``raise``.
        idle_s: a loop that does nothing for this long is put to the baseline.
        told_by_loop: the loop itself calls `ReplaySession.begin_step` and
            `ReplaySession.begin_optimizer`; otherwise the model's forward and the optimizer's step
            are taken for these.

    Raises:
        InputError: no such schedule, it has no anchors to fire at, or an option makes no sense.
        MismatchError: the schedule is for another GPU or another model (from within the loop, at
            the end of the second step).
        DeviceError, KeeperError: on entering: the GPU or its keeper refused.
    """
    if not isinstance(schedule, Schedule):
        schedule = schedule_file.read(schedule_path(Path(schedule)))
    return ReplaySession(
        schedule,
        model,
        optimizer,
        gpu=gpu,
        set_clocks=set_clocks,
        allow_drift=allow_drift,
        keeper=keeper,
        on_fault=on_fault,
        idle_s=idle_s,
        told_by_loop=told_by_loop,
    )
