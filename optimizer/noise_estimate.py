"""What may be said of a schedule's slowdown and saving, given the spread of its cells."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .from_trace import Step
from .plan import played_cost

__all__ = ["Estimate", "NoiseResult", "estimate_choice", "judge_choice", "slowdown_limit"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoiseResult:
    """What can be claimed.

    Attributes:
        confidence: of the budget and of both intervals.
        slowdown: unbiased estimate, a fraction of the baseline.
        saving: likewise.
        slowdown_interval: two-sided.
        saving_interval: two-sided.
        slowdown_limit: upper confidence limit of the slowdown, one-sided.
        met: True if a schedule passed the test; else the fallback's estimates are given.
        tried: (budget, upper limit) of each schedule tested, in order.
        seed: of the split.
        notes: for the schedule file.
    """

    confidence: float
    slowdown: float
    saving: float
    slowdown_interval: tuple[float, float]
    saving_interval: tuple[float, float]
    slowdown_limit: float
    met: bool
    tried: tuple[tuple[float, float], ...]
    seed: int
    notes: tuple[str, ...] = ()

    def shifted(self, slowdown: float, saving: float) -> NoiseResult:
        """The same result where something known comes on top of both estimates."""
        return replace(
            self,
            slowdown=self.slowdown + slowdown,
            saving=self.saving + saving,
            slowdown_interval=_moved(self.slowdown_interval, slowdown),
            saving_interval=_moved(self.saving_interval, saving),
            slowdown_limit=self.slowdown_limit + slowdown,
        )

    def to_json(self) -> dict[str, Any]:
        """For the schedule file's ``extra``."""
        return {
            "method": "Gaussian thinning, fixed-sequence test",
            "confidence": self.confidence,
            "slowdown": self.slowdown,
            "saving": self.saving,
            "slowdown_limit": self.slowdown_limit,
            "met": self.met,
            "tried": [list(pair) for pair in self.tried],
            "seed": self.seed,
        }


def _moved(interval: tuple[float, float], by: float) -> tuple[float, float]:
    return interval[0] + by, interval[1] + by


@dataclass(frozen=True)
class Estimate:
    """A central value, its standard deviation, and Student quantiles for its limits."""

    value: float
    sd: float
    quantile: float  # one-sided, of Student's t
    quantile_two_sided: float

    @property
    def upper(self) -> float:
        """One-sided upper limit."""
        return self.value + self.quantile * self.sd

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided."""
        half = self.quantile_two_sided * self.sd
        return self.value - half, self.value + half


def slowdown_limit(step: Step, choice: NDArray[np.int32], confidence: float) -> float:
    """Upper confidence limit of the slowdown of a choice that was not picked cell by cell.

    For one pair throughout, say: on the cells as measured, since little choosing flattered it.
    """
    return estimate_choice(step, choice, confidence, 1.0)[0].upper


def judge_choice(
    step: Step, choice: NDArray[np.int32], like: NoiseResult, budget: float
) -> NoiseResult:
    """What may be said of a choice that was not picked cell by cell, as `slowdown_limit` does.

    Args:
        step: a step with spread.
        choice: (K,) pairs.
        like: a result whose confidence and seed to keep.
        budget: slowdown allowed.
    """
    slowdown, saving = estimate_choice(step, choice, like.confidence, 1.0)
    return replace(
        like,
        slowdown=slowdown.value,
        saving=saving.value,
        slowdown_interval=slowdown.interval,
        saving_interval=saving.interval,
        slowdown_limit=slowdown.upper,
        met=slowdown.upper <= budget,
        tried=(),
        notes=(),
    )


def estimate_choice(
    step: Step, choice: NDArray[np.int32], confidence: float, times: float
) -> tuple[Estimate, Estimate]:
    """Slowdown and saving of a choice on cells whose error is ``times`` their sd."""
    problem, sd = step.problem, step.sd
    assert sd is not None
    costs = played_cost(step, choice)
    estimates = []
    for which, base in enumerate((problem.baseline_time_ns, problem.baseline_energy_mj)):
        ratio = costs[which] / base
        weight = _counts(step, choice, which)
        if step.baseline is not None:
            constant = np.full_like(choice, step.baseline)
            weight = weight - ratio * _counts(step, constant, which)
        terms = (times * weight * sd[which] / base) ** 2
        central = ratio - 1 if which == 0 else 1 - ratio
        estimates.append(Estimate(central, *_spread_of(terms, step.n, confidence)))
    return estimates[0], estimates[1]


def _counts(step: Step, choice: NDArray[np.int32], which: int) -> Array:
    """(S, F) launches, scales included, of each cell under a choice.

    Where kernels overlap, time is that of the chain, and a kernel beside it counts at the pair it
    starts at.
    """
    rows, scale = step.rows(), step.scales[which]
    item = np.searchsorted(step.layout.first_rows(), np.arange(len(rows)), side="right") - 1
    counts = np.zeros(step.tables[0].shape)
    member = step.layout.chain if which == 0 else np.arange(len(rows))
    np.add.at(counts, (rows[member], choice[item[member]]), scale[member])
    return counts


def _spread_of(terms: Array, n: Array, confidence: float) -> tuple[float, float, float]:
    """Standard deviation of a sum, with Student's quantiles (one-sided, two-sided).

    Degrees of freedom after Welch and Satterthwaite; a cell of unknown n counts as well known.
    """
    from scipy.stats import norm, t

    total = float(terms.sum())
    known = np.isfinite(n) & (terms > 0)
    lost = float((terms[known] ** 2 / np.maximum(n[known] - 1, 1)).sum())
    tails = confidence, (1 + confidence) / 2
    if lost <= 0:
        one, two = (float(norm.ppf(tail)) for tail in tails)
    else:
        one, two = (float(t.ppf(tail, total**2 / lost)) for tail in tails)
    return sqrt(total), one, two
