"""The whole Pareto front of energy against time, from one sweep of the multiplier.

Each multiplier m gives a schedule of least energy + m x time, a corner of the lower convex hull of
all schedules, and with it a line under every schedule: the bound at any budget. Corners are found
by chords (Cohon, Multiobjective Programming and Planning, 1978): between two neighbours the next
multiplier is their chord's slope, and the search goes where bound and schedule are furthest apart.
Between corners schedules are spliced. A step of many kernels is settled by that, every budget with
its bound. Budgets whose gap stays open (few kernels, dear switches) are then solved, the widest gap
first, as far as the time goes. A schedule for a smaller budget serves a larger one, and a bound at
a larger budget holds for a smaller one. Under lag, where no such sweep exists, all are solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError
from .from_trace import Step
from .plan import played_cost, solve_step
from .problem import Problem
from .switch_model import Lag

__all__ = [
    "Front",
    "FrontPoint",
    "default_budgets",
    "frontier",
    "offer_choices",
    "share_schedules",
]

Array = NDArray[np.float64]
_MOST_CORNERS = 200
_LOOSE = 1e-13  # rounding of gaps and sums in the bound, as in the solver


@dataclass(frozen=True)
class FrontPoint:
    """The best schedule known for a budget, and what no schedule can beat.

    Attributes:
        budget: slowdown allowed, a fraction.
        time_ns, energy_mj: the schedule's, exact; None where no schedule was found.
        lower_bound_mj: no schedule within the budget takes less.
        switches: changes of pair in the step.
        choice: (K,) the pair of each item, where the schedule is known.
    """

    budget: float
    time_ns: float | None
    energy_mj: float | None
    lower_bound_mj: float
    switches: int = 0
    choice: NDArray[np.int32] | None = field(default=None, repr=False, compare=False)

    @property
    def gap(self) -> float | None:
        """(energy - bound) / energy; None where no schedule was found."""
        if self.energy_mj is None or self.energy_mj <= 0:
            return None
        return max(0.0, self.energy_mj - self.lower_bound_mj) / self.energy_mj


@dataclass(frozen=True)
class Front:
    """A front under one switch model, against one baseline; points by rising budget."""

    label: str
    baseline_time_ns: float
    baseline_energy_mj: float
    points: tuple[FrontPoint, ...]
    solves: int
    method: str

    def saving(self, point: FrontPoint) -> float | None:
        """Fraction of the baseline's energy saved."""
        return None if point.energy_mj is None else 1 - point.energy_mj / self.baseline_energy_mj


def default_budgets() -> tuple[float, ...]:
    """0 to 20% slowdown: every 0.2% to 2%, every 0.5% to 6%, every 1% from there."""
    steps = [*range(0, 20, 2), *range(20, 60, 5), *range(60, 201, 10)]
    return tuple(step / 1000 for step in steps)


def frontier(
    step: Step,
    budgets: tuple[float, ...] | None = None,
    *,
    label: str = "",
    time_limit_s: float = 30.0,
    tolerance: float = 1e-5,
) -> Front:
    """Energy against slowdown over a range of budgets.

    Args:
        step: from `from_trace`, with its switch model.
        budgets: slowdowns, fractions; None is `default_budgets`.
        label: of the switch model, for charts.
        time_limit_s: wall time.
        tolerance: relative gap at every budget to stop at.
    """
    wanted = tuple(sorted(set(budgets if budgets is not None else default_budgets())))
    lag = isinstance(step.problem.switch, Lag)
    points, solves = [FrontPoint(budget, None, None, 0.0) for budget in wanted], 0
    if not lag:
        points, solves = _by_sweep(step, wanted, time_limit_s * 0.6, tolerance)
    more = _solve_open(step, points, time_limit_s if lag else time_limit_s * 0.4, tolerance)
    method = "one solve a budget" if lag else f"one sweep of the multiplier, {more} budgets closed"
    return Front(
        label,
        step.problem.baseline_time_ns,
        step.problem.baseline_energy_mj,
        tuple(points),
        solves + more,
        method,
    )


class _Sweep:
    """Corners of one problem's hull: schedules by time, and lines under all of them."""

    def __init__(self, problem: Problem, limits_ns: Array, time_limit_s: float) -> None:
        from .deadline import Deadline
        from .dual import Point
        from .instance import build_instance
        from .prune import prune

        self._point = Point
        self.inst = prune(build_instance(problem))
        self.deadline = Deadline(time_limit_s)
        self.limits_ns = (limits_ns - self.inst.gap_ns) * (1 + (self.inst.n_blocks + 8) * _LOOSE)
        self.bounds = np.zeros(len(limits_ns))
        self.corners = [self._solve(0.0, 1.0)]
        # A multiplier beyond any exchange rate gives the fastest schedule's cheapest twin.
        self.solves = 1

    def explore(self, tolerance: float) -> None:
        """Add corners until bound and schedule meet at every budget, or time or corners run out."""
        if self.corners[0].time_ns > self.limits_ns[-1]:
            # Not even the fastest schedule is within any budget; the bound is not needed.
            return
        self._add(1.0, 0.0)
        tried: set[tuple[float, float]] = set()
        while self.solves < _MOST_CORNERS and not self.deadline.passed:
            chord = self._widest(tolerance, tried)
            if chord is None:
                return
            left, right = chord
            tried.add((left.time_ns, right.time_ns))
            slope = (left.energy_mj - right.energy_mj) / (right.time_ns - left.time_ns)
            self._add(1.0, slope)

    def schedules(self) -> list[NDArray[np.int32]]:
        """(K,) choices: every corner, and a splice for every budget between two corners."""
        from .splice import splice

        choices = [self.inst.choice(point.path) for point in self.corners]
        for limit_ns in self.limits_ns:
            place = self._place(float(limit_ns))
            if 0 < place < len(self.corners):
                under, over = self.corners[place - 1], self.corners[place]
                choices.append(self.inst.choice(splice(self.inst, under, over, float(limit_ns))))
        return choices

    def _place(self, limit_ns: float) -> int:
        times = [point.time_ns for point in self.corners]
        return int(np.searchsorted(times, limit_ns, side="right"))

    def _solve(self, energy: float, multiplier: float) -> Any:
        from .dual import close, turn_at
        from .viterbi import Sweeper

        sweeper = Sweeper(self.inst, energy, multiplier)
        closed = close(sweeper, turn_at(sweeper), self.deadline)
        if energy > 0:
            slack = (self.inst.n_blocks + 4) * 2.0**-52 * abs(closed.bound)
            lines = closed.bound - slack - multiplier * self.limits_ns
            self.bounds = np.maximum(self.bounds, lines)
        return self._point(closed.path, *self.inst.total(closed.path))

    def _add(self, energy: float, multiplier: float) -> None:
        self.solves += 1
        point = self._solve(energy, multiplier)
        corners = sorted([*self.corners, point], key=lambda p: (p.time_ns, p.energy_mj))
        kept: list[Any] = []
        for corner in corners:
            if not kept or corner.energy_mj < kept[-1].energy_mj:
                kept.append(corner)
        self.corners = kept

    def _widest(self, tolerance: float, tried: set[tuple[float, float]]) -> tuple[Any, Any] | None:
        """The neighbours around the budget whose bound is furthest below its chord."""
        worst, chord = tolerance, None
        for limit_ns, bound in zip(self.limits_ns, self.bounds, strict=True):
            place = self._place(float(limit_ns))
            if not 0 < place < len(self.corners):
                continue
            left, right = self.corners[place - 1], self.corners[place]
            if (left.time_ns, right.time_ns) in tried:
                continue
            part = (limit_ns - left.time_ns) / (right.time_ns - left.time_ns)
            on_chord = left.energy_mj + part * (right.energy_mj - left.energy_mj)
            apart = (on_chord - bound) / on_chord
            if apart > worst:
                worst, chord = float(apart), (left, right)
        return chord


def _by_sweep(
    step: Step, budgets: tuple[float, ...], time_limit_s: float, tolerance: float
) -> tuple[list[FrontPoint], int]:
    limits_ns = np.array([step.problem.budget_time_ns(budget) for budget in budgets])
    problems = [step.problem] if step.relaxed is None else [step.relaxed, step.problem]
    solves, choices = 0, []
    bounds: Array | None = None
    for problem in problems:
        sweep = _Sweep(problem, limits_ns, time_limit_s / len(problems))
        sweep.explore(tolerance / 4)
        solves += sweep.solves
        choices += sweep.schedules()
        # The first problem is the exact or the relaxed one: its bounds hold.
        bounds = sweep.bounds if bounds is None else bounds
    assert bounds is not None
    points = [
        FrontPoint(budget, None, None, float(bound))
        for budget, bound in zip(budgets, bounds, strict=True)
    ]
    _offer(step, points, choices)
    return points, solves


def share_schedules(steps: Sequence[Step], fronts: Sequence[Front]) -> tuple[Front, ...]:
    """Offer every front's schedules to every other: what dear switches allow, cheap ones do too.

    Args:
        steps: one step under several switch models.
        fronts: their fronts over the same budgets.
    """
    shared = []
    for step, front in zip(steps, fronts, strict=True):
        points = list(front.points)
        if not isinstance(step.problem.switch, Lag):
            others = [
                point.choice
                for other in fronts
                if other is not front
                for point in other.points
                if point.choice is not None
            ]
            _offer(step, points, list({choice.tobytes(): choice for choice in others}.values()))
        shared.append(replace(front, points=tuple(points)))
    return tuple(shared)


def offer_choices(step: Step, front: Front, choices: Sequence[NDArray[np.int32]]) -> Front:
    """The front with schedules found elsewhere, such as the baselines, taken where they are better.

    Args:
        step: the step under the front's switch model.
        front: its front.
        choices: (K,) pairs of the items each; only those that the problem allows.
    """
    points = list(front.points)
    _offer(step, points, list(choices))
    return replace(front, points=tuple(points))


def _offer(step: Step, points: list[FrontPoint], choices: list[NDArray[np.int32]]) -> None:
    """Take each choice at every budget that it meets and improves, in place."""
    for choice in choices:
        if step.problem.boundary is not None and not _on_boundaries(step.problem, choice):
            continue
        time_ns, energy_mj = played_cost(step, choice)
        for number, point in enumerate(points):
            within = time_ns <= step.problem.budget_time_ns(point.budget)
            if within and (point.energy_mj is None or energy_mj < point.energy_mj):
                points[number] = replace(
                    point,
                    time_ns=time_ns,
                    energy_mj=energy_mj,
                    lower_bound_mj=min(point.lower_bound_mj, energy_mj),
                    switches=int(np.count_nonzero(_changes(step.problem, choice))),
                    choice=choice,
                )
    _spread(points)


def _on_boundaries(problem: Problem, choice: NDArray[np.int32]) -> bool:
    return problem.boundary is None or bool(problem.boundary[_changes(problem, choice)].all())


def _changes(problem: Problem, choice: NDArray[np.int32]) -> NDArray[np.bool_]:
    before = np.roll(choice, 1)
    if not problem.cyclic:
        before[0] = choice[0]
    changed: NDArray[np.bool_] = before != choice
    return changed


def _solve_open(step: Step, points: list[FrontPoint], time_limit_s: float, tolerance: float) -> int:
    """Solve the budgets whose gap is still open, the widest first, in place; how many solves."""
    from .deadline import Deadline

    deadline = Deadline(time_limit_s)
    open_points = sorted(
        (n for n, point in enumerate(points) if (point.gap is None or point.gap > tolerance)),
        key=lambda n: -(points[n].gap or 1.0),
    )
    solves = 0
    for done, number in enumerate(open_points):
        if deadline.passed:
            break
        point = points[number]
        if point.gap is not None and point.gap <= tolerance:
            continue
        share = deadline.left_s / (len(open_points) - done)
        solves += 1
        try:
            found = solve_step(step, point.budget, time_limit_s=share, tolerance=tolerance)
        except InfeasibleError:
            continue
        bound = max(point.lower_bound_mj, found.lower_bound_mj)
        if point.energy_mj is None or found.energy_mj < point.energy_mj:
            points[number] = FrontPoint(
                point.budget,
                found.time_ns,
                found.energy_mj,
                bound,
                found.n_switches,
                found.choice,
            )
        else:
            points[number] = replace(point, lower_bound_mj=bound)
        _spread(points)
    return solves


def _spread(points: list[FrontPoint]) -> None:
    """What is known at one budget serves others: schedules upward, bounds downward; in place."""
    for number in range(1, len(points)):
        before, here = points[number - 1], points[number]
        if before.energy_mj is not None and (
            here.energy_mj is None or before.energy_mj < here.energy_mj
        ):
            points[number] = replace(before, budget=here.budget, lower_bound_mj=here.lower_bound_mj)
    for number in range(len(points) - 2, -1, -1):
        least = max(points[number].lower_bound_mj, points[number + 1].lower_bound_mj)
        points[number] = replace(points[number], lower_bound_mj=least)
