"""How a kernel's time and power answer to the clocks: a few measured pairs, the rest predicted.

The laws of `clock_laws` are fitted to all kernels together (`joint_fit`): what is the GPU's (its
voltage curve, its leakage, what its clocks really do) is learnt from every kernel, what is the
kernel's from its own cells. What a kernel's measured cells leave of the law is then carried to the
pairs nearby by a Gaussian process. Both say how sure they are; the scale of that is checked against
each measured pair foretold from the others (leave one out), and widened where they disagree.

Sources: `clock_laws` and `joint_fit` name theirs; Gaussian processes, Rasmussen and Williams 2006,
eq. 2.25 and 2.26; the next measurement where it leaves least uncertainty over all, Cohn, Neural
Networks 9 (1996).

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
from .clock_laws import PowerLaw, TimeLaw
from .joint_fit import Curvature, JointFit, Law, curvature, fit_jointly

__all__ = ["Prediction", "ResponseModel"]

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_TIME_NOISE, _POWER_NOISE = 0.01, 0.02
# What laws leave: its standard deviation, how far it reaches over log clocks, its own noise.
_REST_SD, _REST_REACH, _REST_NOISE = 0.03, (0.3, 0.7), 0.007
# Kernels fitted together: enough to tell what is the GPU's, few enough for a second's work.
_TOGETHER = 128
# The next pair is chosen by so many kernels, pairs and candidates at most, evenly spread.
_ASKED_KERNELS, _ASKED_PAIRS, _CANDIDATES = 40, 40, 60
_LEAST_CHECKED = 3


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


@dataclass(frozen=True)
class _Known:
    """A law fitted to (S, M) log values: all pairs' values (S, F), and how sure they are."""

    law: Law
    fit: JointFit
    values: Floats
    sure: Curvature


class ResponseModel:
    """Laws over one set of pairs; `predict` fits them to measurements."""

    def __init__(self, pairs: Sequence[ClockPair]) -> None:
        """Take F locked pairs (not the governor, which is no clock).

        Raises:
            InputError: a pair without a core clock, or fewer than one pair.
        """
        if not pairs or any(pair.core_mhz is None for pair in pairs):
            raise InputError("a response needs locked core clocks; the governor is not one")
        self.pairs = tuple(pairs)
        self._time_law = TimeLaw(self.pairs)
        self._rest = _Rest(self.pairs)
        self._every = np.arange(len(self.pairs))

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
        shape = (4, len(time_ns), len(self.pairs))
        time, power, time_sd, power_sd = np.empty(shape)
        groups = -(-len(time_ns) // _TOGETHER)
        for first in range(groups):
            # Every so many-th kernel: each group has some of every kind.
            mine = slice(first, None, groups)
            time[mine], time_sd[mine], power[mine], power_sd[mine] = self._group(
                rows, np.log(time_ns[mine]), np.log(energy_mj[mine])
            )
        predicted_ns, predicted_mj = np.exp(time), np.exp(time + power)
        predicted_ns[:, rows], predicted_mj[:, rows] = time_ns, energy_mj
        known = np.isin(self._every, rows)
        return Prediction(predicted_ns, predicted_mj, time_sd, np.hypot(time_sd, power_sd), known)

    def _group(self, rows: Rows, log_ns: Floats, log_mj: Floats) -> tuple[Floats, ...]:
        """Log time and log power, (S, F), each followed by its standard deviation."""
        level, log_power = log_ns.mean(axis=1, keepdims=True), log_mj - log_ns
        most = log_power.max()
        time, power = self._laws(rows, log_ns - level, log_power - most)
        found = []
        for known, values, noise, offset in (
            (time, log_ns - level, _TIME_NOISE, level),
            (power, log_power - most, _POWER_NOISE, most),
        ):
            rest = self._rest.carried(rows, values - known.values[:, rows])
            scale = self._surprise(known, rows, values, noise)
            variance = known.sure.variance() + self._rest.variance(rows)
            found += [offset + known.values + rest, scale[:, None] * np.sqrt(variance)]
        return tuple(found)

    def _laws(self, rows: Rows, log_time: Floats, log_power: Floats) -> tuple[_Known, _Known]:
        time = self._known(self._time_law, rows, log_time, _TIME_NOISE)
        rate = time.values.min(axis=1, keepdims=True) - time.values
        return time, self._known(PowerLaw(self.pairs, rate), rows, log_power, _POWER_NOISE)

    def _known(self, law: Law, rows: Rows, values: Floats, noise: float) -> _Known:
        fit = fit_jointly(law, values, rows, noise)
        everywhere = law.values(fit.own, fit.shared, self._every)
        sure = curvature(law, fit, values, rows, noise, pairs=len(self.pairs))
        return _Known(law, fit, everywhere, sure)

    def _surprise(self, known: _Known, rows: Rows, values: Floats, noise: float) -> Floats:
        """(S,) how far measured pairs are from what others foretell, in stated deviations."""
        if len(rows) < _LEAST_CHECKED:
            return np.ones(len(values))
        squares = np.empty_like(values)
        for at, row in enumerate(rows):
            kept, others = np.delete(values, at, axis=1), np.delete(rows, at)
            fit = fit_jointly(known.law, kept, others, noise, begin=known.fit)
            sure = curvature(known.law, fit, kept, others, noise, pairs=len(self.pairs))
            law = known.law.values(fit.own, fit.shared, self._every)
            told = law + self._rest.carried(others, kept - law[:, others])
            stated = sure.only(row).variance()[:, 0] + self._rest.variance(others)[row]
            squares[:, at] = (values[:, at] - told[:, row]) ** 2 / (stated + noise**2)
        # One kernel has few of them, so its scale is drawn half-way to that of all kernels.
        own, everyone = squares.mean(axis=1), float(squares.mean())
        return np.asarray(np.sqrt(np.maximum(0.5 * (own + everyone), 0.05)))

    def next_pair(
        self,
        measured: Sequence[int],
        time_ns: Floats | None = None,
        energy_mj: Floats | None = None,
    ) -> int:
        """The row whose measurement would leave the least uncertainty over all pairs.

        Args:
            measured: M distinct rows of ``pairs``; none at the start of a sweep.
            time_ns: (S, M), as for `predict`; not needed where nothing is measured.
            energy_mj: (S, M), likewise.

        Raises:
            InputError: every pair is measured, or as `predict`.
        """
        rows = np.asarray(measured, dtype=np.int64)
        rest = np.setdiff1d(self._every, rows)
        if not len(rest):
            raise InputError("every pair is measured; there is no next one")
        if time_ns is None or energy_mj is None:
            sure = self._unmeasured()
        else:
            _check(rows, time_ns, energy_mj, len(self.pairs))
            some = _spread(np.arange(len(time_ns)), _ASKED_KERNELS)
            log_ns, log_mj = np.log(time_ns[some]), np.log(energy_mj[some])
            level, log_power = log_ns.mean(axis=1, keepdims=True), log_mj - log_ns
            known = self._laws(rows, log_ns - level, log_power - log_power.max())
            sure = known[0].sure, known[1].sure
        asked = _spread(self._every, _ASKED_PAIRS)

        def left_unsure(row: int) -> float:
            variance = 2 * self._rest.variance(np.append(rows, row))[asked]
            for each, noise in zip(sure, (_TIME_NOISE, _POWER_NOISE), strict=True):
                variance = variance + each.with_pair(row, noise).only(asked).variance()
            return float(np.sqrt(variance).mean())

        return int(min(_spread(rest, _CANDIDATES), key=left_unsure))

    def _unmeasured(self) -> tuple[Curvature, Curvature]:
        """How sure the laws are of kernels of which nothing is known: drawn ones."""
        rng = np.random.default_rng(0)
        nothing, none = np.empty((_ASKED_KERNELS, 0)), self._every[:0]

        def drawn(law: Law) -> tuple[JointFit, Curvature]:
            size = (_ASKED_KERNELS, len(law.own.mean))
            fit = JointFit(rng.normal(law.own.mean, law.own.sd, size), law.shared.mean)
            return fit, curvature(law, fit, nothing, none, 1.0, pairs=len(self.pairs))

        fit, time = drawn(self._time_law)
        values = self._time_law.values(fit.own, fit.shared, self._every)
        _, power = drawn(PowerLaw(self.pairs, values.min(axis=1, keepdims=True) - values))
        return time, power


class _Rest:
    """What the laws leave, smooth over both log clocks: a Gaussian process."""

    def __init__(self, pairs: Sequence[ClockPair]) -> None:
        logs = [
            np.log([getattr(pair, name) or 1 for pair in pairs]) for name in ("core_mhz", "mem_mhz")
        ]
        gaps = [(log[:, None] - log) / reach for log, reach in zip(logs, _REST_REACH, strict=True)]
        self._cover = _REST_SD**2 * np.exp(-0.5 * sum(gap**2 for gap in gaps))

    def _weights(self, rows: Rows) -> Floats:
        inner = self._cover[np.ix_(rows, rows)] + _REST_NOISE**2 * np.eye(len(rows))
        return np.asarray(np.linalg.solve(inner, self._cover[rows]))

    def carried(self, rows: Rows, rest: Floats) -> Floats:
        """(S, F) what (S, M) at ``rows`` says of all pairs."""
        return np.asarray(rest @ self._weights(rows))

    def variance(self, rows: Rows) -> Floats:
        """(F,) what stays unknown with ``rows`` measured."""
        told = np.einsum("mf,mf->f", self._cover[rows], self._weights(rows))
        return np.asarray(np.clip(np.diag(self._cover) - told, 0.0, None))


def _spread(rows: Rows, most: int) -> Rows:
    """At most so many, evenly spread, both ends among them."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def _check(rows: Rows, time_ns: Floats, energy_mj: Floats, pairs: int) -> None:
    if not len(rows) or len(set(rows.tolist())) != len(rows):
        raise InputError("measure at least one pair, each once")
    if rows.min() < 0 or rows.max() >= pairs:
        raise InputError(f"a measured pair must be one of the {pairs} pairs of the sweep")
    if time_ns.shape != energy_mj.shape or time_ns.ndim != 2 or time_ns.shape[1] != len(rows):
        raise InputError(f"expected time and energy of shape (S, {len(rows)})")
    for name, values in (("time", time_ns), ("energy", energy_mj)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise InputError(f"a measured {name} must be a positive number")
