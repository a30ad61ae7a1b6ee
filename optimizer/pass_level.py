"""One pair a phase: the best of all combinations, switches between phases included.

The phases' times and energies are sums over their kernels. Pairs that cannot be in a better
combination than one in hand are dropped (Lagrangian bound, switches only add), and all
combinations of the rest are tried. Under lag each change is requested just early enough to be there
by its phase's first kernel, and combinations are tried in the order of their energy without lag,
after which come single pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from .certificate import LAG_SLACK_NS, play_requests
from .from_trace import Step
from .incumbent import Requests
from .noise_estimate import slowdown_limit
from .plan import played_cost
from .problem import Problem
from .scatter import LatencySpread, play_scattered
from .switch_model import ConstantStall, Lag, MatrixStall, TwoPartStall

__all__ = ["ByPhase", "best_by_phase"]

Array = NDArray[np.float64]
_MOST_COMBINATIONS = 5_000_000
_PLAYED, _PLAYED_UNDER_LAG = 40, 400
_SCATTERED = 60


@dataclass(frozen=True, eq=False)
class ByPhase:
    """One pair a phase.

    Attributes:
        pair_of_phase: index of each phase's pair.
        choice: (K,) the pair each item runs at.
        requests: (M,) items and pairs of the requests under lag; None otherwise.
        cost: ns and mJ of the step; means over scattering latencies where their spread is known.
        note: what limits the claim.
    """

    pair_of_phase: dict[str, int]
    choice: NDArray[np.int32]
    requests: Requests | None
    cost: tuple[float, float]
    note: str


@dataclass(frozen=True, eq=False)
class _Sums:
    """(P, F) ns and mJ of each phase, ns of gaps, and (P, P) how often one follows another."""

    time_ns: Array
    energy_mj: Array
    gap_ns: float
    follows: Array


def best_by_phase(
    step: Step,
    phases: NDArray[np.object_],
    budget: float,
    spread: LatencySpread | None = None,
    confidence: float | None = None,
) -> ByPhase | None:
    """The best single pair for each phase within the budget; None if there is none.

    Args:
        step: the step.
        phases: (K,) the phase of each item.
        budget: slowdown allowed, a fraction.
        spread: how latencies scatter under lag; costs are then means over it.
        confidence: of meeting the budget given the noise of the cells; None for their means.
    """
    names, index = np.unique(phases.astype(str), return_inverse=True)
    sums = _sum_phases(step, index, len(names))
    limit_ns = step.problem.budget_time_ns(budget)
    assert step.problem.allowed is not None
    kept, complete = _candidates(sums, step.problem.allowed, limit_ns)
    note = "" if complete else "the best of the likeliest combinations; not all were tried"
    if isinstance(step.problem.switch, Lag):
        note = "requests a latency before each phase"
    single = [np.full(len(names), pair) for pair in _cheapest_first(sums, step.problem.allowed)]
    most = _PLAYED_UNDER_LAG if isinstance(step.problem.switch, Lag) else _PLAYED
    for combination in chain(_ranked(step, sums, kept, limit_ns, most), single):
        choice = combination[index].astype(np.int32)
        made = _played(step, choice)
        if made is None:
            continue
        cost = _cost(step, *made, spread, limit_ns)
        if cost[0] + _margin_ns(step, made[0], confidence) <= limit_ns:
            pairs = {name: int(pair) for name, pair in zip(names, combination, strict=True)}
            return ByPhase(pairs, *made, cost, note)
    return None


def _margin_ns(step: Step, choice: NDArray[np.int32], confidence: float | None) -> float:
    """What the noise of a choice's cells may add to its time, at a confidence."""
    if confidence is None or step.sd is None:
        return 0.0
    base_ns = step.problem.baseline_time_ns
    central = played_cost(step, choice)[0] / base_ns - 1
    return max(0.0, slowdown_limit(step, choice, confidence) - central) * base_ns


def _played(
    step: Step, choice: NDArray[np.int32]
) -> tuple[NDArray[np.int32], Requests | None] | None:
    """What a choice becomes, and its requests: under lag they are made in good time.

    None where a phase is shorter than the latency or the dwell.
    """
    switch = step.problem.switch
    if not isinstance(switch, Lag):
        return choice, None
    problem = replace(step.problem, boundary=None)
    requests = _requests(problem, switch, choice)
    try:
        return play_requests(problem, int(choice[0]), *requests), requests
    except ValueError:
        return None


def _cost(
    step: Step,
    choice: NDArray[np.int32],
    requests: Requests | None,
    spread: LatencySpread | None,
    limit_ns: float,
) -> tuple[float, float]:
    """Exact cost of a choice; its mean where latencies scatter and it is within the limit."""
    cost = played_cost(step, choice)
    if requests is None or spread is None or step.relaxed is not None or cost[0] > limit_ns:
        return cost
    problem = replace(step.problem, boundary=None)
    scatter = play_scattered(problem, choice, requests, spread, samples=_SCATTERED)
    return scatter.time_ns, scatter.energy_mj


def _requests(
    problem: Problem, switch: Lag, choice: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Items and pairs of the requests: each at the last item that is a latency before its change.

    In a step that does not repeat a request is made at the first item at the earliest.
    """
    before = np.roll(choice, 1)
    if not problem.cyclic:
        before[0] = choice[0]
    changes = np.flatnonzero(before != choice)
    takes = problem.time_ns[problem.row, choice]
    if problem.time_scale is not None:
        takes = takes * problem.time_scale
    if problem.gap_ns is not None:
        takes = takes + np.append(problem.gap_ns[1:], problem.gap_ns[0])
    starts = np.concatenate([[0.0], np.cumsum(takes)[:-1]])
    latency = np.asarray(switch.latency_ns)
    lead = latency[before[changes], choice[changes]] if latency.ndim else latency
    # The step before is a copy: a negative place lies in it.
    line = np.concatenate([starts - takes.sum(), starts]) if problem.cyclic else starts
    place = np.searchsorted(line, starts[changes] - lead + LAG_SLACK_NS, side="right") - 1
    items = np.maximum(place, 0) % problem.n_items
    order = np.argsort(items, kind="stable")
    return items[order].astype(np.int32), choice[changes][order]


def _sum_phases(step: Step, index: NDArray[np.intp], size: int) -> _Sums:
    problem = step.problem
    n_pairs, gap_ns = problem.n_pairs, 0.0
    time_ns, energy_mj = np.zeros((size, n_pairs)), np.zeros((size, n_pairs))
    rows = len(problem.time_ns)
    for phase in range(size):
        mine = index == phase
        scales = [
            None if scale is None else scale[mine]
            for scale in (problem.time_scale, problem.energy_scale)
        ]
        time_ns[phase] = np.bincount(problem.row[mine], scales[0], rows) @ problem.time_ns
        energy_mj[phase] = np.bincount(problem.row[mine], scales[1], rows) @ problem.energy_mj
        if problem.gap_ns is not None and problem.idle_power_w is not None:
            # The gap before an item is spent at the pair of the item before it.
            held = float(problem.gap_ns[np.roll(mine, 1)].sum())
            energy_mj[phase] += held * problem.idle_power_w * 1e-6
            gap_ns += held
    follows = np.zeros((size, size))
    np.add.at(follows, (index[:-1], index[1:]), 1.0)
    if problem.cyclic:
        follows[index[-1], index[0]] += 1.0
    return _Sums(time_ns, energy_mj, gap_ns, follows)


def _candidates(
    sums: _Sums, allowed: NDArray[np.bool_], limit_ns: float
) -> tuple[list[NDArray[np.intp]], bool]:
    """For each phase the pairs worth trying, and whether all that could be best are among them."""
    room = limit_ns - sums.gap_ns
    fits = (sums.time_ns.sum(axis=0) <= room) & allowed
    single = sums.energy_mj.sum(axis=0)[fits].min() if fits.any() else np.inf
    choosable = np.flatnonzero(allowed)
    time_ns, energy_mj = sums.time_ns[:, choosable], sums.energy_mj[:, choosable]
    best, reduced = -np.inf, energy_mj - energy_mj.min(axis=1, keepdims=True)
    incumbent = float(single)
    scale = energy_mj.mean() / max(time_ns.mean(), 1e-300)
    for multiplier in scale * np.concatenate([[0.0], np.logspace(-4, 3, 60)]):
        cost = energy_mj + multiplier * time_ns
        bound = float(cost.min(axis=1).sum() - multiplier * room)
        if bound > best:
            best, reduced = bound, cost - cost.min(axis=1, keepdims=True)
    # A pair whose bound is over the best in hand is in no better combination.
    kept = [choosable[best + row <= incumbent * (1 + 1e-12)] for row in reduced]
    kept = [
        rows if rows.size else choosable[[int(np.argmin(row))]]
        for rows, row in zip(kept, reduced, strict=True)
    ]
    complete = bool(np.prod([float(rows.size) for rows in kept]) <= _MOST_COMBINATIONS)
    if not complete:
        most = int(_MOST_COMBINATIONS ** (1 / len(kept)))
        kept = [
            rows[np.argsort(row[np.searchsorted(choosable, rows)], kind="stable")[:most]]
            for rows, row in zip(kept, reduced, strict=True)
        ]
    return kept, complete


def _cheapest_first(sums: _Sums, allowed: NDArray[np.bool_]) -> NDArray[np.intp]:
    pairs = np.flatnonzero(allowed)
    return pairs[np.argsort(sums.energy_mj.sum(axis=0)[pairs], kind="stable")]


def _ranked(
    step: Step, sums: _Sums, kept: list[NDArray[np.intp]], limit_ns: float, most: int
) -> Iterator[NDArray[np.intp]]:
    """Combinations (P,) within the budget, least energy first, a limited number of them."""
    last = kept[-1]
    stall_ns, stall_mj = _stall_tables(step)
    found: list[tuple[float, tuple[int, ...]]] = []
    # One axis is an array; the others are looped over, so that memory stays small.
    shape = [rows.size for rows in kept[:-1]]
    for flat in range(int(np.prod(shape, dtype=np.int64)) if shape else 1):
        places = np.unravel_index(flat, shape) if shape else ()
        head = [int(rows[place]) for rows, place in zip(kept[:-1], places, strict=True)]
        combination = [*[np.full(last.size, pair) for pair in head], last]
        time_ns, energy_mj = np.full(last.size, sums.gap_ns), np.zeros(last.size)
        for phase, pairs in enumerate(combination):
            time_ns = time_ns + sums.time_ns[phase, pairs]
            energy_mj = energy_mj + sums.energy_mj[phase, pairs]
        for a, b in np.argwhere(sums.follows > 0):
            if a != b and stall_ns is not None and stall_mj is not None:
                time_ns = time_ns + sums.follows[a, b] * stall_ns[combination[a], combination[b]]
                energy_mj = (
                    energy_mj + sums.follows[a, b] * stall_mj[combination[a], combination[b]]
                )
        slack = 1.0 if step.relaxed is not None else 1e-9  # overlapped kernels may hide more
        within = np.flatnonzero(time_ns <= limit_ns * (1 + slack))
        found += [(float(energy_mj[i]), (*head, int(last[i]))) for i in within]
        if len(found) > 4 * most:
            found = sorted(found)[:most]
    for _, combination_found in sorted(found)[:most]:
        yield np.array(combination_found, dtype=np.intp)


def _stall_tables(step: Step) -> tuple[Array | None, Array | None]:
    """(F, F) ns and mJ of a switch, None where it costs nothing at once."""
    switch, pairs = step.problem.switch, step.problem.pairs
    if isinstance(switch, MatrixStall):
        return switch.time_ns, switch.energy_mj
    core = np.array([pair.core_mhz or 0 for pair in pairs])
    mem = np.array([pair.mem_mhz or 0 for pair in pairs])
    other_core, other_mem = core[:, None] != core, mem[:, None] != mem
    if isinstance(switch, ConstantStall):
        other = other_core | other_mem
        return other * switch.time_ns, other * switch.energy_mj
    if isinstance(switch, TwoPartStall):
        return (
            other_core * switch.core_time_ns + other_mem * switch.mem_time_ns,
            other_core * switch.core_energy_mj + other_mem * switch.mem_energy_mj,
        )
    return None, None
