"""How a kernel's time and power answer to the clocks: a few measured pairs, the rest predicted.

Model. Time has a part that follows the core clock, a part that follows the memory clock, an overlap
between sharp (the larger one counts) and none (they add), and a part that follows neither:
t ~ (core^q + memory^q)^(1/q) + fixed. Power has a static part, a memory part, and a dynamic part
f V(f)^2 with V flat below a knee, scaled by how busy the units are. How these weigh is unknown for
a kernel, so thousands of kernels are drawn over all weights; the mean and covariance of their log
time and log power over the pairs are the prior of a Gaussian process, which the measured pairs then
condition. That gives every other pair a prediction and says how sure it is. The scale of the
uncertainty is checked against each measured pair predicted from the others (leave one out) and
widened where they disagree.

Sources: the roofline model (Williams, Waterman, Patterson, CACM 52(4), 2009); power's parts as in
Guerreiro et al., HPCA 2018; Gaussian processes, Rasmussen and Williams 2006, eq. 2.25, 2.26, 5.12.

Left out: a power cap that takes clock away at a locked pair (give the sensed clocks instead of the
requested ones), and another algorithm chosen at another clock (such kernels are other signatures).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...data.errors import InputError
from ...data.units import ClockPair

__all__ = ["Prediction", "ResponseModel"]

Floats = npt.NDArray[np.float64]

_DRAWS = 4000
# A kernel's own level is free: far wider than any ratio of levels that a prior could know.
_LEVEL_VARIANCE = 4.0
_JITTER = 1e-6


@dataclass(frozen=True)
class Prediction:
    """Time and energy of S kernels at F pairs.

    Attributes:
        time_ns: (S, F), the measured values where measured.
        energy_mj: (S, F), likewise.
        time_sd: (S, F) standard deviation of log time (near enough a relative error).
        energy_sd: (S, F) standard deviation of log energy.
        measured: (F,) bool.
    """

    time_ns: Floats
    energy_mj: Floats
    time_sd: Floats
    energy_sd: Floats
    measured: npt.NDArray[np.bool_]

    @property
    def median_error(self) -> float:
        """Stated error: median over the unmeasured cells of the larger of the two deviations."""
        if self.measured.all():
            return 0.0
        unsure = np.maximum(self.time_sd, self.energy_sd)[:, ~self.measured]
        # The median absolute value of a normal variable is 0.6745 of its standard deviation.
        return float(np.median(unsure) * 0.6745)


class ResponseModel:
    """The prior over one set of pairs; `predict` conditions it on measurements."""

    def __init__(self, pairs: Sequence[ClockPair], *, noise: float = 0.01) -> None:
        """Draw the prior.

        Args:
            pairs: F locked pairs (not the governor, which is no clock).
            noise: relative error of one measured cell.

        Raises:
            InputError: a pair without a core clock, or fewer than one pair.
        """
        if not pairs or any(pair.core_mhz is None for pair in pairs):
            raise InputError("a response needs locked core clocks; the governor is not one")
        self.pairs = tuple(pairs)
        self._noise = noise
        core = np.array([pair.core_mhz for pair in pairs], dtype=float)
        mem = np.array([pair.mem_mhz or 1 for pair in pairs], dtype=float)
        log_time, log_power = _draw_kernels(core.max() / core, mem.max() / mem)
        self._time = log_time.mean(axis=0), _covariance(log_time)
        self._power = log_power.mean(axis=0), _covariance(log_power)
        self._joint = self._time[1] + self._power[1]

    def predict(self, measured: Sequence[int], time_ns: Floats, energy_mj: Floats) -> Prediction:
        """Predict every pair from the measured ones.

        Args:
            measured: M distinct rows of ``pairs``.
            time_ns: (S, M), positive.
            energy_mj: (S, M), positive.

        Raises:
            InputError: nothing measured, shapes that do not fit, or a cell that is not positive.
        """
        rows = np.asarray(measured, dtype=np.int64)
        _check(rows, time_ns, energy_mj, len(self.pairs))
        power = energy_mj / time_ns
        log_time, time_sd = _condition(*self._time, np.log(time_ns), rows, self._noise)
        log_power, power_sd = _condition(*self._power, np.log(power), rows, self._noise)
        predicted_ns = np.exp(log_time)
        predicted_mj = np.exp(log_time + log_power)
        predicted_ns[:, rows], predicted_mj[:, rows] = time_ns, energy_mj
        known = np.zeros(len(self.pairs), dtype=bool)
        known[rows] = True
        return Prediction(predicted_ns, predicted_mj, time_sd, np.hypot(time_sd, power_sd), known)

    def next_pair(self, measured: Sequence[int]) -> int:
        """The row whose measurement would leave the least uncertainty over all pairs.

        Raises:
            InputError: every pair is measured.
        """
        rest = [row for row in range(len(self.pairs)) if row not in set(measured)]
        if not rest:
            raise InputError("every pair is measured; there is no next one")
        return min(rest, key=lambda row: self._left_unsure([*measured, row]))

    def _left_unsure(self, rows: list[int]) -> float:
        joint = self._joint
        inner = joint[np.ix_(rows, rows)] + self._noise**2 * np.eye(len(rows))
        explained = np.einsum("fm,mf->f", joint[:, rows], np.linalg.solve(inner, joint[rows]))
        return float(np.sqrt(np.clip(np.diag(joint) - explained, 0.0, None)).mean())


def _check(rows: npt.NDArray[np.int64], time_ns: Floats, energy_mj: Floats, pairs: int) -> None:
    if not len(rows) or len(set(rows.tolist())) != len(rows):
        raise InputError("measure at least one pair, each once")
    if rows.min() < 0 or rows.max() >= pairs:
        raise InputError(f"a measured pair must be one of the {pairs} pairs of the sweep")
    if time_ns.shape != energy_mj.shape or time_ns.ndim != 2 or time_ns.shape[1] != len(rows):
        raise InputError(f"expected time and energy of shape (S, {len(rows)})")
    for name, values in (("time", time_ns), ("energy", energy_mj)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise InputError(f"a measured {name} must be a positive number")


def _draw_kernels(core: Floats, mem: Floats) -> tuple[Floats, Floats]:
    """Log time and log power of drawn kernels, (N, F), over the slow-down factors of each clock."""
    rng = np.random.default_rng(0)

    def draw(low: float, high: float, zero: float = 0.0) -> Floats:
        values: Floats = rng.uniform(low, high, (_DRAWS, 1))
        return np.where(rng.random((_DRAWS, 1)) < zero, 0.0, values)

    balance = np.exp(rng.normal(0.0, 1.2, (_DRAWS, 1)))  # memory part over core part
    overlap = rng.choice([1.2, 2.0, 4.0, 8.0, 50.0], (_DRAWS, 1))
    # Worked in logarithms: a high power of a large factor would overflow.
    body = np.exp(np.logaddexp(overlap * np.log(core), overlap * np.log(balance * mem)) / overlap)
    time = body + draw(0.0, 0.3, 0.5) + draw(0.0, 1.0, 0.5) * core
    time = time + draw(0.0, 0.5, 0.5) * balance * mem
    core_busy, mem_busy = core / body, balance * mem / body
    share, knee = 1.0 / core, draw(0.4, 0.95)
    rise = draw(0.0, 0.6)
    volts = (1.0 + rise * np.clip(share - knee, 0.0, None) / (1.0 - knee)) / (1.0 + rise)
    busy = 0.3 + 0.7 * core_busy ** draw(0.0, 1.0)
    power = draw(0.1, 0.5) + draw(0.0, 0.3) / mem + draw(0.1, 0.6) * share * volts**2 * busy
    power = power + draw(0.0, 0.3) / mem * mem_busy
    return np.log(time), np.log(power)


def _covariance(draws: Floats) -> Floats:
    count = draws.shape[1]
    spread: Floats = np.cov(draws, rowvar=False).reshape(count, count)
    return spread + _LEVEL_VARIANCE + _JITTER * np.eye(count)


def _condition(
    mean: Floats, spread: Floats, log_values: Floats, rows: npt.NDArray[np.int64], noise: float
) -> tuple[Floats, Floats]:
    """Posterior mean (S, F) and standard deviation (S, F), widened where leave-one-out says so."""
    inner = np.linalg.inv(spread[np.ix_(rows, rows)] + noise**2 * np.eye(len(rows)))
    residual = log_values - mean[rows]
    # Taken out first, a kernel's own level cannot pull on its slopes.
    level = residual.mean(axis=1, keepdims=True)
    weights = (residual - level) @ inner
    posterior = level + mean + weights @ spread[rows]
    left = np.diag(spread) - np.einsum("fm,mn,nf->f", spread[:, rows], inner, spread[rows])
    scale = np.ones(len(log_values))
    if len(rows) > 2:
        # Each measured cell from the others, in units of its own predicted deviation. One kernel
        # has few of them, so its scale is drawn half-way to that of all kernels.
        surprise = (weights / np.sqrt(np.diag(inner))) ** 2
        own, everyone = surprise.mean(axis=1), float(surprise.mean())
        scale = np.sqrt(np.maximum(0.5 * (own + everyone), 0.05))
    return posterior, scale[:, None] * np.sqrt(np.clip(left, 0.0, None))[None, :]
