"""From a solution to the schedule file's contents: segments, triggers, anchors, proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._version import __version__
from ..data.schedule import Alternative, Cost, Predicted, Proof, Schedule, Segment
from ..data.sequence import pack, sequence_of
from .from_trace import Step
from .noise_estimate import NoiseResult
from .scatter import Scatter
from .solution import Solution
from .switch_model import Lag, MatrixStall
from .switch_source import SwitchChoice

__all__ = ["make_schedule", "segments_of"]


def make_schedule(
    step: Step,
    solution: Solution,
    budget: float,
    switches: SwitchChoice,
    alternatives: tuple[Alternative, ...] = (),
    *,
    recommendation: str = "schedule",
    noise: NoiseResult | None = None,
    scatter: Scatter | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Schedule:
    """The schedule of a solved step.

    Args:
        step: the step.
        solution: its solution.
        budget: slowdown allowed, a fraction.
        switches: the switch model and where it comes from.
        alternatives: the baselines.
        recommendation: from `baselines.recommend`.
        noise: what the spread of the cells lets one claim; None where there is no spread.
        scatter: what scattering latencies add to it; None where they are not known to.
        extra: more for the file's ``extra``.
    """
    trace, problem = step.trace, step.problem
    more: dict[str, Any] = {"sequence": pack(sequence_of(trace.timeline, trace.signatures))}
    if noise is not None:
        more["noise"] = noise.to_json()
    if scatter is not None:
        more["scatter"] = scatter.to_json()
    of_noise = () if noise is None else noise.notes
    notes = [*trace.caveats, *step.notes, *switches.notes, *of_noise]
    return Schedule(
        gpu=dict(trace.gpu),
        workload=dict(trace.workload),
        trace={"fingerprint": trace.fingerprint, "kernels": len(trace.timeline)},
        simulated=trace.simulated,
        provenance=trace.provenance,
        budget={
            "max_slowdown": budget,
            "confidence": None if noise is None else noise.confidence,
        },
        switch_model={
            **switches.described,
            **_costs_of_changes(step, solution),
            "anchors": "any" if step.anchors is None else "module",
        },
        segments=segments_of(step, solution),
        baseline=Cost(problem.baseline_time_ns, problem.baseline_energy_mj),
        baseline_pair=problem.baseline_pair,
        predicted=_predicted(step, solution, noise, scatter),
        proof=Proof(
            solution.lower_bound_mj,
            solution.gap,
            solution.method,
            solution.status,
            solution.seconds,
        ),
        baselines=alternatives,
        recommendation=recommendation,
        cyclic=problem.cyclic,
        notes=tuple(dict.fromkeys(notes)),
        created_by=f"clockwright {__version__}",
        extra={**more, **(extra or {})},
    )


def _costs_of_changes(step: Step, solution: Solution) -> dict[str, Any]:
    """What a table says of each change the schedule makes: from, to and ns, for its replay."""
    switch, choice = step.problem.switch, solution.choice
    table = None
    if isinstance(switch, Lag) and not isinstance(switch.latency_ns, float):
        table = switch.latency_ns
    elif isinstance(switch, MatrixStall):
        table = switch.time_ns
    if table is None:
        return {}
    before = np.roll(choice, 1)
    if not step.problem.cyclic:
        before[0] = choice[0]
    changed = before != choice
    made = sorted(set(zip(before[changed].tolist(), choice[changed].tolist(), strict=True)))
    names = [str(pair) for pair in step.problem.pairs]
    return {"changes": [[names[a], names[b], float(table[a, b])] for a, b in made]}


def _predicted(
    step: Step, solution: Solution, noise: NoiseResult | None, scatter: Scatter | None
) -> Predicted:
    """The solver's sums, and what scatter adds (``noise`` holds it already)."""
    base_ns, base_mj = step.problem.baseline_time_ns, step.problem.baseline_energy_mj
    more_ns, more_mj = (0.0, 0.0) if scatter is None else (scatter.more_ns, scatter.more_mj)
    late, lost = more_ns / base_ns, more_mj / base_mj
    return Predicted(
        solution.time_ns + more_ns,
        solution.energy_mj + more_mj,
        solution.slowdown + late,
        solution.saving - lost,
        None if noise is None else noise.slowdown_interval,
        None if noise is None else noise.saving_interval,
    )


def segments_of(step: Step, solution: Solution) -> tuple[Segment, ...]:
    """Stretches of kernels at one pair, each with the kernel at which its pair is requested."""
    choice = solution.choice
    first = step.layout.first_rows()
    kernels = len(step.trace.timeline)
    starts = np.flatnonzero(np.concatenate([[True], choice[1:] != choice[:-1]]))
    requests = _request_of_change(step, solution)
    segments = []
    for number, start in enumerate(starts.tolist()):
        end = int(first[starts[number + 1]]) if number + 1 < len(starts) else kernels
        asked = requests.get(start, start)
        trigger = int(first[asked])
        anchor = None if step.anchors is None else step.anchors[int(step.layout.chain[asked])]
        pair = step.problem.pairs[int(choice[start])]
        segments.append(Segment(int(first[start]), end, pair, trigger, anchor))
    return tuple(segments)


def _request_of_change(step: Step, solution: Solution) -> dict[int, int]:
    """Item at which the pair changes, to item at which that change was requested."""
    if not isinstance(step.problem.switch, Lag) or not solution.n_switches:
        return {}
    choice = solution.choice
    before = np.roll(choice, 1)
    if not step.problem.cyclic:
        before[0] = choice[0]
    changes = np.flatnonzero(before != choice)
    requests = {}
    for change in changes.tolist():
        # Requests do not overtake each other: the latest one at or before a change caused it.
        place = int(np.searchsorted(solution.request_item, change, side="right")) - 1
        if int(solution.request_pair[place]) != int(choice[change]):
            place -= 1
        pair = int(solution.request_pair[place])
        if pair != int(choice[change]):
            raise AssertionError(f"the change at item {change} was not requested")
        requests[change] = int(solution.request_item[place])
    return requests
