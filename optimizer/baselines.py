"""What a schedule has to beat: the governor, one pair, one pair a phase, a power cap, no switches.

Every one is a schedule of the same step and is costed by the certificate's exact sums (played
stream by stream where kernels overlap), its switches included. Per-kernel choice with switches
free, the setting of oracle studies, is no rival but a limit, and is named so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError
from ..data.schedule import Alternative
from .capped import whole_step
from .from_trace import Step
from .pass_level import ByPhase, best_by_phase
from .plan import played_cost, solve_step
from .scatter import LatencySpread
from .switch_model import Free

__all__ = [
    "BEST_SINGLE",
    "FREE",
    "PASS_LEVEL",
    "compare",
    "phase_schedule",
    "recommend",
    "single_pair_choices",
    "single_pair_costs",
]

BEST_SINGLE = "best single pair"
PASS_LEVEL = "pass-level"
FREE = "per-kernel, switches free"
LEAST_GAIN = 0.001
"""A saving under 0.1% of the energy is not worth another mode of running the GPU."""


def compare(
    step: Step,
    budget: float,
    *,
    time_limit_s: float = 10.0,
    spread: LatencySpread | None = None,
    confidence: float | None = None,
    by_phase: ByPhase | None = None,
    choice: NDArray[np.int32] | None = None,
) -> tuple[Alternative, ...]:
    """All baselines of a step under a budget.

    Args:
        step: from `from_trace`.
        budget: slowdown allowed, a fraction.
        time_limit_s: wall time for the free-switch solve.
        spread: how latencies scatter under lag; None where not known.
        confidence: at which pass-level must meet the budget, as a schedule must; None for the
            cells as measured. Other entries are as measured.
        by_phase: from `phase_schedule`, if it was called already.
        choice: (K,) pairs of a schedule in hand: the limit of free switches is no worse than it.
    """
    entries = [_baseline(step), *_governor(step, budget), _best_single(step, budget)]
    by_phase = by_phase or phase_schedule(step, budget, spread, confidence)
    if by_phase is not None:
        entries.append(_pass_level(step, budget, by_phase))
    entries += _power_caps(step, budget)
    free = _free(step, budget, time_limit_s, choice)
    if free is not None:
        entries.append(free)
    return tuple(entries)


def recommend(
    saving: float,
    alternatives: tuple[Alternative, ...],
    noise: float = 0.0,
) -> str:
    """What is worth running: ``schedule``, ``best single pair`` or ``baseline``.

    Args:
        saving: the schedule's, a fraction.
        alternatives: from `compare`.
        noise: half the width of the saving's interval; a smaller difference is none.
    """
    least = max(LEAST_GAIN, noise)
    single = next(
        (entry for entry in alternatives if entry.name == BEST_SINGLE and entry.within_budget), None
    )
    if single is not None and single.saving >= least and saving - single.saving < least:
        return "best single pair"
    return "schedule" if saving >= least else "baseline"


def _entry(
    step: Step,
    budget: float,
    name: str,
    cost: tuple[float, float],
    pairs: tuple[str, ...] = (),
    note: str = "",
) -> Alternative:
    problem = step.problem
    time_ns, energy_mj = map(float, cost)  # numpy's numbers are not JSON's
    return Alternative(
        name=name,
        time_ns=time_ns,
        energy_mj=energy_mj,
        slowdown=time_ns / problem.baseline_time_ns - 1,
        saving=1 - energy_mj / problem.baseline_energy_mj,
        pairs=pairs,
        within_budget=bool(time_ns <= problem.budget_time_ns(budget)),
        note=note,
    )


def _baseline(step: Step) -> Alternative:
    problem = step.problem
    name = "governor" if problem.baseline_pair.is_governor else "baseline"
    cost = problem.baseline_time_ns, problem.baseline_energy_mj
    note = "what the budget and the saving are measured against"
    return _entry(step, 0.0, name, cost, (str(problem.baseline_pair),), note)


def _governor(step: Step, budget: float) -> list[Alternative]:
    """The governor where it has cells and is not the baseline itself."""
    problem = step.problem
    return [
        _entry(step, budget, "governor", played_cost(step, _constant(step, f)), (str(pair),))
        for f, pair in enumerate(problem.pairs)
        if pair.is_governor and not problem.baseline_pair.is_governor
    ]


def _constant(step: Step, pair: int) -> NDArray[np.int32]:
    return np.full(step.problem.n_items, pair, dtype=np.int32)


def _best_single(step: Step, budget: float) -> Alternative:
    """The pair of least energy within the budget; else the fastest, marked as over it."""
    problem = step.problem
    time_ns, energy_mj = _single_pair_sums(step)
    locked = np.array([not pair.is_governor for pair in problem.pairs])
    lockable = np.flatnonzero(locked & np.isfinite(time_ns))
    for f in lockable[np.argsort(energy_mj[lockable], kind="stable")].tolist():
        if step.relaxed is None and time_ns[f] > problem.budget_time_ns(budget) * (1 + 1e-9):
            continue
        cost = _locked_cost(step, f)
        if cost[0] <= problem.budget_time_ns(budget):
            return _entry(step, budget, BEST_SINGLE, cost, (str(problem.pairs[f]),))
    fastest = int(lockable[np.argmin(time_ns[lockable])])
    cost = _locked_cost(step, fastest)
    note = "no single pair is within the budget: this is the fastest"
    return _entry(step, budget, BEST_SINGLE, cost, (str(problem.pairs[fastest]),), note)


def _locked_cost(step: Step, pair: int) -> tuple[float, float]:
    """Exact (ns, mJ) of the step locked to a pair; as measured where the cap slows it there."""
    if step.capped[pair]:
        measured = whole_step(step.trace, int(step.columns[pair]))
        if measured is not None:
            return measured
    return played_cost(step, _constant(step, pair))


def _single_pair_sums(step: Step) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(F,) ns and mJ of the whole step at each pair, in floating point, for ranking.

    Infinite at a capped pair whose whole step was not measured: its kernels' sum is no step's.
    """
    problem = step.problem
    rows, size = problem.row, len(problem.time_ns)
    time_ns = np.bincount(rows, problem.time_scale, size) @ problem.time_ns
    energy_mj = np.bincount(rows, problem.energy_scale, size) @ problem.energy_mj
    if problem.gap_ns is not None and problem.idle_power_w is not None:
        time_ns = time_ns + problem.gap_ns.sum()
        energy_mj = energy_mj + problem.gap_ns.sum() * problem.idle_power_w * 1e-6
    for f in np.flatnonzero(step.capped):
        measured = whole_step(step.trace, int(step.columns[f]))
        time_ns[f], energy_mj[f] = (np.inf, np.inf) if measured is None else measured
    return time_ns, energy_mj


def single_pair_costs(step: Step) -> list[tuple[float, float]]:
    """Exact (ns, mJ) of the whole step at every pair that may be chosen."""
    time_ns, _ = _single_pair_sums(step)
    return [
        _locked_cost(step, f)
        for f, pair in enumerate(step.problem.pairs)
        if not pair.is_governor and np.isfinite(time_ns[f])
    ]


def single_pair_choices(step: Step) -> list[NDArray[np.int32]]:
    """(K,) schedules of one locked pair each, of all pairs a schedule may use for a whole step.

    Fewer than `single_pair_costs` tells of: a capped pair has a cost, and is in no schedule that
    holds it for a step.
    """
    problem = step.problem
    assert problem.allowed is not None
    return [
        _constant(step, f)
        for f, pair in enumerate(problem.pairs)
        if problem.allowed[f] and not step.capped[f] and not pair.is_governor
    ]


def phase_schedule(
    step: Step, budget: float, spread: LatencySpread | None, confidence: float | None
) -> ByPhase | None:
    """The best single pair for each phase; see `pass_level.best_by_phase` and `compare`."""
    phases = step.trace.timeline["phase"].astype(str).to_numpy()[step.layout.chain]
    assert step.problem.allowed is not None
    # A phase outlasts what the cap averages over, however quick the switches.
    held = step.problem.allowed & ~step.capped
    if held.any():
        step = replace(step, problem=replace(step.problem, allowed=held))
    return best_by_phase(step, phases, budget, spread, confidence)


def _pass_level(step: Step, budget: float, found: ByPhase) -> Alternative:
    pairs = tuple(
        f"{phase}: {step.problem.pairs[pair]}" for phase, pair in found.pair_of_phase.items()
    )
    return _entry(step, budget, PASS_LEVEL, found.cost, pairs, found.note)


def _power_caps(step: Step, budget: float) -> list[Alternative]:
    """The best power cap, where the trace holds whole steps measured under caps."""
    rows: list[dict[str, Any]] = list(step.trace.gpu.get("power_caps") or [])
    entries = [
        _entry(
            step,
            budget,
            "power cap",
            (float(row["time_ns"]), float(row["energy_mj"])),
            (f"{row['power_w']:g} W",),
            "whole step under the cap",
        )
        for row in rows
        if row.get("time_ns") and row.get("energy_mj")
    ]
    within = [entry for entry in entries if entry.within_budget]
    if within:
        return [min(within, key=lambda entry: entry.energy_mj)]
    return [min(entries, key=lambda entry: entry.time_ns)] if entries else []


def _free(
    step: Step, budget: float, time_limit_s: float, choice: NDArray[np.int32] | None
) -> Alternative | None:
    free = step.with_switch(Free())
    relaxed = None if free.relaxed is None else replace(free.relaxed, boundary=None)
    free = replace(free, problem=replace(free.problem, boundary=None), relaxed=relaxed)
    try:
        found = solve_step(free, budget, time_limit_s=time_limit_s, tolerance=1e-5)
    except InfeasibleError:
        return None
    best = found.time_ns, found.energy_mj
    if choice is not None:
        # Solved to a tolerance of its own, which a finer solve of the schedule may beat.
        known = played_cost(free, choice)
        if known[0] <= free.problem.budget_time_ns(budget) and known[1] < best[1]:
            best = known
    note = "a limit, not a schedule: no GPU switches in no time"
    return _entry(step, budget, FREE, best, (), note)
