"""Re-evaluate a schedule from the problem's own tables, with none of the solver's code.

Sums are `math.fsum`: exact, rounded once. A schedule is within the budget if that rounded sum is
at most the budget, so the baseline's own schedule, summed the same way, always meets budget 0.
Under lag the requests are played: each kernel's pair follows from them and is not believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import NDArray

from .problem import Problem
from .switch_model import ConstantStall, Lag, MatrixStall, TwoPartStall

__all__ = ["LAG_SLACK_NS", "Evaluation", "evaluate", "play_requests"]

# Elapsed times are sums of doubles: a kernel that starts within a picosecond of the latency counts
# as starting after it, so that equality in whole nanoseconds does not hang on the last bit.
LAG_SLACK_NS = 1e-3


@dataclass(frozen=True)
class Evaluation:
    """What a schedule takes: ns and mJ, exact sums, and its changes of pair."""

    time_ns: float
    energy_mj: float
    n_switches: int


def evaluate(problem: Problem, choice: NDArray[np.int32]) -> Evaluation:
    """Time and energy of one step with item k at pair ``choice[k]``; under lag, without requests.

    Raises:
        ValueError: a choice is missing, outside the pairs, not allowed, or switches where the
            problem has no boundary. The solver made a mistake; it is not bad input.
    """
    choice = np.asarray(choice)
    if choice.shape != (problem.n_items,):
        raise ValueError(f"a schedule needs {problem.n_items} choices, got {choice.shape}")
    if choice.min() < 0 or choice.max() >= problem.n_pairs:
        raise ValueError("a schedule chooses a pair that does not exist")
    assert problem.allowed is not None
    if not problem.allowed[choice].all():
        raise ValueError("a schedule chooses a pair that is not allowed")
    before = np.roll(choice, 1)
    if not problem.cyclic:
        before[0] = choice[0]
    changed = np.flatnonzero(before != choice)
    lag = isinstance(problem.switch, Lag)
    if problem.boundary is not None and not lag and not problem.boundary[changed].all():
        raise ValueError("a schedule switches where the problem has no boundary")

    row = problem.row
    times = problem.time_ns[row, choice]
    energies = problem.energy_mj[row, choice]
    if problem.time_scale is not None:
        times = problem.time_scale * times
    if problem.energy_scale is not None:
        energies = problem.energy_scale * energies
    time_terms = times.tolist()
    energy_terms = energies.tolist()
    if problem.gap_ns is not None and problem.idle_power_w is not None:
        time_terms += problem.gap_ns.tolist()
        # 1 W for 1 ns is 1 nJ, that is 1e-6 mJ.
        energy_terms += (problem.gap_ns * problem.idle_power_w[before] * 1e-6).tolist()
    for k in changed:
        stall_ns, stall_mj = _stall(problem, int(before[k]), int(choice[k]))
        time_terms.append(stall_ns)
        energy_terms.append(stall_mj)
    return Evaluation(fsum(time_terms), fsum(energy_terms), len(changed))


def _stall(problem: Problem, old: int, new: int) -> tuple[float, float]:
    switch = problem.switch
    if isinstance(switch, ConstantStall):
        return switch.time_ns, switch.energy_mj
    if isinstance(switch, TwoPartStall):
        a, b = problem.pairs[old], problem.pairs[new]
        core, mem = a.core_mhz != b.core_mhz, a.mem_mhz != b.mem_mhz
        return (
            core * switch.core_time_ns + mem * switch.mem_time_ns,
            core * switch.core_energy_mj + mem * switch.mem_energy_mj,
        )
    if isinstance(switch, MatrixStall):
        return float(switch.time_ns[old, new]), float(switch.energy_mj[old, new])
    return 0.0, 0.0


def play_requests(
    problem: Problem,
    first_pair: int,
    request_item: NDArray[np.int32],
    request_pair: NDArray[np.int32],
) -> NDArray[np.int32]:
    """The pair each item runs at under lag, (K,) int32.

    Args:
        problem: one whose switch model is `Lag`.
        first_pair: the pair in effect at item 0 of a step without requests, or of one that does
            not repeat; otherwise the last request's pair is in effect when the first is issued.
        request_item: (M,) items at whose start a request is issued, ascending.
        request_pair: (M,) the pairs asked for.

    Raises:
        ValueError: a request is issued off a boundary, while another is in flight, within the
            dwell of another, or for the pair already in effect.
    """
    switch = problem.switch
    assert isinstance(switch, Lag)
    n = problem.n_items
    choice = np.full(n, first_pair, dtype=np.int32)
    if len(request_item) == 0:
        return choice
    asked = dict(zip(request_item.tolist(), request_pair.tolist(), strict=True))
    if len(asked) != len(request_item) or list(asked) != sorted(asked):
        raise ValueError("requests must be ascending, one an item")
    if problem.boundary is not None and not problem.boundary[request_item].all():
        raise ValueError("a request is issued where the problem has no boundary")
    start = int(request_item[0]) if problem.cyclic else 0
    now = int(request_pair[-1]) if problem.cyclic else first_pair
    flight: int | None = None
    since: list[float] | None = None  # durations since the last request
    wait = 0.0
    # The wrap-around is checked too: the walk ends at the first request, asked once more.
    stops = [(start + i) % n for i in range(n)] + ([start] if problem.cyclic else [])
    for i, k in enumerate(stops):
        elapsed = None if since is None else fsum(since)
        if flight is not None and elapsed is not None and elapsed >= wait - LAG_SLACK_NS:
            now, flight = flight, None
        if k in asked:
            if flight is not None:
                raise ValueError(f"request at item {k} while another is in flight")
            if elapsed is not None and elapsed < switch.min_dwell_ns - LAG_SLACK_NS:
                raise ValueError(f"request at item {k} within the dwell of another")
            if asked[k] == now:
                raise ValueError(f"request at item {k} for the pair already in effect")
            if i == n:
                break
            flight, since = asked[k], []
            latency = switch.latency_ns
            wait = latency if isinstance(latency, float) else float(latency[now, flight])
            if wait <= LAG_SLACK_NS:
                now, flight = flight, None
        choice[k] = now
        if since is not None:
            since.append(_duration_ns(problem, k, now))
    return choice


def _duration_ns(problem: Problem, k: int, pair: int) -> float:
    """Item k at a pair, with the gap that follows it."""
    scale = 1.0 if problem.time_scale is None else float(problem.time_scale[k])
    after = (k + 1) % problem.n_items
    gap = 0.0
    if problem.gap_ns is not None and (after or problem.cyclic):
        gap = float(problem.gap_ns[after])
    return scale * float(problem.time_ns[problem.row[k], pair]) + gap
