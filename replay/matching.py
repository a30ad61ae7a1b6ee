"""Is the step that runs the step that was scheduled? And if nearly: which part of it?

Sequences are compared launch by launch. A mismatch is refused with the first difference; under an
allowance for drift, the two are aligned (difflib, longest matching blocks), and segments whose
kernels all match in one piece are played, the baseline everywhere else.

Left out: kernels that do the same work under other names; another library version is drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from ..data.errors import InputError, MismatchError
from ..data.schedule import Schedule, Segment
from ..data.sequence import KernelSequence, unpack
from ..data.units import ClockPair
from .plan import Plan, plan_of, plan_segments

__all__ = ["Match", "first_difference", "match_schedule", "scheduled_sequence"]


@dataclass(frozen=True)
class Match:
    """What of a schedule can be played on a running step.

    Attributes:
        plan: the plan, in the running step's kernel indexes.
        anchored: the plan by anchors, in the scheduled step's kernel indexes, for eager replay:
            what does not match is at the baseline.
        coverage: share of the running step's kernels under a segment of the schedule.
        drift: share of kernels without a partner, of the longer sequence.
        difference: the first difference, for people; None if there is none.
    """

    plan: Plan
    anchored: Plan
    coverage: float
    drift: float
    difference: str | None


def scheduled_sequence(schedule: Schedule) -> KernelSequence | None:
    """The sequence a schedule was made for, or None if the file does not carry it.

    Raises:
        MismatchError: the file carries a sequence that its own fingerprint contradicts.
    """
    packed = schedule.extra.get("sequence")
    if packed is None:
        return None
    sequence = unpack(packed, "schedule extra/sequence")
    if sequence.fingerprint != schedule.trace["fingerprint"]:
        raise MismatchError(
            "the schedule's kernel sequence and its fingerprint disagree; the file was changed "
            "by hand: optimize again"
        )
    return sequence


def first_difference(scheduled: KernelSequence, running: KernelSequence) -> str | None:
    """Where two sequences part, for people; None if they are equal."""
    both = min(len(scheduled), len(running))
    for position in range(both):
        if scheduled.texts[scheduled.order[position]] != running.texts[running.order[position]]:
            break
    else:
        if len(scheduled) == len(running):
            return None
        position = both
    return (
        f"kernel {position}: the schedule expects {scheduled.describe(position)}, "
        f"the step runs {running.describe(position)}"
    )


def check_allowed_drift(share: float) -> None:
    """Refuse what is no share; a comparison with NaN would allow everything.

    Raises:
        InputError: not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise InputError(f"the allowed drift must lie between 0 and 100%, got {share:.4g}")


def match_schedule(
    schedule: Schedule,
    running: KernelSequence,
    *,
    scheduled: KernelSequence | None = None,
    allow_drift: float = 0.0,
) -> Match:
    """Compare a running step with a schedule and plan what can be played.

    Args:
        schedule: the schedule.
        running: what the step launches.
        scheduled: what the schedule was made for, where its file does not say.
        allow_drift: share of kernels that may differ, 0 to 1.

    Raises:
        InputError: the allowed drift is no share.
        MismatchError: more differs than allowed; the first difference is named.
    """
    check_allowed_drift(allow_drift)
    if not len(running):
        raise MismatchError("the step launches no kernel, so there is nothing to set clocks for")
    if running.fingerprint == schedule.trace["fingerprint"]:
        plan = plan_of(schedule)
        return Match(plan, plan, 1.0, 0.0, None)
    scheduled = scheduled_sequence(schedule) or scheduled
    counts = f"{schedule.trace['kernels']} kernels scheduled, {len(running)} run"
    if scheduled is None:
        raise MismatchError(
            f"the step is not the one this schedule was made for ({counts}); give the trace it was "
            "made from to see the first difference, or optimize the step's own trace"
        )
    difference = first_difference(scheduled, running)
    pieces = _matching_pieces(scheduled, running)
    matched = sum(length for _, _, length in pieces)
    drift = 1.0 - matched / max(len(scheduled), len(running))
    if drift > allow_drift:
        raise MismatchError(
            f"the step is not the one this schedule was made for ({counts}, {drift:.1%} differ, "
            f"{allow_drift:.1%} allowed); {difference}. Optimize its own trace, or allow drift"
        )
    segments = _play_matched(schedule, pieces, len(running))
    played = _count_scheduled(schedule, pieces)
    plan = plan_segments(segments, len(running), schedule.cyclic)
    anchored = plan_segments(
        [
            segment
            if _whole(segment, pieces) is not None
            else replace(segment, pair=schedule.baseline_pair)
            for segment in schedule.segments
        ],
        len(scheduled),
        schedule.cyclic,
    )
    return Match(plan, anchored, played / len(running), drift, difference)


def _matching_pieces(
    scheduled: KernelSequence, running: KernelSequence
) -> list[tuple[int, int, int]]:
    """(scheduled start, running start, length) of equal pieces, in order."""
    numbers: dict[str, int] = {}
    left, right = (
        [numbers.setdefault(text, len(numbers)) for text in _texts(sequence)]
        for sequence in (scheduled, running)
    )
    # Equal ends are cut off first: difflib is quadratic in what remains.
    shorter = min(len(left), len(right))
    head = next((i for i in range(shorter) if left[i] != right[i]), shorter)
    tail = next((i for i in range(shorter - head) if left[-1 - i] != right[-1 - i]), shorter - head)
    middle = SequenceMatcher(
        None, left[head : len(left) - tail], right[head : len(right) - tail], autojunk=False
    )
    pieces = [(0, 0, head)]
    pieces += [
        (block.a + head, block.b + head, block.size) for block in middle.get_matching_blocks()
    ]
    pieces.append((len(left) - tail, len(right) - tail, tail))
    return _joined(piece for piece in pieces if piece[2])


def _texts(sequence: KernelSequence) -> Iterable[str]:
    return (sequence.texts[index] for index in sequence.order)


def _joined(pieces: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    joined: list[tuple[int, int, int]] = []
    for left, right, length in pieces:
        if joined:
            last_left, last_right, last_length = joined[-1]
            if last_left + last_length == left and last_right + last_length == right:
                joined[-1] = (last_left, last_right, last_length + length)
                continue
        joined.append((left, right, length))
    return joined


def _whole(segment: Segment, pieces: Sequence[tuple[int, int, int]]) -> int | None:
    """Shift from scheduled to running index, if the whole segment lies in one piece."""
    for left, right, length in pieces:
        if left <= segment.start and segment.end <= left + length:
            return right - left
    return None


def _count_scheduled(schedule: Schedule, pieces: Sequence[tuple[int, int, int]]) -> int:
    return sum(
        segment.end - segment.start
        for segment in schedule.segments
        if _whole(segment, pieces) is not None
    )


def _play_matched(
    schedule: Schedule, pieces: Sequence[tuple[int, int, int]], kernels: int
) -> list[Segment]:
    """Segments over the running step: matched ones moved, the baseline between."""
    played: list[Segment] = []
    base: ClockPair = schedule.baseline_pair
    covered = 0
    for segment in schedule.segments:
        shift = _whole(segment, pieces)
        if shift is None:
            continue
        start, end = segment.start + shift, segment.end + shift
        if start > covered:
            played.append(Segment(covered, start, base, covered))
        # An early request may lie among kernels that are gone: then it is issued at the segment's
        # start, late rather than inside another segment.
        trigger = segment.trigger + shift
        trigger = trigger if covered <= trigger <= start else start
        played.append(Segment(start, end, segment.pair, trigger, segment.anchor))
        covered = end
    if covered < kernels:
        played.append(Segment(covered, kernels, base, covered))
    return played
