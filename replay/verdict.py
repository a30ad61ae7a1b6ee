"""What a measured interval says about a budget, a difference and a promise.

Budget. With [low, high] the interval of the slowdown and b the budget:

* ``within`` if high <= b: the whole interval lies within the budget;
* ``over`` if low > b: the whole interval lies over it;
* ``ambiguous`` otherwise: what was measured allows both. It is neither pass nor fail; measure
  longer, or ask for a budget the schedule has some room under.

A schedule that is truly over the budget is thus called ``within`` with a probability of at most
half the interval's error (2.5% at 95% confidence), and the other way round.

Difference. ``no difference`` needs proof too: the whole interval must lie within +- the smallest
difference that counts (two one-sided tests). ``slower`` and ``faster`` mean that it lies on one
side of zero and beyond what does not count; anything else is ``unresolved``.

Promise. A prediction agrees if it, or its own interval, meets the measured interval.

Left out: any weighing of time against energy. The budget is on time.
"""

from __future__ import annotations

from ..data.report import Comparison, Estimate, Prediction
from ..data.schedule import Predicted

__all__ = ["EXIT_CODES", "difference", "half_width", "judge_budget", "judge_prediction"]

EXIT_CODES = {"within": 0, "over": 3, "ambiguous": 3}
"""Exit status of the command: only a proven ``within`` is a success."""


def half_width(estimate: Estimate) -> float:
    """Half the interval's length; infinite where there is none."""
    if estimate.low is None or estimate.high is None:
        return float("inf")
    return (estimate.high - estimate.low) / 2


def judge_budget(slowdown: Estimate, max_slowdown: float) -> str:
    """``within``, ``over`` or ``ambiguous``."""
    if slowdown.high is not None and slowdown.high <= max_slowdown:
        return "within"
    if slowdown.low is not None and slowdown.low > max_slowdown:
        return "over"
    return "ambiguous"


def difference(slowdown: Estimate, least: float) -> str:
    """``no difference``, ``slower``, ``faster`` or ``unresolved``.

    Args:
        slowdown: measured, with its interval.
        least: the smallest difference that counts, a fraction.
    """
    low, high = slowdown.low, slowdown.high
    if low is None or high is None:
        return "unresolved"
    if -least <= low and high <= least:
        return "no difference"
    if low > 0:
        return "slower"
    if high < 0:
        return "faster"
    return "unresolved"


def judge_prediction(predicted: Predicted, measured: Comparison) -> Prediction:
    """The schedule's promise against what was measured."""
    slowdown_error = _less(measured.slowdown, predicted.slowdown)
    saving_error = None if measured.saving is None else _less(measured.saving, predicted.saving)
    return Prediction(
        slowdown=predicted.slowdown,
        saving=predicted.saving,
        slowdown_error=slowdown_error,
        saving_error=saving_error,
        time_agrees=_agrees(measured.slowdown, predicted.slowdown, predicted.slowdown_interval),
        energy_agrees=None
        if measured.saving is None
        else _agrees(measured.saving, predicted.saving, predicted.saving_interval),
    )


def _less(estimate: Estimate, promised: float) -> Estimate:
    return Estimate(
        estimate.value - promised,
        None if estimate.low is None else estimate.low - promised,
        None if estimate.high is None else estimate.high - promised,
    )


def _agrees(
    estimate: Estimate, promised: float, interval: tuple[float, float] | None
) -> bool | None:
    """Whether the promise or its interval, which need not hold it, meets what was measured."""
    if estimate.low is None or estimate.high is None:
        return None
    ranges = [(promised, promised), *([] if interval is None else [interval])]
    return any(low <= estimate.high and estimate.low <= high for low, high in ranges)
