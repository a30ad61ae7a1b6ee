"""Follows a training loop and plays the schedule on the steps it was made for, and only on those.

The loop is seen through three kinds of event: the model's forward begins, an edge is passed, the
step ends (the optimizer has stepped; without an optimizer, the forward has ended). A step is the
known one if its forwards come in the observed number and with the observed input shapes, with
gradients where there is an optimizer. Everything else (evaluation, a short last batch, more
micro-batches than scheduled) is outside, and the first moment that shows it puts the clocks back
to the baseline until the next known step begins.

The first steps run at the baseline: one for optimizers to make their state, one that is observed.

Left out: a change of the step that leaves shapes, counts and anchors as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum

from .plan import Plan
from .triggers.eager import AnchoredTriggers

__all__ = ["FollowerState", "StepFollower"]


class FollowerState(Enum):
    """Where the loop is."""

    WARMING = "warming"
    OBSERVING = "observing"
    BETWEEN = "between"
    INSIDE = "inside"
    OUTSIDE = "outside"


class StepFollower:
    """The state machine; it owns no device.

    Args:
        write: writes a sequence number in the order of the work.
        pause_sequence: the number that asks for the baseline.
        start_observing: called as the observed step begins.
        end_observing: called as it ends; returns the plan to play from then on, anchors included.
        warm_steps: steps before the observed one.

    Attributes:
        state: where the loop is.
        played: steps played whole, every trigger in order.
        outside: times the loop was seen outside a known step.
    """

    def __init__(
        self,
        write: Callable[[int], None],
        pause_sequence: int,
        *,
        start_observing: Callable[[], None],
        end_observing: Callable[[], AnchoredTriggers],
        warm_steps: int = 1,
    ) -> None:
        self._write, self._pause_sequence = write, pause_sequence
        self._start_observing, self._end_observing = start_observing, end_observing
        self._warm_left = warm_steps
        self._triggers: AnchoredTriggers | None = None
        self._known_keys: list[Hashable] = []
        self._forwards = 0
        self._at_baseline = True
        self._step_open = False
        self.state = FollowerState.WARMING if warm_steps else FollowerState.OBSERVING
        self.played = self.outside = 0

    def forward(self, key: Hashable, *, trains: bool) -> None:
        """The model's forward begins.

        Args:
            key: what tells one shape of input from another.
            trains: False for an evaluation.
        """
        if self._triggers is None:
            self._forward_unobserved(key, trains)
        elif not trains:
            self._leave()
        elif not self._step_open:
            self._step_open, self._forwards = True, 1
            if key == self._known_keys[0]:
                self._enter(self._triggers)
            else:
                self._leave()
        else:
            self._forwards += 1
            more = self._forwards > len(self._known_keys)
            if self.state is FollowerState.INSIDE and (
                more or key != self._known_keys[self._forwards - 1]
            ):
                self._leave()

    def edge(self, module: str, edge: str) -> None:
        """A module's or the optimizer's edge was passed."""
        if self.state is not FollowerState.INSIDE or self._triggers is None:
            return
        trigger = self._triggers.at(module, edge)
        if trigger is not None:
            self._write(trigger.sequence)
        elif self._triggers.strayed:
            self._leave()

    def end(self) -> None:
        """The step has ended."""
        if not self._step_open:
            return
        self._step_open = False
        if self.state is FollowerState.WARMING:
            self._warm_left -= 1
            if self._warm_left <= 0:
                self.state = FollowerState.OBSERVING
        elif self._triggers is None:
            self._triggers = self._end_observing()
            self.state = FollowerState.BETWEEN
        elif self.state is FollowerState.INSIDE:
            if self._triggers.complete:
                self.played += 1
            if not self._triggers.plan.cyclic:
                self._to_baseline()
            self.state = FollowerState.BETWEEN

    def rest(self) -> None:
        """Nothing has happened for long; whoever noticed has put the clocks to the baseline."""
        self._at_baseline = True
        if self.state in (FollowerState.INSIDE, FollowerState.BETWEEN):
            self.state = FollowerState.OUTSIDE
            self.outside += 1

    @property
    def plan(self) -> Plan | None:
        """The plan that is played, once it is known."""
        return None if self._triggers is None else self._triggers.plan

    def _forward_unobserved(self, key: Hashable, trains: bool) -> None:
        if not trains:
            return
        if self.state is FollowerState.OBSERVING:
            if not self._step_open:
                self._known_keys = []
                self._start_observing()
            self._known_keys.append(key)
        self._step_open = True

    def _enter(self, triggers: AnchoredTriggers) -> None:
        first = triggers.begin()
        self.state = FollowerState.INSIDE
        if first is not None:
            self._write(first.sequence)
        elif self._at_baseline:
            self._write(triggers.entry_sequence)
        self._at_baseline = False

    def _leave(self) -> None:
        if self.state is not FollowerState.OUTSIDE:
            self.outside += 1
        self.state = FollowerState.OUTSIDE
        self._to_baseline()

    def _to_baseline(self) -> None:
        if not self._at_baseline:
            self._write(self._pause_sequence)
        self._at_baseline = True
