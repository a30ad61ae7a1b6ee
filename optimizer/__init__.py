"""Clock schedules of least energy within a time budget, each with its proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .problem import Problem
from .solution import Solution
from .switch_model import ConstantStall, Free, Lag, MatrixStall, SwitchModel, TwoPartStall

if TYPE_CHECKING:
    from .solver import Method

__all__ = [
    "ConstantStall",
    "Free",
    "Lag",
    "MatrixStall",
    "Problem",
    "Solution",
    "SwitchModel",
    "TwoPartStall",
    "solve",
]


def solve(
    problem: Problem,
    budget: float,
    *,
    time_limit_s: float = 60.0,
    tolerance: float = 1e-5,
    method: Method = "auto",
) -> Solution:
    """Find the schedule of least energy whose slowdown is at most ``budget``, with its proof.

    Args:
        problem: the step.
        budget: the slowdown allowed against the baseline, as a fraction (0.006 is 0.6%).
        time_limit_s: wall time after which the best schedule found is returned with its true gap.
        tolerance: relative gap at which to stop and call the schedule optimal.
        method: ``auto``, or the plain integer program as a reference: ``full-ilp-highs``,
            ``full-ilp-cpsat`` or ``full-ilp-scip``.

    Raises:
        InputError: the budget, limit or method makes no sense.
        InfeasibleError: no schedule meets the budget; its ``least_slowdown`` says what would do.
    """
    from .solver import solve as run

    return run(problem, budget, time_limit_s=time_limit_s, tolerance=tolerance, method=method)
