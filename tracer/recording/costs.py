"""What each launch of a step costs, from operators' loops: energies shared among their kernels.

An operator's energy is that of a call (`sensed_fit.fit_mixes`). Its kernels share it by their time
in the loop, which takes them to draw alike. A kernel of the step is found by its whole identity, or
else by its launch alone (an operator that works in place is captured as the one that does not).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...data.errors import DeviceError
from ..measure.sensed_fit import MixFit, MixTimes
from ..measure.timeline import StepTimeline

__all__ = ["KernelEnergies", "Share", "composed_time", "share_operators"]

Floats = npt.NDArray[np.float64]

_LAUNCH = 5  # name, grid, block, shared bytes, registers: the first parts of an identity


@dataclass(frozen=True)
class Share:
    """A kernel's part of an operator's energy."""

    operator: int
    part: float


@dataclass(frozen=True)
class KernelEnergies:
    """Energies of a step's signatures at any clock within the fit's range.

    Attributes:
        fit: the operators' energies.
        shares: the share of each signature; None where no operator launches it.
        time_ns: (S,) a duration of each, to give unknown ones the mean power of the others.
        count: (S,) launches.
    """

    fit: MixFit
    shares: tuple[Share | None, ...]
    time_ns: Floats
    count: Floats

    @property
    def known_share(self) -> float:
        """Share of the step's kernel time whose energy is known."""
        known = np.array([share is not None for share in self.shares])
        weight = self.time_ns * self.count
        return float(weight[known].sum() / weight.sum())

    def at(self, core_mhz: float, temperature_c: float) -> tuple[Floats, Floats]:
        """(S,) energy in mJ of one launch at a clock, and its relative standard deviation."""
        energy = np.full(len(self.shares), np.nan)
        error = np.full(len(self.shares), np.nan)
        for row, share in enumerate(self.shares):
            if share is not None:
                call_mj, error[row] = self.fit.call(share.operator, core_mhz, temperature_c)
                energy[row] = call_mj * share.part
        lost = np.isnan(energy)
        if lost.any():
            weight = (self.time_ns * self.count)[~lost]
            power = (energy * self.count)[~lost].sum() / weight.sum()
            energy[lost] = power * self.time_ns[lost]
            error[lost] = 0.3  # a kernel draws between 0.6 and 1.4 of the mean, roughly
        return energy, error

    def ratio(self, core_mhz: float, to_mhz: float) -> tuple[Floats, Floats]:
        """(S,) energy at a clock over that at another, and its relative standard deviation.

        The level is common to both, so only the exponent's error counts. Without an operator the
        step's mean exponent is taken, with the spread of all.
        """
        fit = self.fit
        x = float(np.log(core_mhz / to_mhz))
        o = len(fit.operators)
        own_sd = np.sqrt(np.diag(fit.covariance)[o:])
        row = {operator: place for place, operator in enumerate(fit.operators)}
        usual, spread = float(np.median(fit.exponent)), float(fit.exponent.std())
        exponent = np.array([usual if s is None else fit.exponent[row[s.operator]]
                             for s in self.shares])  # fmt: skip
        error = np.array([spread if s is None else own_sd[row[s.operator]] for s in self.shares])
        return np.exp(exponent * x), abs(x) * error


def share_operators(
    fit: MixFit, loops: Sequence[Mapping[str, Any]], timeline: StepTimeline
) -> KernelEnergies:
    """Tell each signature of the step its operator.

    Args:
        fit: the operators' energies.
        loops: ``loops`` of a session's record.
        timeline: the step.

    Raises:
        DeviceError: no operator launches any of them, so that no energy is known.
    """
    whole: dict[tuple[Any, ...], list[tuple[float, Share]]] = {}
    launch: dict[tuple[Any, ...], list[tuple[float, Share]]] = {}
    for number, loop in enumerate(loops):
        total = sum(mean_ns for _, mean_ns in loop["kernels"])
        if number not in fit.operators or not total:
            continue
        for key, mean_ns in loop["kernels"]:
            found = mean_ns, Share(number, mean_ns / total)
            whole.setdefault(tuple(key), []).append(found)
            launch.setdefault(tuple(key)[:_LAUNCH], []).append(found)
    signature = timeline.kernels["signature"].to_numpy(dtype=np.int64)
    size = len(timeline.signatures)
    keys = dict(zip(signature.tolist(), timeline.keys(), strict=True))
    count = np.bincount(signature, minlength=size).astype(np.float64)
    time_ns = np.bincount(signature, timeline.duration_ns.mean(axis=0), size) / count
    shares = []
    for number in range(size):
        alike = whole.get(keys[number]) or launch.get(keys[number][:_LAUNCH]) or []
        # Operators of one launch differ by their data types, which their times tell.
        near = min(alike, key=lambda one: abs(one[0] - time_ns[number]), default=None)
        shares.append(None if near is None else near[1])
    if not any(shares):
        raise DeviceError(
            "no operator that was measured alone launches any kernel of the step; its kernels "
            "cannot be given energies"
        )
    return KernelEnergies(fit, tuple(shares), time_ns, count)


def composed_time(
    times: MixTimes, loops: Sequence[Mapping[str, Any]], core_mhz: float, gaps_ns: float
) -> tuple[float, float]:
    """Time of a step put together from its operators' loops, profiler off, and its standard error.

    Loops leave gaps of their own between kernels; the step's take their place.

    Args:
        times: the operators' times.
        loops: ``loops`` of a session's record.
        core_mhz: the step's clock.
        gaps_ns: all gaps of the step.
    """
    total, variance = gaps_ns, 0.0
    for number in times.operators:
        loop = loops[number]
        call_ns, error = times.call(number, core_mhz)
        total += loop["count"] * (call_ns - len(loop["kernels"]) * loop["gap_ns"])
        variance += (loop["count"] * call_ns * error) ** 2
    return total, float(np.sqrt(variance))
