"""What an interval says about a budget, a difference and a promise."""

from __future__ import annotations

import pytest

from clockwright.data.report import Comparison, Estimate
from clockwright.data.schedule import Predicted
from clockwright.replay.verdict import (
    EXIT_CODES,
    difference,
    half_width,
    judge_budget,
    judge_prediction,
)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.005, "within"),
        (0.001, 0.006, "within"),
        (0.001, 0.0061, "ambiguous"),
        (0.006, 0.007, "ambiguous"),
        (0.0061, 0.007, "over"),
        (-0.02, -0.01, "within"),
        (None, None, "ambiguous"),
    ],
)
def test_the_whole_interval_must_lie_on_one_side_of_the_budget(low, high, verdict):
    assert judge_budget(Estimate(0.004, low, high), 0.006) == verdict


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-0.0005, 0.0007, "no difference"),
        (0.0001, 0.0007, "no difference"),
        (-0.0005, 0.0011, "unresolved"),
        (0.0001, 0.0011, "slower"),
        (-0.0011, -0.0001, "faster"),
        (None, None, "unresolved"),
    ],
)
def test_no_difference_needs_proof_too(low, high, word):
    assert difference(Estimate(0.0, low, high), 0.001) == word


def test_only_within_is_a_success():
    assert EXIT_CODES == {"within": 0, "over": 3, "ambiguous": 3}


def test_no_interval_is_infinitely_wide():
    assert half_width(Estimate(0.1)) == float("inf")


def test_a_promise_agrees_if_it_meets_what_was_measured():
    measured = Comparison(
        "schedule", Estimate(0.006, 0.005, 0.007), Estimate(0.10, 0.09, 0.11), "slower"
    )
    kept = judge_prediction(Predicted(1.0, 1.0, 0.0055, 0.12), measured)
    assert kept.time_agrees
    assert kept.energy_agrees is False
    assert kept.slowdown_error.value == pytest.approx(0.0005)
    assert kept.saving_error is not None
    assert kept.saving_error.high == pytest.approx(-0.01)
    wide = judge_prediction(
        Predicted(1.0, 1.0, 0.0055, 0.12, (0.0, 0.01), (0.105, 0.135)), measured
    )
    assert wide.energy_agrees
    # An interval on cells that the choice was not made from need not hold the promise itself.
    beside = judge_prediction(
        Predicted(1.0, 1.0, 0.0055, 0.10, (0.008, 0.01), (0.02, 0.03)), measured
    )
    assert (beside.time_agrees, beside.energy_agrees) == (True, True)
    neither = judge_prediction(
        Predicted(1.0, 1.0, 0.004, 0.12, (0.008, 0.01), (0.02, 0.03)), measured
    )
    assert (neither.time_agrees, neither.energy_agrees) == (False, False)


def test_without_energy_nothing_is_said_of_energy():
    measured = Comparison("schedule", Estimate(0.006), None, "unresolved")
    told = judge_prediction(Predicted(1.0, 1.0, 0.0055, 0.12), measured)
    assert (told.time_agrees, told.energy_agrees, told.saving_error) == (None, None, None)
