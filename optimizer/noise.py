"""What noisy cells let one claim: a budget met at a stated confidence, a saving not flattered.

Choosing the least of noisy cells favours those that came out low by chance, so the schedule's own
sums promise too much. Each cell's mean x, with standard deviation s, is therefore split in two
independent halves (Gaussian data thinning; Rasines and Young, Biometrika 110(3), 2023): x + r s z
and x - s z / r for a standard normal z have no covariance. Schedules are chosen on the first half.
Time and energy are then estimated on the second, which had no part in the choice, so both are
unbiased. With r = 1.5 the second half is the sharper: a choice forgives noise, a limit does not.

Schedules are chosen for a row of budgets fixed without a look at the second half, from cautious to
bold (the first half, split once more, tells how far sums of chosen cells flatter), and tested in
that order: each passes if the upper confidence limit of its slowdown on the second half
is within the budget; the last to pass before the first to fail is taken. Testing in a fixed order
keeps the chance that any over-budget schedule is taken at 1 - confidence, without a correction
(Maurer, Hothorn and Lehmacher 1995). The saving is estimated from energies of the second half,
which the test did not look at. If none passes, the baseline is what can be promised.

Left out: errors common to many cells (a drifting temperature, a biased counter) and errors of a
cell's time and energy that go together; both are taken as independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError, InputError
from .certificate import play_requests
from .from_trace import Step
from .plan import played_cost, solve_step
from .solution import Solution
from .switch_model import Lag

if TYPE_CHECKING:
    from .solver import Method

__all__ = ["NoiseResult", "plan_under_noise", "slowdown_limit"]

Array = NDArray[np.float64]
_MARGINS = (6.0, 4.0, 2.8, 2.0, 1.3)
"""Budgets tried: the budget, less the expected flattery, less so many standard deviations."""
_RATIO = 1.5
_CHOSEN_SD, _HELD_SD = sqrt(1 + _RATIO**2), sqrt(1 + 1 / _RATIO**2)
"""Errors of the two halves, in standard deviations of the cells."""
_TRIAL_TOLERANCE = 1e-4  # noise outweighs a gap of this size by far
_FASTEST = -0.9  # no schedule is ten times as fast as its baseline
_FLOOR = 0.05  # a noisy half keeps at least this share of a cell's mean: no time is negative


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
class _Estimate:
    value: float
    sd: float
    quantile: float  # one-sided, of Student's t
    quantile_two_sided: float

    @property
    def upper(self) -> float:
        return self.value + self.quantile * self.sd

    @property
    def interval(self) -> tuple[float, float]:
        half = self.quantile_two_sided * self.sd
        return self.value - half, self.value + half


def plan_under_noise(
    step: Step,
    budget: float,
    confidence: float,
    *,
    seed: int = 0,
    time_limit_s: float = 60.0,
    tolerance: float | None = None,
    method: Method = "auto",
) -> tuple[Solution, NoiseResult]:
    """A schedule whose true slowdown is within the budget at a confidence.

    The solution's time, energy and saving are sums over the cells as measured; its lower bound is
    that of the problem over those cells at the whole budget, so that its gap holds the price of
    caution. What may be promised is in the second value.

    Args:
        step: a step with spread (``step.sd``).
        budget: slowdown allowed, a fraction.
        confidence: of meeting it, 0.5 to under 1.
        seed: of the split; the same seed gives the same schedule.
        time_limit_s: wall time for all solves together.
        tolerance: relative gap to stop each solve at.
        method: of each solve.

    Raises:
        InputError: the confidence makes no sense or no cell has a spread.
        InfeasibleError: no schedule meets the budget even if the cells are believed.
    """
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence must be from 50% to under 100%, got {confidence:g}")
    if step.sd is None:
        raise InputError("the trace has no spread in its cells: nothing to be confident about")
    share = time_limit_s / (len(_MARGINS) + 4)  # a probe and the whole problem come on top

    def solve(on: Step, slowdown: float) -> Solution:
        rough = max(_TRIAL_TOLERANCE, tolerance or 0.0)
        return _solve(on, slowdown, time_limit_s=share, tolerance=rough, method=method)

    rng = np.random.default_rng(seed)
    whole = solve_step(step, budget, time_limit_s=2 * share, tolerance=tolerance, method=method)
    chosen_on, held_out = _split(step, rng, 1.0, _RATIO)
    trials = _trial_budgets(chosen_on, budget, confidence, rng, solve)
    tried: list[tuple[float, float]] = []
    passed: _Tested | None = None
    first: _Tested | None = None
    least: float | None = None
    for wanted in trials:
        trial = wanted
        if least is not None and trial <= least:
            continue
        try:
            found = solve(chosen_on, trial)
        except InfeasibleError as error:
            # So cautious a budget is out of reach: the fastest schedule is what caution can do.
            least = _above(error.least_slowdown, trial)
            if least is None or least > budget:
                continue
            trial, found = least, solve(chosen_on, least)
        tested = _Tested(found, *_estimate(held_out, found, confidence, _HELD_SD))
        tried.append((trial, tested.slowdown.upper))
        first = first or tested
        if tested.slowdown.upper > budget:
            break
        passed = tested
    notes: tuple[str, ...] = ()
    if passed is None:
        if first is None:
            first = _Tested(whole, *_estimate(held_out, whole, confidence, _HELD_SD))
        notes = (
            f"no schedule is sure at {confidence:.0%} to stay within the budget, given the noise "
            "of the cells: run the baseline, allow more, or measure more",
        )
    best = passed or first
    assert best is not None
    result = NoiseResult(
        confidence=confidence,
        slowdown=best.slowdown.value,
        saving=best.saving.value,
        slowdown_interval=best.slowdown.interval,
        saving_interval=best.saving.interval,
        slowdown_limit=best.slowdown.upper,
        met=passed is not None,
        tried=tuple(tried),
        seed=seed,
        notes=notes,
    )
    return _on_measured(step, best.solution, whole), result


def _above(least: float | None, trial: float) -> float | None:
    """A hair over the least feasible slowdown, from what an infeasible trial said of it.

    A negative trial was solved against a baseline shortened by as much.
    """
    if least is None:
        return None
    return (1 + least) * (1 + min(trial, 0.0)) * (1 + 1e-9) - 1


@dataclass(frozen=True)
class _Tested:
    solution: Solution
    slowdown: _Estimate
    saving: _Estimate


def _solve(
    step: Step,
    slowdown: float,
    *,
    time_limit_s: float,
    tolerance: float | None,
    method: Method,
) -> Solution:
    """Solve for a slowdown that may be negative: a step faster than its baseline."""
    if slowdown >= 0:
        return solve_step(
            step, slowdown, time_limit_s=time_limit_s, tolerance=tolerance, method=method
        )
    problem, relaxed = (
        None
        if entry is None
        else replace(entry, baseline_time_ns=entry.baseline_time_ns * (1 + slowdown))
        for entry in (step.problem, step.relaxed)
    )
    assert problem is not None
    faster = replace(step, problem=problem, relaxed=relaxed)
    return solve_step(faster, 0.0, time_limit_s=time_limit_s, tolerance=tolerance, method=method)


def _trial_budgets(
    chosen_on: Step,
    budget: float,
    confidence: float,
    rng: np.random.Generator,
    solve: Callable[[Step, float], Solution],
) -> list[float]:
    """Budgets to try, cautious first, from the first half alone."""
    one, other = _split(chosen_on, rng, _CHOSEN_SD, 1.0)
    probe = solve(one, budget)
    seen, _ = _estimate(other, probe, confidence, _CHOSEN_SD * sqrt(2.0))
    claimed = _cost_at(one, probe)[0] / one.problem.baseline_time_ns - 1
    # The probe was chosen with sqrt(2) the noise, and flattery goes with the noise.
    flattery = max(0.0, seen.value - claimed) / sqrt(2.0)
    sd = seen.sd * _HELD_SD / (_CHOSEN_SD * sqrt(2.0))
    cautious = (budget - flattery - margin * sd for margin in _MARGINS)
    return [*(max(_FASTEST, trial) for trial in cautious), budget]


def _split(step: Step, rng: np.random.Generator, times: float, ratio: float) -> tuple[Step, Step]:
    """Two steps with independent errors, from one whose cells' error is ``times`` their sd."""
    assert step.sd is not None
    halves: list[list[Array]] = [[], []]
    for table, sd in zip(step.tables, step.sd, strict=True):
        shift = times * sd * rng.standard_normal(table.shape)
        for half, factor in zip(halves, (ratio, -1 / ratio), strict=True):
            half.append(np.maximum(table + factor * shift, _FLOOR * table))
    one, other = (step.with_tables(time_ns, energy_mj) for time_ns, energy_mj in halves)
    return one, other


def _cost_at(step: Step, solution: Solution) -> tuple[float, float]:
    """Time and energy of a schedule on a step with other cells than it was chosen on."""
    return played_cost(step, _choice_at(step, solution))


def _choice_at(step: Step, solution: Solution) -> NDArray[np.int32]:
    if not isinstance(step.problem.switch, Lag):
        return solution.choice
    try:
        return play_requests(
            step.problem,
            int(solution.choice[0]),
            solution.request_item,
            solution.request_pair,
        )
    except ValueError:
        # With these cells a dwell is missed by a hair: the schedule's own pairs stand.
        return solution.choice


def _estimate(
    held_out: Step, solution: Solution, confidence: float, times: float
) -> tuple[_Estimate, _Estimate]:
    """Slowdown and saving on cells whose error is ``times`` their sd."""
    return _estimate_choice(held_out, _choice_at(held_out, solution), confidence, times)


def slowdown_limit(step: Step, choice: NDArray[np.int32], confidence: float) -> float:
    """Upper confidence limit of the slowdown of a choice that was not picked cell by cell.

    For one pair throughout, say: on the cells as measured, since little choosing flattered it.
    """
    return _estimate_choice(step, choice, confidence, 1.0)[0].upper


def _estimate_choice(
    step: Step, choice: NDArray[np.int32], confidence: float, times: float
) -> tuple[_Estimate, _Estimate]:
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
        estimates.append(_Estimate(central, *_spread_of(terms, step.n, confidence)))
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


def _on_measured(step: Step, found: Solution, whole: Solution) -> Solution:
    """The schedule's sums over the cells as measured, against the bound at the whole budget."""
    choice = _choice_at(step, found)
    time_ns, energy_mj = played_cost(step, choice)
    lower = min(whole.lower_bound_mj, energy_mj)
    problem = step.problem
    return replace(
        found,
        choice=choice,
        time_ns=time_ns,
        energy_mj=energy_mj,
        budget_time_ns=whole.budget_time_ns,
        lower_bound_mj=lower,
        gap=(energy_mj - lower) / energy_mj if energy_mj > 0 else 0.0,
        slowdown=time_ns / problem.baseline_time_ns - 1,
        saving=1 - energy_mj / problem.baseline_energy_mj,
        method=f"cautious: {found.method}; bound at the whole budget: {whole.method}",
        status=whole.status,
        seconds=found.seconds + whole.seconds,
    )
