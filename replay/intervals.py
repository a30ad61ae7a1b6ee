"""Intervals for paired differences, valid for few rounds and for several looks.

Each round runs every arm once, so temperature and load drift are shared, and what is compared is
the round's own difference: slowdown ``t_arm / t_baseline - 1``, saving ``1 - e_arm / e_baseline``.
The estimate is the mean over rounds; its interval is scipy's BCa bootstrap over rounds. Two
corrections keep the promise of the stated confidence:

* Few rounds. Bootstrap intervals of a mean are too narrow for small n, for they use the plug-in
  variance and normal tails. The level is widened so that a normal sample would get the t interval
  (Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69(4),
  2015, "expanded percentile interval").
* Several looks. Measuring may stop at any of at most L looks, so each look gets 1/L of the error
  (Bonferroni): with the stated confidence the intervals of *all* looks cover the truth, and
  stopping at whichever look is harmless.

Left out: correlation between rounds; a round is long against the clock's and the counter's memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..data.errors import InputError
from ..data.report import Estimate

__all__ = ["LEAST_ROUNDS", "mean_interval", "paired_saving", "paired_slowdown"]

FloatArray = npt.NDArray[np.float64]

LEAST_ROUNDS = 6
"""Fewer rounds than this get no interval."""

_RESAMPLES = 20_000


def paired_slowdown(arm_ns: Sequence[float], base_ns: Sequence[float]) -> FloatArray:
    """Each round's slowdown; (n,) fractions."""
    return np.asarray(arm_ns, dtype=np.float64) / np.asarray(base_ns, dtype=np.float64) - 1.0


def paired_saving(arm_mj: Sequence[float], base_mj: Sequence[float]) -> FloatArray:
    """Each round's saving; (n,) fractions."""
    return 1.0 - np.asarray(arm_mj, dtype=np.float64) / np.asarray(base_mj, dtype=np.float64)


def mean_interval(
    differences: FloatArray,
    *,
    confidence: float = 0.95,
    looks: int = 1,
    seed: int = 0,
) -> Estimate:
    """Mean of the rounds' differences with its interval.

    Args:
        differences: (n,) one value a round.
        confidence: of the intervals of all looks together.
        looks: how many times one may look.
        seed: of the resampling.

    Raises:
        InputError: a confidence outside 0 to 1, or a difference that is not finite.
    """
    from scipy import stats

    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence!r}")
    if not np.isfinite(differences).all():
        raise InputError("a round's difference is not a finite number; its baseline block is empty")
    count = len(differences)
    mean = float(np.mean(differences)) if count else 0.0
    if count < LEAST_ROUNDS:
        return Estimate(mean)
    spread = float(np.ptp(differences))
    if spread <= 1e-12:
        # Equal to the last digits, as on a simulated GPU without noise: no scatter to resample.
        return Estimate(mean, mean, mean)
    error = (1.0 - confidence) / looks
    reach = float(stats.t.isf(error / 2, count - 1)) * np.sqrt(count / (count - 1))
    expanded = 1.0 - 2.0 * float(stats.norm.sf(reach))
    with warnings.catch_warnings():
        # Told by its result instead: an end that is not finite becomes the extreme resample's.
        warnings.simplefilter("ignore")
        result = stats.bootstrap(
            (differences,),
            np.mean,
            confidence_level=expanded,
            n_resamples=_RESAMPLES,
            method="BCa",
            rng=np.random.default_rng(seed),
            batch=max(1, 4_000_000 // count),
        )
    low, high = (float(end) for end in result.confidence_interval)
    draws = result.bootstrap_distribution
    low = low if np.isfinite(low) else float(np.min(draws))
    high = high if np.isfinite(high) else float(np.max(draws))
    return Estimate(mean, min(low, mean), max(high, mean))
