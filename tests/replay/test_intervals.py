"""Intervals cover the truth as often as they say, for few rounds and several looks."""

from __future__ import annotations

import numpy as np
import pytest

from clockwright.data.errors import InputError
from clockwright.replay.intervals import mean_interval, paired_saving, paired_slowdown


def test_differences_are_taken_round_by_round():
    assert paired_slowdown([11.0, 24.0], [10.0, 20.0]) == pytest.approx([0.1, 0.2])
    assert paired_saving([9.0, 10.0], [10.0, 20.0]) == pytest.approx([0.1, 0.5])


def test_fewer_than_six_rounds_get_no_interval():
    estimate = mean_interval(np.array([0.1, 0.2, 0.3, 0.2, 0.2]))
    assert estimate.value == pytest.approx(0.2)
    assert estimate.low is None
    assert estimate.high is None


def test_rounds_that_are_all_equal_get_a_point():
    estimate = mean_interval(np.full(8, 0.004))
    assert (estimate.low, estimate.high) == (estimate.value, estimate.value)


def test_the_interval_does_not_depend_on_anything_but_data_and_seed():
    values = np.random.default_rng(1).normal(size=20)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3)


def test_more_looks_widen_the_interval():
    values = np.random.default_rng(1).normal(size=20)
    once, often = mean_interval(values), mean_interval(values, looks=5)
    assert once.low is not None
    assert once.high is not None
    assert often.low is not None
    assert often.high is not None
    assert often.high - often.low > 1.2 * (once.high - once.low)


def test_for_normal_rounds_the_interval_is_about_students():
    # n = 6: t(0.975, 5) = 2.571, normal 1.960; without the correction it would be 30% short.
    rng = np.random.default_rng(5)
    ratios = []
    for seed in range(60):
        values = rng.normal(size=6)
        estimate = mean_interval(values, seed=seed)
        assert estimate.low is not None
        assert estimate.high is not None
        student = 2.571 * values.std(ddof=1) / np.sqrt(6)
        ratios.append((estimate.high - estimate.low) / 2 / student)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize(("looks", "at_most"), [(1, 0.09), (5, 0.03)])
def test_skewed_rounds_are_covered(looks, at_most):
    # A late switch now and then makes slowdowns skewed to the right: what counts for a budget is
    # how often the interval lies wholly below the truth.
    rng = np.random.default_rng(11)
    truth = np.exp(0.5**2 / 2)
    missed = 0
    for seed in range(200):
        estimate = mean_interval(rng.lognormal(0.0, 0.5, 12), looks=looks, seed=seed)
        assert estimate.high is not None
        missed += estimate.high < truth
    assert missed / 200 <= at_most


def test_nonsense_is_refused():
    with pytest.raises(InputError, match="confidence"):
        mean_interval(np.zeros(8), confidence=1.0)
    with pytest.raises(InputError, match="not a finite"):
        mean_interval(np.array([0.1, np.nan]))
