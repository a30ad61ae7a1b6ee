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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError, InputError
from .certificate import play_requests
from .from_trace import Step
from .noise_estimate import Estimate, NoiseResult, estimate_choice
from .plan import played_cost, solve_step
from .solution import Solution
from .switch_model import Lag

if TYPE_CHECKING:
    from .solver import Method

__all__ = ["plan_under_noise"]

Array = NDArray[np.float64]
_MARGINS = (6.0, 4.0, 2.8, 2.0, 1.3)
"""Budgets tried: the budget, less the expected flattery, less so many standard deviations."""
_RATIO = 1.5
_CHOSEN_SD, _HELD_SD = sqrt(1 + _RATIO**2), sqrt(1 + 1 / _RATIO**2)
"""Errors of the two halves, in standard deviations of the cells."""
_TRIAL_TOLERANCE = 1e-4  # noise outweighs a gap of this size by far
_FASTEST = -0.9  # no schedule is ten times as fast as its baseline
_FLOOR = 0.05  # a noisy half keeps at least this share of a cell's mean: no time is negative


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
    share = time_limit_s / (len(_MARGINS) + 3)  # a probe and the whole problem come on top

    def solve(on: Step, slowdown: float) -> Solution:
        rough = max(_TRIAL_TOLERANCE, tolerance or 0.0)
        return _solve(on, slowdown, time_limit_s=share, tolerance=rough, method=method)

    rng = np.random.default_rng(seed)
    # Its bound is held against a cautious schedule: far more than this tolerance lies between.
    whole = solve(step, budget)
    chosen_on, held_out = _split(step, rng, 1.0, _RATIO)
    trials = _trial_budgets(chosen_on, budget, confidence, rng, solve)

    def test(found: Solution) -> _Tested:
        return _Tested(found, *_estimate(held_out, found, confidence, _HELD_SD))

    tried: list[tuple[float, float]] = []
    passed: _Tested | None = None
    first: _Tested | None = None
    for trial, found in _solutions(chosen_on, trials, budget, solve):
        tested = test(found)
        tried.append((trial, tested.slowdown.upper))
        first = first or tested
        if tested.slowdown.upper > budget:
            break
        passed = tested
    best = passed or first or test(whole)
    notes = () if passed else (_unsure(confidence),)
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


def _solutions(
    step: Step, trials: Sequence[float], budget: float, solve: Callable[[Step, float], Solution]
) -> Iterator[tuple[float, Solution]]:
    """Each trial budget and its schedule, or the least feasible budget in place of one below it."""
    least: float | None = None
    for trial in trials:
        if least is not None and trial <= least:
            continue
        try:
            found = solve(step, trial)
        except InfeasibleError as error:
            # So cautious a budget is out of reach: the fastest schedule is what caution can do.
            least = _above(error.least_slowdown, trial)
            if least is not None and least <= budget:
                yield least, solve(step, least)
        else:
            yield trial, found


def _unsure(confidence: float) -> str:
    return (
        f"no schedule is sure at {confidence:.0%} to stay within the budget, given the noise "
        "of the cells: run the baseline, allow more, or measure more"
    )


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
    slowdown: Estimate
    saving: Estimate


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
) -> tuple[Estimate, Estimate]:
    """Slowdown and saving on cells whose error is ``times`` their sd."""
    return estimate_choice(held_out, _choice_at(held_out, solution), confidence, times)


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
