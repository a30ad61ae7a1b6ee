"""What one simulated run of a step did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["SimulatedRun"]


@dataclass(frozen=True)
class SimulatedRun:
    """One run of K items on virtual time; arrays are (K,).

    Attributes:
        begin_ns: virtual time at which the run began, before the first gap.
        end_ns: virtual time at which the last item ended.
        start_ns: int64, when each item began.
        duration_ns: int64, how long it ran.
        core_mhz: int64, core clock in force when it began (after cap and temperature). For a
            `TablePlayer`, the core clock of the pair in force; -1 where that is the governor's.
        mem_mhz: int64, memory clock in force; -1 where it is not known.
        throttle_reasons: int64, `ThrottleReason` bits met while it ran.
        pair_index: int64, row of the pair table in force when it began (`TablePlayer` only).
        energy_mj: true energy from begin to end, gaps and switches included.
        counter_mj: what the energy counter moved meanwhile, None without a counter. It moves in
            steps of about 100 ms, so short runs may show 0.
        mean_temperature_c: mean of the temperatures at begin and end.
        requests_issued: requests handed to the driver.
        requests_superseded: requests replaced in the keeper's mailbox before they were issued.
    """

    begin_ns: int
    end_ns: int
    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    core_mhz: npt.NDArray[np.int64]
    mem_mhz: npt.NDArray[np.int64]
    throttle_reasons: npt.NDArray[np.int64]
    energy_mj: float
    counter_mj: int | None
    mean_temperature_c: float
    requests_issued: int
    requests_superseded: int
    pair_index: npt.NDArray[np.int64] | None = None

    @property
    def time_ns(self) -> int:
        """From begin to end."""
        return self.end_ns - self.begin_ns
