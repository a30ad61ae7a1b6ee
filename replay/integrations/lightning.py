"""A callback for the Lightning ``Trainer``.

::

    Trainer(callbacks=[ClockwrightCallback("schedule.json", set_clocks=True)]).fit(module)

Lightning runs forward and backward inside the optimizer's step, and need not call the module's
forward; so the trainer's own events say when a batch begins and when the optimizer's kernels come.

Left out: manual optimization, and modules with several optimizers (the first one ends the step).

Source: lightning, ``pytorch.callbacks.Callback``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from ...data.errors import InputError
from ...data.schedule import Schedule
from ..session import ReplaySession, batch_key, replay

__all__ = ["ClockwrightCallback"]


class ClockwrightCallback(Callback):
    """Plays a schedule while a ``Trainer`` fits.

    Args:
        schedule: the schedule or its file, as for `clockwright.replay`.
        module: path within the LightningModule of the module that the schedule was traced on; ''
            for the LightningModule itself.
        **options: as for `clockwright.replay`: ``gpu``, ``set_clocks``, ``allow_drift`` and so on.

    Attributes:
        session: the running or last replay; None before training.
    """

    def __init__(
        self, schedule: Schedule | str | Path, *, module: str = "", **options: Any
    ) -> None:
        self._schedule, self._module, self._options = schedule, module, options
        self.session: ReplaySession | None = None

    def close(self) -> None:
        """Give the clocks back. Safe to call twice."""
        if self.session is not None:
            self.session.close()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the module and its optimizer.

        Raises:
            InputError: manual optimization, or no optimizer.
        """
        self.close()
        if not trainer.optimizers or not pl_module.automatic_optimization:
            raise InputError(
                "a schedule is played on automatic optimization only; in a manual loop use "
                "clockwright.replay around it"
            )
        target = pl_module.get_submodule(self._module)
        self.session = replay(
            self._schedule, target, trainer.optimizers[0], told_by_loop=True, **self._options
        ).__enter__()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A (micro-)batch begins."""
        if self.session is not None:
            self.session.begin_step(batch_key(batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Gradients are done; the optimizer's kernels come next."""
        if self.session is not None:
            self.session.begin_optimizer()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation between steps runs at the baseline."""
        if self.session is not None:
            self.session.begin_step((), trains=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the clocks back."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the clocks back."""
        self.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the clocks back."""
        self.close()
