"""Other ways to choose clocks, beside the solver, on the same instances in the same process.

* The plain integer program through CP-SAT, HiGHS and SCIP, on an instance they can attempt.
* Greedy: each kernel takes its cheapest pair among those that keep its own time within the budget,
  blind to switches, as per-kernel tuners do.
* A time-quantised frontier: durations are floored to a whole number of 1 ms, as frontier methods
  for pipeline stages do, and the cheapest schedule over whole units is found exactly.

Every schedule is costed by the exact sums of the certificate, switches included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from instances import make_problem
from numpy.typing import NDArray

from clockwright.data.errors import InfeasibleError
from clockwright.optimizer import Free, Problem, TwoPartStall, solve
from clockwright.optimizer.certificate import evaluate

__all__ = ["compare_peers", "peers_markdown"]

_BUDGET = 0.006
_SWITCH = TwoPartStall(2e3, 5e3)


def compare_peers(limit_s: float) -> list[dict[str, Any]]:
    """All peers: integer programs on a small instance, heuristics on a whole step.

    Args:
        limit_s: wall time of each integer program.
    """
    rows: list[dict[str, Any]] = []
    small = make_problem(100, 10, _SWITCH, seed=0)
    rows += _against_programs(small, "100 x 10", limit_s)
    whole = make_problem(3_000, 200, _SWITCH, seed=0)
    rows += _against_heuristics(whole, "3,000 x 200")
    return rows


def _against_programs(problem: Problem, name: str, limit_s: float) -> list[dict[str, Any]]:
    rows = [_solved(problem, name, "clockwright", "auto", limit_s)]
    for backend in ("cpsat", "highs", "scip"):
        label = f"full ILP, {backend}"
        rows.append(_solved(problem, name, label, f"full-ilp-{backend}", limit_s))
    return _with_ratios(rows)


def _solved(problem: Problem, name: str, way: str, method: Any, limit_s: float) -> dict[str, Any]:
    begin = time.perf_counter()
    row: dict[str, Any] = {"instance": name, "way": way}
    try:
        found = solve(problem, _BUDGET, time_limit_s=limit_s, tolerance=1e-6, method=method)
    except InfeasibleError:
        # Nothing believable within the limit, or a schedule that the exact sums refused.
        return row | {"seconds": time.perf_counter() - begin, "gap": None, "energy_mj": None}
    return row | {
        "seconds": time.perf_counter() - begin,
        "gap": found.gap,
        "energy_mj": found.energy_mj,
        "lower_bound_mj": found.lower_bound_mj,
        "slowdown": found.slowdown,
        "saving": found.saving,
        "within_budget": found.time_ns <= problem.budget_time_ns(_BUDGET),
    }


def _against_heuristics(problem: Problem, name: str) -> list[dict[str, Any]]:
    rows = [_solved(problem, name, "clockwright", "auto", 30.0)]
    ways: tuple[tuple[str, Callable[[Problem], NDArray[np.int32]]], ...] = (
        ("greedy, kernel by kernel", greedy),
        ("frontier on floored 1 ms", lambda p: quantised(p, 1e6)),
        ("frontier on floored 1 us", lambda p: quantised(p, 1e3)),
    )
    for way, choose in ways:
        begin = time.perf_counter()
        choice = choose(problem)
        seconds = time.perf_counter() - begin
        cost = evaluate(problem, choice)
        unswitched = evaluate(replace(problem, switch=Free()), choice)
        rows.append(
            {
                "instance": name,
                "way": way,
                "seconds": seconds,
                "energy_mj": cost.energy_mj,
                "slowdown": cost.time_ns / problem.baseline_time_ns - 1,
                # What the way's own arithmetic is to blame for, its blindness to switches left out.
                "slowdown_without_switches": unswitched.time_ns / problem.baseline_time_ns - 1,
                "saving": 1 - cost.energy_mj / problem.baseline_energy_mj,
                "within_budget": cost.time_ns <= problem.budget_time_ns(_BUDGET),
                "gap": None,
            }
        )
    return _with_ratios(rows)


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seconds and energy against the first row's; distance from its bound as the gap."""
    ours = rows[0]
    for row in rows:
        row["time_ratio"] = row["seconds"] / ours["seconds"]
        if row["energy_mj"] is not None:
            row["energy_ratio"] = row["energy_mj"] / ours["energy_mj"]
            row["above_bound"] = row["energy_mj"] / ours["lower_bound_mj"] - 1
    return rows


def greedy(problem: Problem) -> NDArray[np.int32]:
    """Each kernel's cheapest pair within the budget of its own time at the baseline's pair."""
    base = problem.pairs.index(problem.baseline_pair)
    limit_ns = problem.time_ns[:, base] * (1 + _BUDGET)
    energy = np.where(problem.time_ns <= limit_ns[:, None], problem.energy_mj, np.inf)
    return np.argmin(energy, axis=1)[problem.row].astype(np.int32)


def quantised(problem: Problem, unit_ns: float) -> NDArray[np.int32]:
    """The cheapest schedule where every duration counts as its whole units, rounded down."""
    units = np.floor(problem.time_ns / unit_ns).astype(np.int64)
    base = problem.pairs.index(problem.baseline_pair)
    # The budget is measured as the durations are.
    budget = int(units[problem.row, base].sum() * (1 + _BUDGET))
    options = [_options(row, energy) for row, energy in zip(units, problem.energy_mj, strict=True)]
    floor = sum(int(options[r][0][0]) for r in problem.row)
    room = max(0, budget - floor)
    value = np.zeros(room + 1)  # least mJ with at most so many units over the fastest
    picked = np.empty((problem.n_items, room + 1), dtype=np.int16)
    for k, r in enumerate(problem.row):
        need, energy, pairs = options[r]
        best = np.full(room + 1, np.inf)
        for u, e, f in zip(need - need[0], energy, pairs, strict=True):
            if u > room:
                break
            with_it = np.full(room + 1, np.inf)
            with_it[u:] = value[: room + 1 - u] + e
            better = with_it < best
            best[better] = with_it[better]
            picked[k, better] = f
        value = best
    choice, left = np.empty(problem.n_items, dtype=np.int32), room
    for k in range(problem.n_items - 1, -1, -1):
        r = problem.row[k]
        choice[k] = picked[k, left]
        left -= int(units[r, choice[k]] - options[r][0][0])
    return choice


def _options(
    units: NDArray[np.int64], energy: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """A signature's choices worth having: units rising, energy falling."""
    order = np.lexsort((energy, units))
    keep = []
    low = np.inf
    for f in order.tolist():
        if energy[f] < low:
            low = energy[f]
            keep.append(f)
    kept = np.array(keep)
    return units[kept], energy[kept], kept


def peers_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The peers as a table."""
    lines = [
        "| kernels x pairs | way | wall s | time against clockwright | own gap | slowdown "
        "| of it not by switches | within 0.6% | saving | energy above the certified bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = (
            f"| {row['instance']} | {row['way']} | {row['seconds']:.2f} | {row['time_ratio']:.1f}x "
        )
        if row["energy_mj"] is None:
            lines.append(head + "| no schedule within the budget | | | | | |")
            continue
        gap = "none proven" if row["gap"] is None else f"{row['gap']:.1e}"
        alone = row.get("slowdown_without_switches")
        within = row["within_budget"]
        lines.append(
            head + f"| {gap} | {row['slowdown']:.2%} | {'' if alone is None else f'{alone:.2%}'} "
            f"| {'yes' if within else 'no'} | {row['saving']:.2%} "
            f"| {format(row['above_bound'], '.1e') if within else 'over budget'} |"
        )
    return "\n".join(lines)
