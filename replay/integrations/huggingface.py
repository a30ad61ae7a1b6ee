"""A callback for the Hugging Face ``Trainer``.

::

    with ClockwrightCallback("schedule.json", set_clocks=True) as clocks:
        Trainer(model, args, train_dataset=data, callbacks=[clocks]).train()

The trainer tells a callback when training begins and ends, and nothing when it fails; the ``with``
gives the clocks back then too. Without it a failed training is put to the baseline after
``idle_s`` seconds of silence, and when the process ends.

Source: transformers, ``trainer_callback.TrainerCallback``.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from transformers import TrainerCallback

from ...data.errors import InputError
from ...data.schedule import Schedule
from ..session import ReplaySession, replay

__all__ = ["ClockwrightCallback"]


class ClockwrightCallback(TrainerCallback):
    """Plays a schedule while a ``Trainer`` trains.

    Args:
        schedule: the schedule or its file, as for `clockwright.replay`.
        module: path within the trainer's model of the module that the schedule was traced on; ''
            for the model itself.
        **options: as for `clockwright.replay`: ``gpu``, ``set_clocks``, ``allow_drift`` and so on.

    Attributes:
        session: the running or last replay; None before training.
    """

    def __init__(
        self, schedule: Schedule | str | Path, *, module: str = "", **options: Any
    ) -> None:
        self._schedule, self._module, self._options = schedule, module, options
        self.session: ReplaySession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the clocks back. Safe to call twice."""
        if self.session is not None:
            self.session.close()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach to the trainer's model and optimizer.

        Raises:
            InputError: the trainer hands over no model or no optimizer.
        """
        self.close()
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        if model is None or optimizer is None:
            raise InputError("the trainer gives its callbacks no model or optimizer to attach to")
        while hasattr(optimizer, "optimizer"):  # accelerate's wrapper has no hooks of its own
            optimizer = optimizer.optimizer
        target = model.get_submodule(self._module)
        self.session = replay(self._schedule, target, optimizer, **self._options).__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the clocks back."""
        self.close()
