"""A schedule becomes a table of pairs and the kernels to trigger at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import FormatError, InputError
from clockwright.data.schedule import Segment
from clockwright.data.units import ClockPair
from clockwright.replay.plan import constant_plan, plan_of, plan_segments
from tests.replay.builders import A, B, C, schedule, segments


def test_each_change_of_pair_gets_a_trigger_and_a_number_of_its_own():
    plan = plan_segments(segments((0, 4, A), (4, 7, B), (7, 9, A), (9, 10, C)), 10)
    assert plan.requests() == ((0, A), (4, B), (7, A), (9, C))
    assert [trigger.sequence for trigger in plan.triggers] == [2, 3, 4, 5]
    assert plan.table == {1: A, 2: A, 3: B, 4: A, 5: C}


def test_neighbours_of_one_pair_are_merged():
    plan = plan_segments(segments((0, 2, A), (2, 5, A), (5, 6, B)), 6)
    assert plan.segments == ((0, 5, A), (5, 6, B))
    assert plan.requests() == ((0, A), (5, B))


def test_a_step_that_ends_at_the_pair_it_begins_with_asks_for_nothing_at_its_start():
    plan = plan_segments(segments((0, 2, A), (2, 5, B), (5, 6, A)), 6)
    assert plan.requests() == ((2, B), (5, A))
    assert plan.entry == A


def test_a_schedule_of_one_pair_has_no_trigger():
    plan = plan_of(schedule(segments((0, 3, B), (3, 8, B))))
    assert plan.triggers == ()
    assert plan.table == {1: B}
    assert plan == constant_plan(B, 8)


def test_a_step_that_is_not_cyclic_enters_by_its_entry_request():
    plan = plan_segments(segments((0, 2, A), (2, 5, B)), 5, cyclic=False)
    assert plan.requests() == ((2, B),)
    assert plan.entry == A


def test_early_requests_are_ordered_by_when_they_are_issued():
    # The first segment's request is issued in the step before, at kernel 8 of 10.
    plan = plan_segments(segments((0, 5, A, 8), (5, 10, B, 3)), 10)
    assert plan.requests() == ((3, B), (8, A))
    assert [trigger.start for trigger in plan.triggers] == [5, 0]
    assert plan.entry == A


def test_of_two_requests_before_one_kernel_the_later_holds():
    plan = plan_segments(segments((0, 5, A, 0), (5, 6, B, 4), (6, 10, C, 4)), 10)
    assert plan.requests() == ((0, A), (4, C))


def test_triggers_out_of_order_are_refused():
    with pytest.raises(FormatError, match="order of their segments"):
        plan_segments(segments((0, 4, A), (4, 6, B, 3), (6, 9, C, 2)), 9)
    with pytest.raises(FormatError, match="a step ago"):
        plan_segments(segments((0, 5, A, 6), (5, 10, B, 5), (10, 12, C, 8)), 12)


def test_asking_in_the_step_before_needs_a_step_before():
    with pytest.raises(FormatError, match="only a cyclic schedule"):
        plan_segments(segments((0, 5, A, 8), (5, 10, B, 3)), 10, cyclic=False)


def test_a_step_without_kernels_is_refused():
    with pytest.raises(InputError, match="at least one kernel"):
        constant_plan(A, 0)


_PAIRS = st.sampled_from([A, B, C])


@st.composite
def _covers(draw) -> list[Segment]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    rows, start = [], 0
    for length in lengths:
        rows.append((start, start + length, draw(_PAIRS)))
        start += length
    return segments(*rows)


@given(_covers())
def test_playing_the_triggers_round_and_round_gives_every_kernel_its_pair(rows):
    kernels = rows[-1].end
    plan = plan_segments(rows, kernels)
    wanted: list[ClockPair] = [row.pair for row in rows for _ in range(row.end - row.start)]
    at = dict(plan.requests())
    held = plan.entry
    for _ in range(3):
        for kernel in range(kernels):
            held = at.get(kernel, held)
            assert held == wanted[kernel]


@given(_covers(), st.integers(0, 4))
def test_asking_earlier_asks_for_the_same_pairs_in_the_same_order(rows, lead):
    kernels = rows[-1].end
    if lead >= kernels:
        return
    early = [Segment(row.start, row.end, row.pair, (row.start - lead) % kernels) for row in rows]
    plain, ahead = plan_segments(rows, kernels), plan_segments(early, kernels)
    moved = {((kernel - lead) % kernels, pair) for kernel, pair in plain.requests()}
    assert set(ahead.requests()) == moved
