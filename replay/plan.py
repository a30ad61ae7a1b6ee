"""From a schedule to what the stream must do: a table of pairs, and the kernels to trigger at.

The clock keeper knows only a table from sequence number to pair; the stream writes a sequence
number before certain kernels. A plan is both. Neighbouring segments of one pair are merged, and in
a cyclic schedule the last segment with the first, so that a schedule of one pair has no trigger at
all. Every trigger has a number of its own, so that the keeper's events tell which one was missed.

Left out: when a request takes hold. The trigger positions already account for that (the optimizer
places them); the plan only keeps their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..data.errors import FormatError, InputError
from ..data.schedule import Anchor, Schedule, Segment
from ..data.units import ClockPair

__all__ = ["Plan", "Trigger", "constant_plan", "plan_of", "plan_segments"]


@dataclass(frozen=True)
class Trigger:
    """One write in the stream.

    Attributes:
        sequence: number to write; row of the table; counts up from 2 in launch order.
        kernel: index of the kernel just before which it is written.
        start: kernel from which ``pair`` is meant to be in force.
        pair: what is requested.
        anchor: where eager replay fires it, if the schedule names a place.
    """

    sequence: int
    kernel: int
    start: int
    pair: ClockPair
    anchor: Anchor | None = None


@dataclass(frozen=True)
class Plan:
    """What one step does to the clocks.

    Attributes:
        kernels: kernels of the step.
        entry: the pair in force at the step's first kernel, requested (as number 1) before the
            first step and after every pause.
        triggers: in launch order; a cyclic plan may have none.
        segments: (start, end, pair), merged, covering the step.
        cyclic: True if the next step follows at once; else the clocks go back to the baseline at
            the end of the step and ``entry`` is requested again at its start.
    """

    kernels: int
    entry: ClockPair
    triggers: tuple[Trigger, ...]
    segments: tuple[tuple[int, int, ClockPair], ...]
    cyclic: bool = True

    ENTRY_SEQUENCE = 1

    @property
    def table(self) -> dict[int, ClockPair]:
        """Sequence number to pair, for the keeper; number 1 is `entry`."""
        return {self.ENTRY_SEQUENCE: self.entry} | {
            trigger.sequence: trigger.pair for trigger in self.triggers
        }

    @property
    def pairs(self) -> tuple[ClockPair, ...]:
        """Distinct pairs, in order of first use."""
        return tuple(dict.fromkeys(pair for _, _, pair in self.segments))

    def requests(self) -> tuple[tuple[int, ClockPair], ...]:
        """(kernel, pair) of each trigger, in launch order."""
        return tuple((trigger.kernel, trigger.pair) for trigger in self.triggers)


def constant_plan(pair: ClockPair, kernels: int) -> Plan:
    """One pair throughout."""
    if kernels < 1:
        raise InputError(f"a step has at least one kernel, got {kernels}")
    return Plan(kernels, pair, (), ((0, kernels, pair),))


def plan_of(schedule: Schedule) -> Plan:
    """The plan of a whole schedule.

    Raises:
        FormatError: the triggers are not in the order of their segments.
    """
    return plan_segments(schedule.segments, int(schedule.trace["kernels"]), schedule.cyclic)


def plan_segments(segments: Sequence[Segment], kernels: int, cyclic: bool = True) -> Plan:
    """The plan of segments that cover kernels 0 to ``kernels`` without a hole.

    Raises:
        FormatError: the triggers are not in the order of their segments.
    """
    merged = _merge(segments)
    issued = _issue_positions(merged, kernels, cyclic)
    wraps = cyclic and merged[0].pair == merged[-1].pair
    # The first segment needs a trigger of its own only where the step before ends elsewhere; a
    # step that is not cyclic starts from the baseline, and `entry` is requested there instead.
    needed = [
        (position, segment)
        for number, (position, segment) in enumerate(zip(issued, merged, strict=True))
        if number > 0 or (cyclic and not wraps)
    ]
    # Two requests before one kernel: the later one is what holds, the earlier never would.
    last_at: dict[int, Segment] = {}
    for position, segment in needed:
        last_at[position % kernels] = segment
    triggers = tuple(
        Trigger(number + Plan.ENTRY_SEQUENCE + 1, kernel, segment.start, segment.pair,
                segment.anchor)
        for number, (kernel, segment) in enumerate(sorted(last_at.items(), key=lambda at: at[0]))
    )  # fmt: skip
    spans = tuple((segment.start, segment.end, segment.pair) for segment in merged)
    return Plan(kernels, merged[0].pair, triggers, spans, cyclic)


def _merge(segments: Sequence[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for segment in segments:
        if merged and merged[-1].pair == segment.pair:
            first = merged.pop()
            merged.append(
                Segment(first.start, segment.end, first.pair, first.trigger, first.anchor)
            )
        else:
            merged.append(segment)
    return merged


def _issue_positions(segments: Sequence[Segment], kernels: int, cyclic: bool) -> list[int]:
    """Trigger positions on a line; negative ones lie in the step before."""
    positions: list[int] = []
    for number, segment in enumerate(segments):
        position = segment.trigger
        if position > segment.start:
            position -= kernels
        if position < 0 and not cyclic:
            raise FormatError(
                f"segment {number} has its trigger at kernel {segment.trigger}, after its start "
                f"{segment.start}: only a cyclic schedule may ask in the step before"
            )
        if positions and position < positions[-1]:
            raise FormatError(
                f"segment {number} has its trigger at kernel {segment.trigger}, before that of the "
                "segment it follows: triggers must be in the order of their segments"
            )
        positions.append(position)
    if cyclic and positions[-1] > positions[0] + kernels:
        raise FormatError("the first segment's trigger comes before the last one's of a step ago")
    return positions
