"""What clocks do to times and energies, fitted to clocks that moved by themselves.

Two models, both power laws of the sensed clock over the narrow range a GPU wanders in (about
1.4 to 2.0 GHz on an H200), where a roofline and a static-plus-dynamic energy are both close to one:

- a kernel's duration within the step, t = a f^b, by Theil-Sen on the logarithms, one point a step
  (Sen 1968, JASA 63:1379; scipy.stats.theilslopes gives the interval);
- an operator's energy a call, from mixes of operators: a mix's energy is the sum of its operators'
  energies and of its waits'. Relative residuals, soft-L1, each exponent drawn weakly to a common
  value so that operators measured at one clock only stay sane. Times are taken apart likewise, the
  waits' being known; they check the profiler's, since no profiler runs beside mixes.

Temperature enters energies by one common factor (leakage). Extrapolation beyond the clocks sensed
is for the caller to refuse: nothing here knows where a voltage curve bends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...data.errors import DeviceError

__all__ = [
    "ClockResponse",
    "MixFit",
    "MixPoint",
    "MixTimes",
    "fit_mix_times",
    "fit_mixes",
    "fit_response",
]

Floats = npt.NDArray[np.float64]

_LEAST_SPREAD = 0.02
_EXPONENT_RANGE = (-1.2, 0.3)
_FLOOR = 0.003  # relative: the counter's steps are known to a few ms in a second
_EXPONENT_SD = 0.5
_ENERGY_PRIOR = 0.6
_TIME_PRIOR = -0.5  # between a kernel that waits on memory and one that only computes
_HEAT_SD = 0.005
_MOST_LOG = 60.0  # trial steps beyond this would overflow


@dataclass(frozen=True)
class ClockResponse:
    """A duration against the clock: ``at(f) = scale * (f / reference)^exponent``.

    Attributes:
        reference_mhz: median clock of the points.
        scale_ns: duration there.
        exponent: Theil-Sen slope; 0 where the clocks hardly differed.
        low, high: 95% interval of the exponent.
        scatter: relative spread of the points about the line (from the median deviation).
        n: points.
        range_mhz: least and greatest clock among them.
    """

    reference_mhz: float
    scale_ns: float
    exponent: float
    low: float
    high: float
    scatter: float
    n: int
    range_mhz: tuple[float, float]

    def at(self, core_mhz: float) -> float:
        """Duration at a clock, ns."""
        return float(self.scale_ns * (core_mhz / self.reference_mhz) ** self.exponent)

    def sd_at(self, core_mhz: float) -> float:
        """Standard deviation of that prediction, ns: of the line's height and of its slope."""
        lever = abs(np.log(core_mhz / self.reference_mhz)) * (self.high - self.low) / 3.92
        height = self.scatter / np.sqrt(max(self.n, 1))
        return float(self.at(core_mhz) * np.hypot(lever, height))


def fit_response(core_mhz: Floats, duration_ns: Floats) -> ClockResponse:
    """Fit a duration's response to points of sensed clock and duration, each (N,)."""
    from scipy.stats import theilslopes

    good = np.isfinite(core_mhz) & np.isfinite(duration_ns) & (duration_ns > 0)
    clock, duration = core_mhz[good], duration_ns[good]
    if not len(clock):
        raise DeviceError("no clock could be sensed beside any kernel")
    reference = float(np.median(clock))
    x, y = np.log(clock / reference), np.log(duration)
    exponent = low = high = 0.0
    if len(x) > 2 and np.ptp(x) >= _LEAST_SPREAD:
        slope, _, low, high = theilslopes(y, x, 0.95)
        exponent = float(np.clip(slope, *_EXPONENT_RANGE))
        # A slope no kernel can have was noise: the interval then reaches to what is used instead.
        low, high = min(low, exponent), max(high, exponent)
    rest = y - exponent * x
    level = float(np.median(rest))
    return ClockResponse(
        reference_mhz=reference,
        scale_ns=float(np.exp(level)),
        exponent=exponent,
        low=float(low),
        high=float(high),
        scatter=float(1.4826 * np.median(np.abs(rest - level))),
        n=len(x),
        range_mhz=(float(clock.min()), float(clock.max())),
    )


@dataclass(frozen=True)
class MixPoint:
    """One mix as the fit needs it: calls of each operator, waits, and what they took."""

    calls: dict[int, int]
    wait_cycles: int
    core_mhz: float
    time_ns: float
    energy_mj: float
    temperature_c: float | None
    relative_error: float


@dataclass(frozen=True)
class MixFit:
    """Operators taken apart.

    Attributes:
        operators: numbers of the operators fitted, O of them.
        reference_mhz: clock at which ``energy_mj`` holds.
        energy_mj: (O,) a call.
        exponent: (O,) of the clock.
        covariance: (2 O, 2 O) of the logarithms of ``energy_mj`` and of the exponents.
        wait_power_w: power of a GPU that waits in a spin, and its exponent.
        temperature_per_c: relative energy a degree above ``temperature_c``.
        residuals: (M,) relative, of each mix.
        range_mhz: least and greatest clock among the mixes.
    """

    operators: tuple[int, ...]
    reference_mhz: float
    energy_mj: Floats
    exponent: Floats
    covariance: Floats
    wait_power_w: tuple[float, float]
    temperature_per_c: float
    temperature_c: float
    residuals: Floats
    range_mhz: tuple[float, float]

    def wait_w(self, core_mhz: float) -> float:
        """Power of waiting at a clock, W."""
        power, exponent = self.wait_power_w
        return float(power * (core_mhz / self.reference_mhz) ** exponent)

    def call(self, operator: int, core_mhz: float, temperature_c: float) -> tuple[float, float]:
        """(energy mJ, relative standard deviation) of one call at a clock and a temperature."""
        row = self.operators.index(operator)
        x = float(np.log(core_mhz / self.reference_mhz))
        warm = 1 + self.temperature_per_c * (temperature_c - self.temperature_c)
        energy = self.energy_mj[row] * np.exp(self.exponent[row] * x) * warm
        return float(energy), _relative_sd(self.covariance, row, x)


@dataclass(frozen=True)
class MixTimes:
    """Times of operators taken apart, profiler off.

    Attributes:
        operators: numbers of the operators fitted, O of them.
        reference_mhz: clock at which ``time_ns`` holds.
        time_ns: (O,) a call in its loop, with the gap to the next.
        exponent: (O,) of the clock.
        covariance: (2 O, 2 O) of the logarithms of ``time_ns`` and of the exponents.
    """

    operators: tuple[int, ...]
    reference_mhz: float
    time_ns: Floats
    exponent: Floats
    covariance: Floats

    def call(self, operator: int, core_mhz: float) -> tuple[float, float]:
        """(time ns, relative standard deviation) of one call at a clock."""
        row = self.operators.index(operator)
        x = float(np.log(core_mhz / self.reference_mhz))
        time_ns = self.time_ns[row] * np.exp(self.exponent[row] * x)
        return float(time_ns), _relative_sd(self.covariance, row, x)


def _relative_sd(covariance: Floats, row: int, x: float) -> float:
    """Of one operator's power law, ``x`` log clocks from its reference."""
    both = [row, len(covariance) // 2 + row]
    arm = np.array([1.0, x])
    return float(np.sqrt(max(float(arm @ covariance[np.ix_(both, both)] @ arm), 0.0)))


def fit_mixes(points: Sequence[MixPoint]) -> MixFit:
    """Take the mixes' energies apart.

    Raises:
        DeviceError: too few mixes for the operators in them.
    """
    design = _Design(points, _operators(points))
    p, covariance = _solved(design)
    o = len(design.operators)
    return MixFit(
        operators=design.operators,
        reference_mhz=design.reference,
        energy_mj=np.exp(p[:o]),
        exponent=p[o : 2 * o],
        covariance=covariance,
        wait_power_w=(float(np.exp(p[2 * o])), float(p[2 * o + 1])),
        temperature_per_c=float(p[2 * o + 2]),
        temperature_c=design.mean_c,
        residuals=design.energy_of(p) / design.energy - 1,
        range_mhz=(float(design.clock.min()), float(design.clock.max())),
    )


def fit_mix_times(points: Sequence[MixPoint]) -> MixTimes:
    """Take the mixes' times apart: what is left of each after its waits, whose cycles are known.

    Raises:
        DeviceError: too few mixes for the operators in them.
    """
    left = [
        replace(point, wait_cycles=0, energy_mj=busy_ns, temperature_c=None)
        for point in points
        if point.calls and (busy_ns := point.time_ns - point.wait_cycles / point.core_mhz * 1e3) > 0
    ]
    design = _Design(left, _operators(left), prior=_TIME_PRIOR)
    p, covariance = _solved(design)
    o = len(design.operators)
    return MixTimes(design.operators, design.reference, np.exp(p[:o]), p[o : 2 * o], covariance)


def _operators(points: Sequence[MixPoint]) -> tuple[int, ...]:
    operators = tuple(sorted({o for point in points for o in point.calls}))
    if len(points) <= len(operators):
        raise DeviceError(
            f"{len(points)} mixes were measured for {len(operators)} operators; measure longer"
        )
    return operators


def _solved(design: _Design) -> tuple[Floats, Floats]:
    """All parameters, and the (2 O, 2 O) covariance of the operators'."""
    from scipy.optimize import least_squares

    found = least_squares(
        design.residuals, design.start(), jac=design.jacobian, loss="soft_l1", x_scale="jac"
    )
    p, o = found.x, len(design.operators)
    scale = max(1.0, 2 * found.cost / max(len(design.energy) - o, 1))
    slopes = np.asarray(found.jac)
    covariance = np.linalg.pinv(slopes.T @ slopes) * scale
    return p, covariance[: 2 * o, : 2 * o]


class _Design:
    """The mixes as arrays, and what parameters predict for them.

    Parameters: logarithm of each operator's energy, its exponent, the logarithm of the waiting
    power, its exponent, and the relative growth of all energies with temperature. Exponents are
    drawn to ``prior``. Any amount that adds up will do for energies.
    """

    def __init__(
        self,
        points: Sequence[MixPoint],
        operators: tuple[int, ...],
        *,
        prior: float = _ENERGY_PRIOR,
    ) -> None:
        self.operators, self.prior = operators, prior
        self.clock = np.array([p.core_mhz for p in points])
        self.reference = float(np.median(self.clock))
        self.log_x = np.log(self.clock / self.reference)
        self.calls = np.array([[p.calls.get(o, 0) for o in operators] for p in points], float)
        self.energy = np.array([p.energy_mj for p in points])
        known = [p.temperature_c for p in points if p.temperature_c is not None]
        self.mean_c = float(np.mean(known)) if known else 0.0
        warm = [self.mean_c if p.temperature_c is None else p.temperature_c for p in points]
        self.warmer_c = np.array(warm) - self.mean_c
        self.error = np.hypot(np.array([p.relative_error for p in points]), _FLOOR)
        self.wait_ns = np.array([p.wait_cycles for p in points]) / self.clock * 1e3

    def start(self) -> Floats:
        """Energies by least squares at the priors' exponents, none negative."""
        from scipy.optimize import nnls

        own = self.calls * np.exp(self.prior * self.log_x)[:, None]
        wait = np.exp(0.5 * self.log_x) * self.wait_ns * 1e-6
        design = np.column_stack([own, wait]) / self.energy[:, None]
        size = design.max(axis=0)  # columns of one size
        size[size == 0] = 1.0  # nobody waited
        found = nnls(design / size, np.ones(len(self.energy)))[0] / size
        # What came out at nothing may still be something: a thousandth of the mix with most of it.
        least = 1e-3 / size
        found = np.maximum(found, least)
        priors = np.full(self.calls.shape[1], self.prior)
        return np.concatenate([np.log(found[:-1]), priors, [np.log(found[-1]), 0.5, 0.0]])

    def _parts(self, p: Floats) -> tuple[Floats, Floats, Floats]:
        """(M, O) energy of each operator in each mix, (M,) of its waits, (M,) the heat's factor."""
        o = self.calls.shape[1]
        each = np.clip(p[:o] + p[o : 2 * o] * self.log_x[:, None], -_MOST_LOG, _MOST_LOG)
        own = self.calls * np.exp(each)
        wait_log = np.clip(p[2 * o] + p[2 * o + 1] * self.log_x, -_MOST_LOG, _MOST_LOG)
        wait = np.exp(wait_log) * self.wait_ns * 1e-6
        return own, wait, 1 + p[2 * o + 2] * self.warmer_c

    def energy_of(self, p: Floats) -> Floats:
        """(M,) what parameters predict."""
        own, wait, warm = self._parts(p)
        return np.asarray((own.sum(axis=1) + wait) * warm)

    def residuals(self, p: Floats) -> Floats:
        """Relative misses in standard errors, then the pull of the priors."""
        o = self.calls.shape[1]
        pulls = np.append((p[o : 2 * o] - self.prior), p[2 * o + 1] - 0.5) / _EXPONENT_SD
        misses = (self.energy_of(p) / self.energy - 1) / self.error
        return np.concatenate([misses, pulls, [p[2 * o + 2] / _HEAT_SD]])

    def jacobian(self, p: Floats) -> Floats:
        """Derivatives of `residuals`."""
        o = self.calls.shape[1]
        own, wait, warm = self._parts(p)
        weight = 1 / (self.energy * self.error)
        found = np.zeros((len(self.energy) + o + 2, 2 * o + 3))
        rows = slice(0, len(self.energy))
        found[rows, :o] = own * (warm * weight)[:, None]
        found[rows, o : 2 * o] = found[rows, :o] * self.log_x[:, None]
        found[rows, 2 * o] = wait * warm * weight
        found[rows, 2 * o + 1] = found[rows, 2 * o] * self.log_x
        found[rows, 2 * o + 2] = (own.sum(axis=1) + wait) * self.warmer_c * weight
        pulled = len(self.energy) + np.arange(o)
        found[pulled, o + np.arange(o)] = 1 / _EXPONENT_SD
        found[-2, 2 * o + 1] = 1 / _EXPONENT_SD
        found[-1, 2 * o + 2] = 1 / _HEAT_SD
        return found


def point_of(record: dict[str, Any], most_mhz: float) -> MixPoint:
    """A mix's record (`mixes.MixResult.as_record`) as a point of the fit.

    The sensed clock is the median of probes that see one moment each; the reported one is a mean
    of 100 ms refreshes. Their mean is used; a sensed clock no GPU of this kind can run at (a probe
    disturbed by the host) is left out.
    """
    window = record["window"]
    sensed, reported = record["sensed_mhz"], window["core_mhz"]
    if sensed is not None and sensed > 1.02 * most_mhz:
        sensed = None
    known = [clock for clock in (sensed, reported) if clock is not None]
    if not known:
        raise DeviceError("a mix has neither a sensed nor a reported clock")
    swing = record["time_sd_ns"] / record["time_ns"]
    return MixPoint(
        calls={int(k): int(n) for k, n in record["calls"].items()},
        wait_cycles=int(record["wait_cycles"]),
        core_mhz=float(np.clip(np.mean(known), None, most_mhz)),
        time_ns=float(record["time_ns"]),
        energy_mj=float(window["power_w"]) * float(record["time_ns"]) * 1e-6,
        temperature_c=window["temperature_c"],
        relative_error=float(
            np.hypot(window["power_error_w"] / window["power_w"], min(swing, 0.1) / 4)
        ),
    )
