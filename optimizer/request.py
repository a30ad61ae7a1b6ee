"""One request of a user, whole: a trace and what is wanted of it, to a schedule with its proof.

The command line and the batch job both come through here, so that they give the same answers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..data.errors import InfeasibleError
from ..data.schedule import Alternative, Schedule
from ..data.trace import Trace
from .baselines import BEST_SINGLE, compare, phase_schedule, recommend
from .from_trace import Step, from_trace
from .noise import plan_under_noise
from .noise_estimate import NoiseResult, judge_choice, slowdown_limit
from .pass_level import ByPhase
from .plan import played_cost, solve_step, tolerance_for
from .scatter import Scatter, play_scattered, with_lead
from .solution import Solution
from .switch_model import Lag
from .switch_source import SwitchChoice, choose_switches
from .to_schedule import make_schedule

if TYPE_CHECKING:
    import pandas as pd

    from .solver import Method

__all__ = ["Request", "make_step", "optimize_trace"]


@dataclass(frozen=True)
class Request:
    """What is wanted of a trace.

    Attributes:
        budget: slowdown allowed, a fraction.
        switches: ``auto``, ``measured``, ``free``, ``1ms``, ``2us,5us`` or a file.
        semantic: ``stall``, ``lag``, or None for the device's own.
        min_dwell_ns: least time between two requests under lag; None for the device's own.
        anchors: ``any`` or ``module``.
        baseline: ``auto``, ``governor`` or ``CORE/MEM``.
        drop_incomplete_pairs: leave out pairs at which some kernel lacks a cell.
        confidence: of meeting the budget where cells have a spread; None to believe the cells.
        time_limit_s: wall time of the solver.
        tolerance: relative gap to stop at; None chooses by size.
        method: as for `clockwright.optimizer.solve`.
        seed: of the noise split.
        baselines: also compute the baselines.
    """

    budget: float
    switches: str = "auto"
    semantic: str | None = None
    min_dwell_ns: int | None = None
    anchors: str = "any"
    baseline: str = "auto"
    drop_incomplete_pairs: bool = False
    confidence: float | None = 0.95
    time_limit_s: float = 60.0
    tolerance: float | None = None
    method: Method = "auto"
    seed: int = 0
    baselines: bool = True


def make_step(
    trace: Trace, request: Request, table: pd.DataFrame | None = None
) -> tuple[Step, SwitchChoice]:
    """The problem of a trace under a request's switch model.

    Raises:
        InputError: the trace or the request does not hold what is needed.
    """
    step = from_trace(
        trace,
        baseline=request.baseline,
        drop_incomplete_pairs=request.drop_incomplete_pairs,
        anchors=request.anchors,
    )
    switches = choose_switches(
        request.switches,
        step.problem.pairs,
        semantic=request.semantic,
        min_dwell_ns=request.min_dwell_ns,
        table=trace.switches if table is None else table,
        device_semantic=trace.switch_semantic,
        device_min_dwell_ns=trace.switch_min_dwell_ns,
        idle_power_w=step.problem.idle_power_w,
    )
    return step.with_switch(switches.model), switches


def _is_sure(step: Step, entry: Alternative, request: Request) -> bool:
    """Whether a single pair meets the budget at the confidence, and not by its mean alone."""
    assert request.confidence is not None
    if entry.name != BEST_SINGLE:
        return True
    pair = [str(pair) for pair in step.problem.pairs].index(entry.pairs[0])
    choice = np.full(step.problem.n_items, pair, dtype=np.int32)
    return slowdown_limit(step, choice, request.confidence) <= request.budget


def optimize_trace(trace: Trace, request: Request) -> Schedule:
    """The schedule that a request asks of a trace.

    Raises:
        InputError: the trace or the request does not hold what is needed.
        InfeasibleError: no schedule meets the budget.
    """
    step, switches = make_step(trace, request)
    by_phase = phase_schedule(step, request.budget, switches.spread, request.confidence)
    try:
        plan = _plan(step, switches, request, by_phase)
    except InfeasibleError as error:
        raise _explained(error, step) from error
    alternatives = (
        compare(
            step,
            request.budget,
            time_limit_s=request.time_limit_s / 4,
            spread=switches.spread,
            confidence=request.confidence,
            by_phase=by_phase,
            choice=plan.solution.choice,
        )
        if request.baselines
        else ()
    )
    # A schedule that may be over the budget gains nothing that counts.
    saving = plan.saving if plan.limit <= request.budget * (1 + 1e-9) else 0.0
    if plan.noise is None:
        recommendation = recommend(saving, alternatives)
    else:
        low, high = plan.noise.saving_interval
        rivals = tuple(entry for entry in alternatives if _is_sure(step, entry, request))
        recommendation = recommend(saving, rivals, (high - low) / 2)
    return make_schedule(
        step,
        _stated(plan, tolerance_for(step) if request.tolerance is None else request.tolerance),
        request.budget,
        switches,
        alternatives,
        recommendation=recommendation,
        noise=plan.noise,
        scatter=plan.scatter,
    )


def _stated(plan: _Planned, tolerance: float) -> Solution:
    """The plan's solution, its status by the gap that it ends with.

    Caution against noise and room for scatter widen the gap after the solver is done with it.
    """
    if plan.noise is None and plan.scatter is None:
        return plan.solution
    return replace(plan.solution, status="optimal" if plan.solution.gap <= tolerance else "limit")


def _explained(error: InfeasibleError, step: Step) -> InfeasibleError:
    """The same refusal, with the power cap's part in it."""
    allowed = step.problem.allowed
    assert allowed is not None
    barred = step.capped & ~allowed
    if not barred.any():
        return error
    return InfeasibleError(
        f"{error}. The power cap slows the step at {barred.sum()} of the trace's pairs, which "
        "schedules with slow switches must leave out: trace clocks just below those too",
        error.least_slowdown,
    )


_SCATTER_ROUNDS = 5
_CLOSE = 0.1
"""Share of the budget below which budgets are not told apart."""


@dataclass(frozen=True)
class _Planned:
    """A solution with all that may be said against it."""

    solution: Solution
    noise: NoiseResult | None
    scatter: Scatter | None
    lost: float
    late: float

    @property
    def limit(self) -> float:
        """The slowdown that may be counted on, scatter included."""
        if self.noise is None:
            return self.solution.slowdown + self.late
        return self.noise.slowdown_limit

    @property
    def saving(self) -> float:
        """The saving to expect, scatter included."""
        return self.solution.saving - self.lost if self.noise is None else self.noise.saving


def _plan(
    step: Step, switches: SwitchChoice, request: Request, by_phase: ByPhase | None
) -> _Planned:
    """Solve; where latencies scatter, for the largest budget that leaves room for what they add.

    The solver does not know of the scatter, so few and long segments, one a phase, may do better in
    the end; then they are the schedule.
    """
    spread = switches.spread
    if spread is None or not isinstance(step.problem.switch, Lag) or step.relaxed is not None:
        return _Planned(*_solve(step, request, request.budget), None, 0.0, 0.0)
    problem = step.problem
    planned = step.with_switch(with_lead(problem, spread))
    begin_s = time.monotonic()

    def at(budget: float) -> _Planned:
        left_s = request.time_limit_s - (time.monotonic() - begin_s)
        limited = replace(request, time_limit_s=max(left_s, 1.0) / 2)
        return scattered(*_solve(planned, limited, budget))

    def scattered(solution: Solution, noise: NoiseResult | None) -> _Planned:
        requests = solution.request_item, solution.request_pair
        scatter = play_scattered(problem, solution.choice, requests, spread, seed=request.seed)
        lost = scatter.more_mj / problem.baseline_energy_mj
        late = scatter.more_ns / problem.baseline_time_ns
        if noise is not None:
            noise = _judged(noise.shifted(late, -lost), request.budget)
        return _Planned(solution, noise, scatter, lost, late)

    whole = best = found = at(request.budget)
    low, high, trial = 0.0, request.budget, request.budget
    for _ in range(_SCATTER_ROUNDS):
        if found.limit <= request.budget:
            low = trial
        else:
            high = trial
        late = time.monotonic() - begin_s > request.time_limit_s / 2
        if high - low <= _CLOSE * request.budget or trial == 0.0 or late:
            break
        # First where the scatter seen would just fit, then between.
        first = request.budget - found.late
        trial = first if found is best and low < first < high else (low + high) / 2
        try:
            found = at(trial)
        except InfeasibleError:
            low = trial
            continue
        if _better(found, best, request.budget):
            best = found
    if by_phase is not None and by_phase.requests is not None:
        found = scattered(*_as_solution(step, by_phase, whole, request.budget))
        if _better(found, best, request.budget):
            best = found
    return replace(best, solution=_bounded(best.solution, whole.solution))


def _as_solution(
    step: Step, by_phase: ByPhase, like: _Planned, budget: float
) -> tuple[Solution, NoiseResult | None]:
    """A pass-level schedule in the place of a solved one."""
    assert by_phase.requests is not None
    time_ns, energy_mj = played_cost(step, by_phase.choice)
    problem = step.problem
    solution = replace(
        like.solution,
        choice=by_phase.choice,
        request_item=by_phase.requests[0],
        request_pair=by_phase.requests[1],
        time_ns=time_ns,
        energy_mj=energy_mj,
        slowdown=time_ns / problem.baseline_time_ns - 1,
        saving=1 - energy_mj / problem.baseline_energy_mj,
        method="one pair a phase",
    )
    noise = like.noise
    if noise is not None:
        noise = judge_choice(step, by_phase.choice, noise, budget)
    return solution, noise


def _bounded(found: Solution, whole: Solution) -> Solution:
    """A solution for part of the budget against the bound at the whole of it."""
    if found is whole:
        return found
    lower = min(whole.lower_bound_mj, found.energy_mj)
    return replace(
        found,
        lower_bound_mj=lower,
        gap=(found.energy_mj - lower) / found.energy_mj if found.energy_mj > 0 else 0.0,
        method=f"{found.method}; room for scatter, bound without it",
        seconds=found.seconds + whole.seconds,
    )


def _judged(noise: NoiseResult, budget: float) -> NoiseResult:
    """Whether the limit, with what came on top, keeps to the whole budget."""
    if noise.slowdown_limit <= budget:
        return replace(noise, met=True, notes=())
    note = f"no schedule found is sure at {noise.confidence:.0%} to stay within the budget"
    return replace(
        noise, met=False, notes=(f"{note}, given noise and the scatter of switch latencies",)
    )


def _better(one: _Planned, other: _Planned, budget: float) -> bool:
    if (one.limit <= budget) != (other.limit <= budget):
        return one.limit <= budget
    return one.saving > other.saving if one.limit <= budget else one.limit < other.limit


def _solve(step: Step, request: Request, budget: float) -> tuple[Solution, NoiseResult | None]:
    if request.confidence is not None and step.sd is not None:
        return plan_under_noise(
            step,
            budget,
            request.confidence,
            seed=request.seed,
            time_limit_s=request.time_limit_s,
            tolerance=request.tolerance,
            method=request.method,
        )
    return solve_step(
        step,
        budget,
        time_limit_s=request.time_limit_s,
        tolerance=request.tolerance,
        method=request.method,
    ), None
