"""The answer: a schedule, its re-evaluated time and energy, and the proof that goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Solution"]


@dataclass(frozen=True, eq=False)
class Solution:
    """A feasible schedule and a lower bound no schedule within the budget can beat.

    Times and energies are the certificate's, summed exactly from the problem's tables, not the
    solver's running totals.

    Attributes:
        choice: (K,) int32, the pair (index into the problem's pairs) each item runs at.
        request_item: (M,) int32, the item at whose start each change is requested, ascending.
            Under stall it is the item that runs at the new pair; under lag it is earlier.
        request_pair: (M,) int32, the pair each request asks for.
        time_ns: the step's time, gaps and stalls included.
        energy_mj: the step's energy, gaps and stalls included.
        budget_time_ns: the time the budget allowed.
        lower_bound_mj: proven: no schedule within the budget takes less energy.
        gap: (energy_mj - lower_bound_mj) / energy_mj, at least 0.
        slowdown: time against the baseline, minus 1.
        saving: 1 minus energy against the baseline.
        method: the path of the proof, such as ``dual+splice`` or ``dual+splice+labels``.
        status: ``optimal`` if the gap is within the tolerance asked for, ``limit`` if the time
            limit or a cap on the search struck first, or caution against noise and scatter left a
            wider gap (the schedule and its gap hold all the same).
        seconds: wall time taken.
        multiplier_w: the Lagrange multiplier at the bound, mJ per ns times 1e6, that is the power
            one would pay for time; None where the bound did not come from it.
    """

    choice: NDArray[np.int32]
    request_item: NDArray[np.int32]
    request_pair: NDArray[np.int32]
    time_ns: float
    energy_mj: float
    budget_time_ns: float
    lower_bound_mj: float
    gap: float
    slowdown: float
    saving: float
    method: str
    status: Literal["optimal", "limit"]
    seconds: float
    multiplier_w: float | None = None

    @property
    def n_switches(self) -> int:
        """Changes of pair in one step, the one at its end included where the step repeats."""
        return len(self.request_item)
