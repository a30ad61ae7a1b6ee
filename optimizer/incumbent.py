"""The best schedule so far, believed only after the certificate has summed it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InfeasibleError
from .certificate import Evaluation, evaluate
from .deadline import Deadline
from .problem import Problem
from .solution import Solution

__all__ = ["Incumbent", "Requests"]

Requests = tuple[NDArray[np.int32], NDArray[np.int32]]


class Incumbent:
    """Holds the cheapest schedule found within the budget, and the best bound.

    Attributes:
        choice: (K,) int32, or None while none is known.
        value: what the certificate says of it.
        bound_mj: the best lower bound so far.
        methods: the steps that moved either, in order.
    """

    def __init__(self, problem: Problem, budget: float, tolerance: float) -> None:
        self.problem = problem
        self.budget_time_ns = problem.budget_time_ns(budget)
        self.tolerance = tolerance
        self.choice: NDArray[np.int32] | None = None
        self.requests: Requests | None = None
        self.value = Evaluation(np.inf, np.inf, 0)
        self.bound_mj = 0.0
        self.multiplier: float | None = None
        self.methods: list[str] = []

    @property
    def energy_mj(self) -> float:
        """Energy of the schedule in hand, infinite while none is known."""
        return self.value.energy_mj

    @property
    def gap(self) -> float:
        """(energy - bound) / energy, 0 where the bound is met."""
        if self.choice is None:
            return np.inf
        return max(0.0, self.energy_mj - self.bound_mj) / max(self.energy_mj, 1e-300)

    @property
    def closed(self) -> bool:
        """True once the gap is within the tolerance."""
        return self.gap <= self.tolerance

    def offer(
        self, choice: NDArray[np.int32], method: str, requests: Requests | None = None
    ) -> bool:
        """Take a schedule if the certificate finds it within the budget and cheaper.

        Requests, where they do not follow from the choice, are items and pairs.
        """
        value = evaluate(self.problem, choice)
        if value.time_ns > self.budget_time_ns or value.energy_mj >= self.energy_mj:
            return False
        self.choice, self.value, self.requests = choice, value, requests
        self._note(method)
        return True

    def prove(self, bound_mj: float, method: str, multiplier: float | None = None) -> None:
        """Raise the lower bound."""
        if bound_mj > self.bound_mj:
            self.bound_mj = bound_mj
            self.multiplier = multiplier if multiplier is not None else self.multiplier
            self._note(method)

    def infeasible(self, least_ns: float, *, sure: bool = True) -> InfeasibleError:
        """The refusal where nothing meets the budget.

        Args:
            least_ns: time of the fastest schedule.
            sure: whether that is proven to be the fastest, not only the fastest found.
        """
        base = self.problem.baseline_time_ns
        least = least_ns / base - 1
        none, fastest = ("meets", "is") if sure else ("was found that meets", "found takes")
        return InfeasibleError(
            f"no schedule of locked pairs {none} a slowdown of "
            f"{self.budget_time_ns / base - 1:.4%}: the fastest one {fastest} {least:+.4%} against "
            f"the baseline; allow at least {np.ceil(least * 1e6) / 1e4:.4f}%",
            least,
        )

    def _note(self, method: str) -> None:
        if method not in self.methods:
            self.methods.append(method)

    def solution(self, deadline: Deadline) -> Solution:
        """The answer, from the certificate's sums."""
        assert self.choice is not None
        problem, choice = self.problem, self.choice
        requests = self.requests
        if requests is None:
            before = np.roll(choice, 1)
            if not problem.cyclic:
                before[0] = choice[0]
            item = np.flatnonzero(before != choice).astype(np.int32)
            requests = item, choice[item]
        return Solution(
            choice=choice,
            request_item=requests[0],
            request_pair=requests[1],
            time_ns=self.value.time_ns,
            energy_mj=self.energy_mj,
            budget_time_ns=self.budget_time_ns,
            lower_bound_mj=min(self.bound_mj, self.energy_mj),
            gap=self.gap,
            slowdown=self.value.time_ns / problem.baseline_time_ns - 1.0,
            saving=1.0 - self.energy_mj / problem.baseline_energy_mj,
            method="+".join(self.methods),
            status="optimal" if self.closed else "limit",
            seconds=deadline.elapsed_s,
            multiplier_w=None if self.multiplier is None else self.multiplier * 1e6,
        )
