"""Many curves of one law fitted together: each has parameters of its own, all share some.

A law gives the logarithm of a value (time, power) at each clock pair from a curve's own parameters
and the shared ones. The most probable parameters under Gaussian priors and Student's noise are
found by damped Gauss-Newton steps. The normal equations are an arrow (a block a curve, a border of
shared parameters), so a step costs as much as its curves do one by one. How sure the values are
comes from the curvature there (Laplace's approximation).

Sources: Nocedal and Wright, Numerical Optimization (2006), section 10.3 (Levenberg-Marquardt);
Triggs et al., Bundle Adjustment (2000), section 6 (arrow, Schur complement); Lange, Little, Taylor,
JASA 84 (1989) (Student's errors by weights); MacKay, Neural Computation 4 (1992) (Laplace).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Curvature", "JointFit", "Law", "Prior", "fit_jointly"]

Floats = npt.NDArray[np.float64]

_FREEDOM = 8.0  # Student's degrees of freedom
_ALONE_STEPS, _JOINT_STEPS = 25, 80
_SETTLED = 1e-5  # relative fall of the objective
_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Prior:
    """Mean and standard deviation of each parameter, independent normals."""

    mean: Floats
    sd: Floats


class Law(Protocol):
    """Log values at pairs from parameters."""

    own: Prior
    shared: Prior
    starts: list[Floats]
    """Own parameters, (P,) each, to start a curve from; its best is kept."""

    def values(self, own: Floats, shared: Floats, rows: npt.NDArray[np.int64]) -> Floats:
        """(S, R) log values of S curves with ``own`` (S, P) and ``shared`` (G,) at R pairs."""
        ...


@dataclass(frozen=True)
class Curvature:
    """Slopes of the log values at all F pairs and the information that the measured ones hold.

    Attributes:
        own_slope: (S, F, P).
        shared_slope: (S, F, G).
        own: (S, P, P) information on own parameters, prior and data.
        cross: (S, P, G).
        shared: (G, G).
    """

    own_slope: Floats
    shared_slope: Floats
    own: Floats
    cross: Floats
    shared: Floats

    def with_pair(self, row: int, noise: float) -> Curvature:
        """The information once the pair ``row`` is measured too."""
        a, b = self.own_slope[:, row] / noise, self.shared_slope[:, row] / noise
        return replace(
            self,
            own=self.own + a[:, :, None] * a[:, None, :],
            cross=self.cross + a[:, :, None] * b[:, None, :],
            shared=self.shared + b.T @ b,
        )

    def variance(self) -> Floats:
        """(S, F) variance of each log value."""
        solved = np.linalg.solve(self.own, self.cross)
        left = self.shared - np.einsum("spg,sph->gh", self.cross, solved)
        slope = np.linalg.solve(self.own, self.own_slope.transpose(0, 2, 1))
        alone: Floats = np.einsum("sfp,spf->sf", self.own_slope, slope)
        rest = self.shared_slope - np.einsum("sfp,spg->sfg", self.own_slope, solved)
        root = np.linalg.solve(np.linalg.cholesky(left), rest.reshape(-1, len(left)).T)
        return np.asarray(alone + (root**2).sum(axis=0).reshape(alone.shape))

    def only(self, rows: npt.NDArray[np.int64] | int) -> Curvature:
        """The values at some pairs only; the information stays."""
        at = np.atleast_1d(rows)
        return replace(self, own_slope=self.own_slope[:, at], shared_slope=self.shared_slope[:, at])


@dataclass(frozen=True)
class JointFit:
    """The most probable parameters: ``own`` (S, P) and ``shared`` (G,)."""

    own: Floats
    shared: Floats


def fit_jointly(
    law: Law,
    log_values: Floats,
    rows: npt.NDArray[np.int64],
    noise: float,
    *,
    begin: JointFit | None = None,
) -> JointFit:
    """Fit a law to S curves.

    Args:
        law: the law.
        log_values: (S, M).
        rows: M pairs.
        noise: standard deviation of a log value.
        begin: start from an earlier fit instead.
    """
    problem = _Problem(law, log_values, rows, noise)
    if begin is None:
        shared = law.shared.mean
        tried = [problem.alone(np.tile(s, (len(log_values), 1)), shared) for s in law.starts]
        best = np.argmin([cost for _, cost in tried], axis=0)
        own = np.stack([own for own, _ in tried])[best, np.arange(len(log_values))]
        begin = JointFit(own, shared)
    return problem.together(begin)


def curvature(
    law: Law,
    fit: JointFit,
    log_values: Floats,
    rows: npt.NDArray[np.int64],
    noise: float,
    *,
    pairs: int,
) -> Curvature:
    """The curvature at a fit of (S, M) values at ``rows`` of so many ``pairs``."""
    own_slope, shared_slope = _slopes(law, fit.own, fit.shared, np.arange(pairs))
    a, b = own_slope[:, rows] / noise, shared_slope[:, rows] / noise
    gap = (law.values(fit.own, fit.shared, rows) - log_values) / noise
    return Curvature(own_slope, shared_slope, *_information(law, a, b, _weight(gap)))


def _slopes(
    law: Law, own: Floats, shared: Floats, rows: npt.NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """(S, R, P) and (S, R, G) by central differences."""

    def columns(parameters: Floats, value: Callable[[Floats], Floats]) -> Floats:
        steps = _DIFFERENCE * np.eye(parameters.shape[-1])
        found = [value(parameters + step) - value(parameters - step) for step in steps]
        return np.stack(found, axis=-1) / (2 * _DIFFERENCE)

    return (
        columns(own, lambda p: law.values(p, shared, rows)),
        columns(shared, lambda g: law.values(own, g, rows)),
    )


def _weight(gap: Floats) -> Floats:
    return 1.0 / (1.0 + gap**2 / _FREEDOM)


def _information(law: Law, a: Floats, b: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    weighted = a * weight[:, :, None]
    own = np.einsum("smp,smq->spq", weighted, a) + np.diag(law.own.sd**-2)
    cross = np.einsum("smp,smg->spg", weighted, b)
    shared = np.einsum("smg,smh->gh", b * weight[:, :, None], b) + np.diag(law.shared.sd**-2)
    return own, cross, shared


class _Problem:
    """One objective: its value, its slopes, and steps downhill."""

    def __init__(
        self, law: Law, log_values: Floats, rows: npt.NDArray[np.int64], noise: float
    ) -> None:
        self.law, self.values, self.rows, self.noise = law, log_values, rows, noise

    def gap(self, own: Floats, shared: Floats) -> Floats:
        return (self.law.values(own, shared, self.rows) - self.values) / self.noise

    def cost(self, own: Floats, shared: Floats) -> Floats:
        """(S,) of each curve, without the shared parameters' prior."""
        told = 0.5 * _FREEDOM * np.log1p(self.gap(own, shared) ** 2 / _FREEDOM)
        prior = 0.5 * ((own - self.law.own.mean) / self.law.own.sd) ** 2
        return np.asarray(told.sum(axis=1) + prior.sum(axis=1), dtype=np.float64)

    def total(self, own: Floats, shared: Floats) -> float:
        prior = 0.5 * ((shared - self.law.shared.mean) / self.law.shared.sd) ** 2
        return float(self.cost(own, shared).sum() + prior.sum())

    def _equations(self, own: Floats, shared: Floats) -> tuple[Floats, ...]:
        found = _slopes(self.law, own, shared, self.rows)
        a, b = (slope / self.noise for slope in found)
        gap = self.gap(own, shared)
        weight = _weight(gap)
        pull_own = np.einsum("smp,sm->sp", a, weight * gap)
        pull_own += (own - self.law.own.mean) / self.law.own.sd**2
        pull_shared = np.einsum("smg,sm->g", b, weight * gap)
        pull_shared += (shared - self.law.shared.mean) / self.law.shared.sd**2
        return (*_information(self.law, a, b, weight), pull_own, pull_shared)

    def alone(self, own: Floats, shared: Floats) -> tuple[Floats, Floats]:
        """Each curve by itself, shared parameters fixed: own parameters and costs."""
        damping = np.full(len(own), 1e-2)
        cost = self.cost(own, shared)
        for _ in range(_ALONE_STEPS):
            block, _, _, pull, _ = self._equations(own, shared)
            damped = block + damping[:, None, None] * _diagonal(block)
            tried = own - np.linalg.solve(damped, pull[:, :, None])[:, :, 0]
            now = self.cost(tried, shared)
            better = now < cost
            own = np.where(better[:, None], tried, own)
            cost = np.where(better, now, cost)
            damping = np.clip(np.where(better, damping / 4, damping * 4), 1e-9, 1e6)
        return own, cost

    def together(self, begin: JointFit) -> JointFit:
        """All curves and the shared parameters."""
        own, shared, damping = begin.own, begin.shared, 1e-2
        cost = self.total(own, shared)
        for _ in range(_JOINT_STEPS):
            block, cross, border, pull, pull_shared = self._equations(own, shared)
            while damping < 1e8:
                damped = block + damping * _diagonal(block)
                solved = np.linalg.solve(damped, np.concatenate([cross, pull[:, :, None]], axis=2))
                left = border + damping * np.diag(np.diag(border))
                left = left - np.einsum("spg,sph->gh", cross, solved[:, :, :-1])
                right = pull_shared - np.einsum("spg,sp->g", cross, solved[:, :, -1])
                move = np.linalg.solve(left, right)
                tried = own - (solved[:, :, -1] - solved[:, :, :-1] @ move)
                now = self.total(tried, shared - move)
                if now < cost:
                    break
                damping *= 4
            else:
                break
            fell, own, shared, cost = cost - now, tried, shared - move, now
            damping = max(damping / 4, 1e-9)
            if fell < _SETTLED * abs(cost):
                break
        return JointFit(own, shared)


def _diagonal(block: Floats) -> Floats:
    return np.asarray(np.einsum("spp->sp", block)[:, :, None] * np.eye(block.shape[1]))
