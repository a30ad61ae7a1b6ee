"""Triggers of an eager step: a plan's anchors become writes at module and optimizer edges.

Which call of a module fires a trigger is told by counting that edge within the step
(`Anchor.occurrence`), so a module used twice can have a trigger at its second use alone. The
numbers must be written in the plan's order; an edge that fires out of order means that the step is
not the known one, and nothing more is fired in it.
"""

from __future__ import annotations

from collections import Counter

from ...data.errors import InputError
from ..plan import Plan, Trigger

__all__ = ["STEP_START", "AnchoredTriggers"]

STEP_START = ("", "step_start")


class AnchoredTriggers:
    """Which trigger an edge fires, within one step.

    Args:
        plan: a plan whose every trigger has an anchor.
        entry_sequence: the number of the plan's entry pair in the keeper's table.

    Attributes:
        strayed: True from the first trigger that came out of order to the next step.

    Raises:
        InputError: a trigger has no anchor, or two have the same.
    """

    def __init__(self, plan: Plan, entry_sequence: int = Plan.ENTRY_SEQUENCE) -> None:
        self.plan, self.entry_sequence = plan, entry_sequence
        self._by_anchor: dict[tuple[str, str, int], Trigger] = {}
        for trigger in plan.triggers:
            anchor = trigger.anchor
            if anchor is None:
                raise InputError(
                    f"the schedule asks for {trigger.pair} before kernel {trigger.kernel}, where "
                    "no module begins or ends, so an eager step cannot; optimize with anchored "
                    "switches, or replay a captured CUDA graph"
                )
            key = (anchor.module, anchor.edge, anchor.occurrence)
            if key in self._by_anchor:
                raise InputError(f"two triggers of the schedule share the anchor {key}")
            self._by_anchor[key] = trigger
        self._fired: Counter[tuple[str, str]] = Counter()
        self._taken = 0
        self.strayed = False

    @property
    def edges(self) -> frozenset[tuple[str, str]]:
        """(module path, edge) that matter, ``step_start`` left out."""
        found = {(module, edge) for module, edge, _ in self._by_anchor}
        return frozenset(found - {STEP_START})

    def begin(self) -> Trigger | None:
        """A step begins; the trigger at its very start, if there is one."""
        self._fired.clear()
        self._taken, self.strayed = 0, False
        return self._take(self._by_anchor.get((*STEP_START, 0)))

    def at(self, module: str, edge: str) -> Trigger | None:
        """An edge was passed; the trigger to write there, if there is one."""
        key = (module, edge)
        occurrence = self._fired[key]
        self._fired[key] += 1
        return self._take(self._by_anchor.get((module, edge, occurrence)))

    @property
    def complete(self) -> bool:
        """True if every trigger of the step was taken, in order."""
        return not self.strayed and self._taken == len(self._by_anchor)

    def _take(self, trigger: Trigger | None) -> Trigger | None:
        if trigger is None or self.strayed:
            return None
        # Numbers count up in launch order, so how many were taken tells which comes next.
        if trigger is not self.plan.triggers[self._taken]:
            self.strayed = True
            return None
        self._taken += 1
        return trigger
