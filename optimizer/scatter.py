"""What a lag schedule takes when latencies scatter: played many times, kernels cut in the middle.

The solver plans with one latency for each transition, and lets clocks change between kernels. A
real request arrives earlier or later than planned, in the middle of a kernel; where the clock it
ends was a low one, every late millisecond is paid several times over. So the schedule's requests
are played with latencies drawn from the switch table's quantiles, kernel time running on at
whatever pair is in effect, and the mean of what that adds belongs to the prediction and the budget.
`with_lead` keeps it small.

Left out: streams that overlap (their makespan is not a sum), and requests that a busy keeper drops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data.tables import LATENCY_PERCENTILES
from .certificate import evaluate
from .problem import Problem
from .switch_model import Lag

__all__ = ["LatencySpread", "Scatter", "play_scattered", "spread_of_table", "with_lead"]

Array = NDArray[np.float64]

_LEAD_LEVEL = 0.75


@dataclass(frozen=True)
class LatencySpread:
    """Latencies against their median, by quantile.

    Attributes:
        level: probabilities, ascending.
        ratio: latency over median at each; the median's is 1.
    """

    level: tuple[float, ...]
    ratio: tuple[float, ...]

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """(count,) ratios; beyond the outermost quantiles the outermost ratios stand."""
        return np.interp(rng.random(count), self.level, self.ratio)

    def at(self, level: float) -> float:
        """The ratio at a probability."""
        return float(np.interp(level, self.level, self.ratio))

    def to_json(self) -> dict[str, float]:
        """For the schedule file: quantile to ratio."""
        return {
            f"p{level * 100:g}": ratio for level, ratio in zip(self.level, self.ratio, strict=True)
        }


@dataclass(frozen=True)
class Scatter:
    """What a schedule takes under scattering latencies, and what that is more than planned.

    Attributes:
        time_ns: mean of a step.
        energy_mj: likewise.
        time_sd_ns: standard deviation of one step's time.
        more_ns: mean over the plan's.
        more_mj: likewise.
        samples: steps played.
    """

    time_ns: float
    energy_mj: float
    time_sd_ns: float
    more_ns: float
    more_mj: float
    samples: int

    def to_json(self) -> dict[str, Any]:
        """For the schedule file's ``extra``."""
        return asdict(self)


def spread_of_table(table: pd.DataFrame | None) -> LatencySpread | None:
    """The usual spread of a switch table's transitions; None if it holds medians only."""
    if table is None or table.empty:
        return None
    median = table["latency_ns_p50"].to_numpy(dtype=float, na_value=np.nan)
    levels, ratios = [], []
    for percent in LATENCY_PERCENTILES:
        ratio = table[f"latency_ns_p{percent}"].to_numpy(dtype=float, na_value=np.nan)[median > 0]
        ratio = ratio / median[median > 0]
        if np.isfinite(ratio).any():
            levels.append(percent / 100)
            ratios.append(float(np.nanmedian(ratio)))
    if len(levels) < 2:
        return None
    return LatencySpread(tuple(levels), tuple(np.maximum.accumulate(ratios).tolist()))


def with_lead(problem: Problem, spread: LatencySpread) -> Lag:
    """The switch model to plan with: requests to speed up are made in time for a late arrival.

    To arrive late at a fast pair costs more than to arrive early, since kernels meanwhile run at
    the slow one. So latencies towards a pair at which the step is faster are planned at the upper
    quartile, the others at the median.
    """
    switch = problem.switch
    assert isinstance(switch, Lag)
    size = len(problem.time_ns)
    step_ns = np.bincount(problem.row, problem.time_scale, size) @ problem.time_ns
    faster = step_ns[None, :] < step_ns[:, None]
    latency = np.where(np.eye(len(faster), dtype=bool), 0.0, switch.latency_ns)
    lead = max(1.0, spread.at(_LEAD_LEVEL))
    return Lag(np.where(faster, latency * lead, latency), switch.min_dwell_ns)


def play_scattered(
    problem: Problem,
    choice: NDArray[np.int32],
    requests: tuple[NDArray[np.int32], NDArray[np.int32]],
    spread: LatencySpread,
    *,
    seed: int = 0,
    samples: int = 300,
) -> Scatter:
    """Play a lag schedule's requests with scattering latencies.

    Args:
        problem: one whose switch model is `Lag`.
        choice: (K,) the pair of each item as planned.
        requests: (M,) items at which requests are issued, ascending, and the pairs asked for.
        spread: of the latencies.
        seed: of the draws.
        samples: steps to play.
    """
    switch = problem.switch
    assert isinstance(switch, Lag)
    plan = evaluate(problem, choice)
    if not len(requests[0]):
        return Scatter(plan.time_ns, plan.energy_mj, 0.0, 0.0, 0.0, 0)
    rng = np.random.default_rng(seed)
    tape = _Tape(problem, sorted({*choice.tolist(), *requests[1].tolist()}))
    laps, count = samples + int(problem.cyclic), len(requests[0])
    costs = np.array(
        tape.play(
            int(requests[1][-1] if problem.cyclic else choice[0]),
            requests[0].tolist(),
            requests[1].tolist(),
            spread.draw(rng, laps * count).reshape(laps, count),
            switch,
            cyclic=problem.cyclic,
        )
    )
    if problem.cyclic:
        costs = costs[1:]  # the first lap starts without the last one's requests
    time_ns, energy_mj = (float(mean) for mean in costs.mean(axis=0))
    return Scatter(
        time_ns=time_ns,
        energy_mj=energy_mj,
        time_sd_ns=float(costs[:, 0].std(ddof=1)),
        more_ns=time_ns - plan.time_ns,
        more_mj=energy_mj - plan.energy_mj,
        samples=len(costs),
    )


class _Tape:
    """One step's time and energy as running sums at each pair, to be run along from any place."""

    def __init__(self, problem: Problem, pairs: Sequence[int]) -> None:
        time_ns = problem.time_ns[problem.row][:, pairs]
        energy_mj = problem.energy_mj[problem.row][:, pairs]
        if problem.time_scale is not None:
            time_ns = problem.time_scale[:, None] * time_ns
        if problem.energy_scale is not None:
            energy_mj = problem.energy_scale[:, None] * energy_mj
        if problem.gap_ns is not None and problem.idle_power_w is not None:
            time_ns = time_ns + problem.gap_ns[:, None]
            energy_mj = energy_mj + problem.gap_ns[:, None] * problem.idle_power_w[pairs] * 1e-6
        zero = np.zeros((1, len(pairs)))
        self.time_ns = np.concatenate([zero, np.cumsum(time_ns, axis=0)])
        self.energy_mj = np.concatenate([zero, np.cumsum(energy_mj, axis=0)])
        self.items = np.arange(len(self.time_ns), dtype=np.float64)
        self.column = {pair: place for place, pair in enumerate(pairs)}

    def play(
        self,
        first: int,
        request_item: list[int],
        request_pair: list[int],
        ratio: Array,
        switch: Lag,
        *,
        cyclic: bool,
    ) -> list[tuple[float, float]]:
        """(ns, mJ) of each lap; ``ratio`` is (laps, M) of the median latency."""
        end = float(len(self.items) - 1)
        now, clock = first, 0.0
        flying: deque[tuple[float, int]] = deque()
        costs = []
        for lap in ratio:
            if not cyclic:
                now, clock = first, 0.0
                flying.clear()
            place, begun, energy = 0.0, clock, 0.0
            asks = [*zip(request_item, request_pair, lap.tolist(), strict=True), (end, -1, 0.0)]
            for item, pair, factor in asks:
                while place < item:
                    arrival = flying[0][0] if flying else np.inf
                    stop, clock_at, spent = self._run(now, place, float(item), arrival - clock)
                    clock, place, energy = clock + clock_at, stop, energy + spent
                    if place < item:
                        now = flying.popleft()[1]
                if pair >= 0:
                    asked = flying[-1][1] if flying else now
                    latency = switch.latency_ns
                    wait = latency if isinstance(latency, float) else float(latency[asked, pair])
                    due = clock + wait * factor
                    flying.append((max(due, flying[-1][0]) if flying else due, pair))
                    if due <= clock:
                        now = flying.popleft()[1]
            costs.append((clock - begun, energy))
        return costs

    def _run(
        self, pair: int, place: float, stop: float, most_ns: float
    ) -> tuple[float, float, float]:
        """Run at a pair from a place to ``stop``, or for ``most_ns``: place, ns, mJ."""
        column = self.column[pair]
        time_ns, energy_mj = self.time_ns[:, column], self.energy_mj[:, column]
        begin = float(np.interp(place, self.items, time_ns))
        span = float(np.interp(stop, self.items, time_ns)) - begin
        if span > most_ns:
            span = max(most_ns, 0.0)
            stop = float(np.interp(begin + span, time_ns, self.items))
        spent = float(
            np.interp(stop, self.items, energy_mj) - np.interp(place, self.items, energy_mj)
        )
        return stop, span, spent
