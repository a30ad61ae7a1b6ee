"""Clock pairs that the power cap does not let the step hold, and what may still be done with them.

A lock above what the power cap allows returns success, and the GPU runs slower than was asked for
(docs: NVML's SW power cap, clocks event reason 0x4). Two things follow. The whole step at such a
pair takes what it was measured to take, not the sum of its kernels' cells. And a kernel among
others that draw less does run at the pair, so it may be chosen where switches are quick against
the cap's averaging (tens of ms), but not where segments last as long as that average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.trace import Trace
from .switch_model import ConstantStall, Free, Lag, MatrixStall, SwitchModel, TwoPartStall

__all__ = ["capped_pairs", "choosable", "unheld_pairs", "whole_step"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_POWER_CAP = 0x4
_QUICK_NS = 1e6
_MOST_CAPPED = 0.05


def capped_pairs(trace: Trace, columns: NDArray[np.int64]) -> Flags:
    """(F,) True where the step as a whole was slowed by the power cap at a locked pair."""
    reasons = trace.pairs["throttle_reasons"].to_numpy(dtype=float, na_value=0.0).astype(np.int64)
    pairs = trace.clock_pairs()
    locked = np.array([not pairs[int(column)].is_governor for column in columns])
    return np.asarray(locked & ((reasons[columns] & _POWER_CAP) != 0))


def unheld_pairs(trace: Trace, used: NDArray[np.int64], columns: NDArray[np.int64]) -> Flags:
    """(F,) True where the cells themselves were measured under the cap.

    They hold for the mix of kernels they were measured in and for no other, so no schedule may
    lean on them: pairs with more than 5% of the step's time in such cells.
    """
    grid = np.ix_(used, columns)
    reasons = np.nan_to_num(trace.grid("throttle_reasons")[grid]).astype(np.int64)
    launches = trace.timeline["launches"].to_numpy(dtype=float)
    weight = np.bincount(
        np.searchsorted(used, trace.timeline["signature"].to_numpy(dtype=np.int64)),
        launches,
        len(used),
    )
    time_ns = trace.grid("duration_ns")[grid] * weight[:, None]
    share = (time_ns * ((reasons & _POWER_CAP) != 0)).sum(axis=0) / time_ns.sum(axis=0)
    return np.asarray(capped_pairs(trace, columns) & (share > _MOST_CAPPED))


def whole_step(trace: Trace, column: int) -> tuple[float, float] | None:
    """(ns, mJ) of the whole step as measured at a pair, or None."""
    time_ns, energy_mj = (
        float(trace.pairs[name].to_numpy(dtype=float, na_value=np.nan)[column])
        for name in ("step_time_ns", "step_energy_mj")
    )
    return (time_ns, energy_mj) if np.isfinite(time_ns) and np.isfinite(energy_mj) else None


def choosable(governor: Flags, capped: Flags, unheld: Flags, switch: SwitchModel) -> Flags | None:
    """(F,) which pairs a schedule may choose under a switch model; None for the usual ones.

    If the rule leaves none, it is not applied: a table of capped pairs alone is still a table.
    """
    barred = unheld if _longest_ns(switch) < _QUICK_NS else unheld | capped
    allowed = ~governor & ~barred
    return allowed if barred.any() and allowed.any() else None


def _longest_ns(switch: SwitchModel) -> float:
    if isinstance(switch, Lag):
        return max(float(np.max(switch.latency_ns)), switch.min_dwell_ns)
    if isinstance(switch, ConstantStall):
        return switch.time_ns
    if isinstance(switch, TwoPartStall):
        return switch.core_time_ns + switch.mem_time_ns
    if isinstance(switch, MatrixStall):
        return float(np.max(switch.time_ns))
    assert isinstance(switch, Free)
    return 0.0
