"""One request of a user, whole: a trace and what is wanted of it, to a schedule with its proof.

The command line and the batch job both come through here, so that they give the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..data.schedule import Alternative, Schedule
from ..data.trace import Trace
from .baselines import BEST_SINGLE, compare, recommend
from .from_trace import Step, from_trace
from .noise import NoiseResult, plan_under_noise, slowdown_limit
from .plan import solve_step
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
    noise: NoiseResult | None = None
    if request.confidence is not None and step.sd is not None:
        solution, noise = plan_under_noise(
            step,
            request.budget,
            request.confidence,
            seed=request.seed,
            time_limit_s=request.time_limit_s,
            tolerance=request.tolerance,
            method=request.method,
        )
    else:
        solution = solve_step(
            step,
            request.budget,
            time_limit_s=request.time_limit_s,
            tolerance=request.tolerance,
            method=request.method,
        )
    alternatives = (
        compare(step, request.budget, time_limit_s=request.time_limit_s / 4)
        if request.baselines
        else ()
    )
    if noise is None:
        recommendation = recommend(solution.saving, alternatives)
    else:
        low, high = noise.saving_interval
        rivals = tuple(entry for entry in alternatives if _is_sure(step, entry, request))
        # A schedule that may be over the budget gains nothing that counts.
        saving = noise.saving if noise.met else 0.0
        recommendation = recommend(saving, rivals, (high - low) / 2)
    return make_schedule(
        step,
        solution,
        request.budget,
        switches,
        alternatives,
        recommendation=recommendation,
        noise=noise,
    )
