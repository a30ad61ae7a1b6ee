"""Solve a step as recorded: the core solver where kernels follow one another, and more where not.

Where kernels overlap, two problems bracket the step (see `streams`): in the relaxed one it takes
no longer than it really would, so its lower bound holds; in the sliced one it takes about as long
or longer. The relaxed schedule is tried first, and if its played makespan is over the budget, the
sliced problem is solved under budgets between, as long as the played makespan stays within.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError
from .certificate import evaluate
from .from_trace import Step
from .solution import Solution
from .switch_model import ConstantStall, Free, Lag, MatrixStall, TwoPartStall

if TYPE_CHECKING:
    from .solver import Method

__all__ = ["played_cost", "solve_step", "tolerance_for"]

Array = NDArray[np.float64]
_TRIES = 6
_SMALL_CELLS = 200_000


def tolerance_for(step: Step) -> float:
    """The gap worth waiting for: a small step is solved to the end, a large one to 1e-5."""
    problem = step.problem
    return 1e-8 if problem.n_items * problem.n_pairs <= _SMALL_CELLS else 1e-5


def solve_step(
    step: Step,
    budget: float,
    *,
    time_limit_s: float = 60.0,
    tolerance: float | None = None,
    method: Method = "auto",
) -> Solution:
    """The schedule of least energy whose played time is within the budget, with its proof.

    Args:
        step: from `from_trace`.
        budget: slowdown allowed, a fraction.
        time_limit_s: wall time for all solves together.
        tolerance: relative gap to stop at; None chooses by size (`tolerance_for`).
        method: as for `clockwright.optimizer.solve`.

    Raises:
        InfeasibleError: no schedule meets the budget.
    """
    from .solver import solve

    tolerance = tolerance_for(step) if tolerance is None else tolerance
    if step.relaxed is None:
        return solve(
            step.problem, budget, time_limit_s=time_limit_s, tolerance=tolerance, method=method
        )
    share = time_limit_s / (_TRIES + 2)
    lag = isinstance(step.problem.switch, Lag)
    # Under lag the time decides what a request reaches: only free switches are surely no dearer.
    relaxed = replace(step.relaxed, switch=Free(), boundary=None) if lag else step.relaxed
    bound = solve(relaxed, budget, time_limit_s=share, tolerance=tolerance, method=method)
    seconds = bound.seconds
    limit_ns = step.problem.budget_time_ns(budget)
    best: Solution | None = None
    if not lag and played_cost(step, bound.choice)[0] <= limit_ns:
        best = bound
    else:
        low, high = budget, _sliced_slowdown(step, bound.choice, budget)
        trial = low
        for _ in range(_TRIES):
            found = _try(step, trial, share, tolerance, method)
            seconds += 0.0 if found is None else found.seconds
            within = found is not None and played_cost(step, found.choice)[0] <= limit_ns
            if found is not None and within and (best is None or found.energy_mj < best.energy_mj):
                best = found
            if within or found is None:
                low = trial
            else:
                high = trial
            if found is not None and not within and trial <= budget:
                low, high = budget / 2, budget
            trial = (low + high) / 2
    if best is None:
        raise InfeasibleError(
            f"no schedule found whose makespan meets a slowdown of {budget:.4%}; allow more"
        )
    return _proved(step, best, bound, limit_ns, seconds, tolerance)


def _try(
    step: Step, budget: float, time_limit_s: float, tolerance: float, method: Method
) -> Solution | None:
    from .solver import solve

    try:
        return solve(
            step.problem, budget, time_limit_s=time_limit_s, tolerance=tolerance, method=method
        )
    except InfeasibleError:
        return None


def _sliced_slowdown(step: Step, choice: NDArray[np.int32], budget: float) -> float:
    """Slowdown of a choice by the sliced sum: a budget under which the sliced problem allows it."""
    time_ns = evaluate(replace(step.problem, switch=Free(), boundary=None), choice).time_ns
    return max(budget, time_ns / step.problem.baseline_time_ns - 1)


def _proved(
    step: Step,
    best: Solution,
    bound: Solution,
    limit_ns: float,
    seconds: float,
    tolerance: float,
) -> Solution:
    time_ns, energy_mj = played_cost(step, best.choice)
    lower = min(bound.lower_bound_mj, energy_mj)
    gap = (energy_mj - lower) / energy_mj if energy_mj > 0 else 0.0
    return replace(
        best,
        time_ns=time_ns,
        energy_mj=energy_mj,
        budget_time_ns=limit_ns,
        lower_bound_mj=lower,
        gap=gap,
        slowdown=time_ns / step.problem.baseline_time_ns - 1,
        saving=1 - energy_mj / step.problem.baseline_energy_mj,
        method=f"streams: {best.method}; bound by the chain: {bound.method}",
        status="optimal" if gap <= tolerance else "limit",
        seconds=seconds,
    )


def played_cost(step: Step, choice: NDArray[np.int32]) -> tuple[float, float]:
    """Time (ns, the makespan) and energy (mJ) of a choice over the slices, any pair allowed."""
    everything = np.ones(step.problem.n_pairs, dtype=bool)
    problem = replace(step.problem, allowed=everything, boundary=None)
    cost = evaluate(problem, choice)
    if step.relaxed is None:
        return cost.time_ns, cost.energy_mj
    return step.makespan_ns(choice, _stalls(step, choice)), cost.energy_mj


def _stalls(step: Step, choice: NDArray[np.int32]) -> Array:
    """(K,) ns of stall at the start of each slice."""
    problem = step.problem
    before = np.roll(choice, 1)
    if not problem.cyclic:
        before[0] = choice[0]
    switch = problem.switch
    if isinstance(switch, ConstantStall):
        return np.where(before != choice, switch.time_ns, 0.0)
    if isinstance(switch, MatrixStall):
        return switch.time_ns[before, choice]
    if isinstance(switch, TwoPartStall):
        core = np.array([pair.core_mhz or 0 for pair in problem.pairs])
        mem = np.array([pair.mem_mhz or 0 for pair in problem.pairs])
        core_ns = np.where(core[before] != core[choice], switch.core_time_ns, 0.0)
        mem_ns = np.where(mem[before] != mem[choice], switch.mem_time_ns, 0.0)
        return core_ns + mem_ns
    return np.zeros(len(choice))
