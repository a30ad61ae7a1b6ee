"""How each signature of a step responds to the clock, from profiles at clocks that moved.

Every ambient profile holds the same step at other clocks, sensed by probes between its operators.
One response a signature is fitted to all its launches in all profiles (Theil-Sen). The responses
together tell the clock of a step without probes: the one at which they add up to its kernel time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..measure.sensed_fit import ClockResponse, fit_response
from ..measure.sensing import clocks_at
from ..measure.timeline import StepTimeline

__all__ = ["Responses", "fit_responses"]

Floats = npt.NDArray[np.float64]

_MOST_POINTS = 400  # Theil-Sen looks at every pair of points
_HELD_OUT_POINTS = 100  # as many fits again as there are profiles
_LEAST_PROFILES = 3
_MAJOR = 2e-3
_LAUNCH = ["name", "grid", "block", "shared_bytes", "registers"]


@dataclass(frozen=True)
class Responses:
    """Responses of S signatures.

    Attributes:
        each: one a signature.
        count: (S,) launches in a step.
        left_out: profiles whose step was another, a sentence each.
        clocks: clocks that the profiles were sensed at, (low, high) of the middle 98%.
        held_out: how far the step's kernel time in each profile is foretold by the others, relative
            (profile's name to predicted over measured, less one); empty if they are fewer than 3.
    """

    each: tuple[ClockResponse, ...]
    count: Floats
    left_out: tuple[str, ...]
    clocks: tuple[float, float]
    held_out: dict[str, float]

    def durations_ns(self, core_mhz: float) -> Floats:
        """(S,) duration of each at a clock."""
        return np.array([response.at(core_mhz) for response in self.each])

    def sd_ns(self, core_mhz: float) -> Floats:
        """(S,) standard deviation of those."""
        return np.array([response.sd_at(core_mhz) for response in self.each])

    def clock_of(self, busy_ns: float) -> float:
        """The clock at which the step's kernels add up to a time; the nearest end if none does."""
        from scipy.optimize import brentq

        def over(core_mhz: float) -> float:
            return float(self.count @ self.durations_ns(core_mhz)) - busy_ns

        low, high = 0.5 * self.clocks[0], 1.5 * self.clocks[1]
        if over(low) <= 0:
            return low
        return high if over(high) >= 0 else float(brentq(over, low, high, xtol=0.01))

    def held_out_notes(self) -> tuple[str, ...]:
        """What a reader must know of `held_out`, a sentence or none."""
        if not self.held_out:
            return ()
        low, high = min(self.held_out.values()), max(self.held_out.values())
        return (
            f"each profile at other clocks, foretold from the others, came out {low:+.1%} to "
            f"{high:+.1%} of its kernel time: common to all kernels, and in no cell's spread",
        )

    def range_mhz(self) -> tuple[float, float]:
        """Clocks that nearly all of the step's time was seen at."""
        weight = self.count * self.durations_ns(float(np.mean(self.clocks)))
        major = weight >= _MAJOR * weight.sum()
        low = max(r.range_mhz[0] for r, is_major in zip(self.each, major, strict=True) if is_major)
        high = min(r.range_mhz[1] for r, is_major in zip(self.each, major, strict=True) if is_major)
        return max(low, self.clocks[0]), min(high, self.clocks[1])


def fit_responses(
    base: StepTimeline, profiles: Sequence[tuple[str, StepTimeline]]
) -> Responses | None:
    """Fit all signatures of ``base``; None if no profile holds its step with probes.

    Args:
        base: the step.
        profiles: name and timeline of each ambient profile.
    """
    launches = _launches(base)
    used: dict[str, tuple[Floats, Floats]] = {}
    left_out = []
    for name, profile in profiles:
        sensed = clocks_at(profile)
        if sensed is None or _launches(profile) != launches:
            why = "holds no probe" if sensed is None else "launches other kernels"
            left_out.append(f"the profile {name!r} {why}")
            continue
        used[name] = sensed, profile.duration_ns.astype(np.float64)
    if not used:
        return None
    signature = base.kernels["signature"].to_numpy(dtype=np.int64)
    size = len(base.signatures)
    each = _fit_each(list(used.values()), signature, size, _MOST_POINTS)
    low, high = np.nanquantile(np.concatenate([clock for clock, _ in used.values()]), [0.01, 0.99])
    count = np.bincount(signature, minlength=size).astype(np.float64)
    return Responses(
        each, count, tuple(left_out), (float(low), float(high)), _held_out(used, signature, size)
    )


def _fit_each(
    profiles: Sequence[tuple[Floats, Floats]],
    signature: npt.NDArray[np.int64],
    size: int,
    most: int,
) -> tuple[ClockResponse, ...]:
    """A response a signature, from (R, K) clocks and durations of each profile."""
    clock = np.concatenate([clock for clock, _ in profiles])
    duration = np.concatenate([duration for _, duration in profiles])
    rng = np.random.default_rng(0)
    each = []
    for number in range(size):
        mine = signature == number
        x, y = clock[:, mine].ravel(), duration[:, mine].ravel()
        if len(x) > most:
            some = rng.choice(len(x), most, replace=False)
            x, y = x[some], y[some]
        each.append(fit_response(x, y))
    return tuple(each)


def _held_out(
    used: dict[str, tuple[Floats, Floats]], signature: npt.NDArray[np.int64], size: int
) -> dict[str, float]:
    """Each profile foretold from the others: what slopes' intervals cannot know."""
    if len(used) < _LEAST_PROFILES:
        return {}
    errors = {}
    for name, (clock, duration) in used.items():
        others = [profile for other, profile in used.items() if other != name]
        each = _fit_each(others, signature, size, _HELD_OUT_POINTS)
        reference, scale, exponent = (
            np.array([getattr(r, part) for r in each])[signature]
            for part in ("reference_mhz", "scale_ns", "exponent")
        )
        known = np.isfinite(clock).all(axis=1)
        if known.any():
            foretold = scale * (clock[known] / reference) ** exponent
            errors[name] = float(foretold.sum() / duration[known].sum() - 1)
    return errors


def _launches(timeline: StepTimeline) -> list[tuple[object, ...]]:
    """The launches in order; operators are left out, since probing changes their names."""
    rows = [
        tuple(None if pd.isna(value) else value for value in row)
        for row in timeline.signatures[_LAUNCH].astype(object).itertuples(index=False)
    ]
    return [rows[i] for i in timeline.kernels["signature"]]
