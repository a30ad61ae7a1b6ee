"""The running step is compared with the scheduled one, and what matches is played."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import InputError, MismatchError
from clockwright.data.units import GOVERNOR
from clockwright.replay.matching import first_difference, match_schedule, scheduled_sequence
from clockwright.replay.plan import plan_of
from tests.replay.builders import A, B, schedule, segments, sequence

NAMES = ["embed", "gemm", "gelu", "gemm", "softmax", "gemm", "loss", "adam"]
ROWS = segments((0, 3, A), (3, 6, B), (6, 8, A))


def test_the_scheduled_step_plays_whole():
    made = schedule(ROWS, NAMES)
    match = match_schedule(made, sequence(NAMES))
    assert match.plan == plan_of(made)
    assert (match.coverage, match.drift, match.difference) == (1.0, 0.0, None)


def test_a_mismatch_is_refused_with_the_first_difference():
    running = sequence([*NAMES[:4], "flash", *NAMES[5:]])
    with pytest.raises(MismatchError) as caught:
        match_schedule(schedule(ROWS, NAMES), running)
    text = str(caught.value)
    assert "kernel 4" in text
    assert "softmax" in text
    assert "flash" in text
    assert "12.5% differ" in text


def test_a_shorter_step_differs_where_it_ends():
    assert first_difference(sequence(NAMES), sequence(NAMES[:6])) == (
        "kernel 6: the schedule expects loss (aten::loss [[4]]), the step runs the end of the step"
    )
    assert first_difference(sequence(NAMES), sequence(NAMES)) is None


def test_without_the_scheduled_sequence_the_counts_are_named():
    made = schedule(ROWS, NAMES, carry=False)
    with pytest.raises(MismatchError, match="8 kernels scheduled, 7 run"):
        match_schedule(made, sequence(NAMES[:7]))
    with pytest.raises(MismatchError, match="kernel 7"):
        match_schedule(made, sequence(NAMES[:7]), scheduled=sequence(NAMES))


def test_allowed_drift_plays_whole_matched_segments_and_the_baseline_elsewhere():
    running = sequence([*NAMES[:4], "extra", *NAMES[4:]])
    match = match_schedule(schedule(ROWS, NAMES), running, allow_drift=0.2)
    assert match.plan.segments == ((0, 3, A), (3, 7, GOVERNOR), (7, 9, A))
    assert match.coverage == pytest.approx(5 / 9)
    assert match.drift == pytest.approx(1 / 9)
    assert "extra" in (match.difference or "")


def test_more_drift_than_allowed_is_refused():
    running = sequence([*NAMES[:4], "x", "y", *NAMES[4:]])
    with pytest.raises(MismatchError, match=r"20.0% differ, 10.0% allowed"):
        match_schedule(schedule(ROWS, NAMES), running, allow_drift=0.1)


def test_a_sequence_that_its_fingerprint_contradicts_is_refused():
    made = schedule(ROWS, NAMES)
    changed = replace(made, trace={**made.trace, "fingerprint": "sha256:" + "0" * 64})
    with pytest.raises(MismatchError, match="changed by hand"):
        scheduled_sequence(changed)


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
)
def test_a_played_segment_always_lies_on_its_own_kernels(scheduled, running):
    kernels = len(scheduled)
    cut = max(1, kernels // 2)
    rows = segments((0, cut, A), (cut, kernels, B)) if cut < kernels else segments((0, kernels, A))
    made, ran = schedule(rows, scheduled), sequence(running)
    match = match_schedule(made, ran, allow_drift=1.0)
    assert match.plan.kernels == len(running)
    pieces = {A: scheduled[:cut], B: scheduled[cut:]}
    for start, end, pair in match.plan.segments:
        if pair != GOVERNOR:
            assert running[start:end] == pieces[pair]


@pytest.mark.parametrize("share", [float("nan"), -0.1, 1.5])
def test_what_is_no_share_of_the_kernels_allows_nothing(share):
    made = schedule(segments((0, 2, A), (2, 4, B)))
    with pytest.raises(InputError, match="between 0 and 100%"):
        match_schedule(made, sequence(["other"]), allow_drift=share)


def test_a_step_that_launches_nothing_is_refused_whatever_is_allowed():
    made = schedule(segments((0, 2, A), (2, 4, B)))
    with pytest.raises(MismatchError, match="launches no kernel"):
        match_schedule(made, sequence([]), allow_drift=1.0)
