"""``clockwright pareto``: the whole front of energy against time, with the baselines marked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._output import emit, json_option, progress, say
from ._requests import parse_budget, problem_options, split_list
from ._traces import assume_option, load_trace

if TYPE_CHECKING:
    from ..data.schedule import Alternative
    from ..data.trace import Trace
    from ..optimizer.frontier import Front

__all__ = ["command"]


@click.command("pareto")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Chart to write, .png or .svg.",
)
@click.option(
    "--latencies",
    help="Switch models to draw side by side, such as free,10us,100us,1ms,10ms,100ms "
    "(2us+5us: core and memory part) [default: that of --switches, and free].",
)
@click.option(
    "--max-slowdown",
    default="0.6%",
    show_default=True,
    help="Budget the marked baselines are chosen for.",
)
@click.option("--up-to", default="20%", show_default=True, help="Largest slowdown drawn.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds for all fronts.")
@problem_options
@assume_option
@json_option
def command(
    trace: Path,
    output: Path,
    latencies: str | None,
    max_slowdown: str,
    up_to: str,
    time_limit: float,
    assume: str | None,
    as_json: bool,
    **problem: Any,
) -> None:
    """Draw energy against slowdown for TRACE: one front a switch model, every baseline marked."""
    from ..charts._style import check_suffix
    from ..data.errors import InputError

    check_suffix(output)
    if not time_limit > 0:
        raise InputError(f"--time-limit must be positive, got {time_limit:g}")
    budget, end = parse_budget(max_slowdown), parse_budget(up_to, "--up-to")
    if not 0 < end <= 10:
        raise InputError(f"--up-to must be over 0% and at most 1000%, got {up_to!r}")
    whole = load_trace(trace, assume)
    names = _switch_names(latencies, problem["switches"])
    with progress(quiet=as_json) as display:
        task = display.add_task("baselines", total=len(names) + 1)

        def on_front(name: str) -> None:
            display.update(task, advance=1, description=f"front: {name}")

        drawn = _compute(whole, names, budget, end, time_limit, problem, on_front)
    _draw(output, whole, budget, end, drawn)
    if as_json:
        emit(_document(output, whole, budget, drawn))
        return
    for front in drawn.fronts:
        worst = max((point.gap for point in front.points if point.gap is not None), default=None)
        proven = "no schedule within any budget" if worst is None else f"worst gap {worst:.1e}"
        say(f"{front.label}: {len(front.points)} budgets, {proven} ({front.method})")
    for note in drawn.notes:
        say(f"note: {note}")
    say(f"wrote {output}")


def _switch_names(latencies: str | None, switches: str) -> list[str]:
    if latencies is None:
        return list(dict.fromkeys([switches, "free"]))
    return split_list("--latencies", latencies)


def _budgets(budget: float, end: float) -> tuple[float, ...]:
    from ..optimizer.frontier import default_budgets

    scaled = (round(value * end / 0.2, 9) for value in default_budgets())
    return tuple(sorted({*scaled, min(budget, end)}))


@dataclass(frozen=True)
class _Drawn:
    """What is drawn: fronts by switch model, baselines, and (slowdown, mJ) of single pairs.

    ``held`` are those of them that a schedule may keep for a whole step; they need no switch, so
    they belong to every front, at their own slowdowns and not only at the budgets solved.
    """

    fronts: list[Front]
    alternatives: tuple[Alternative, ...]
    singles: list[tuple[float, float]]
    held: list[tuple[float, float]]
    notes: list[str]


def _compute(
    trace: Trace,
    names: list[str],
    budget: float,
    end: float,
    time_limit_s: float,
    problem: dict[str, Any],
    on_front: Any,
) -> _Drawn:
    from ..optimizer.baselines import (
        compare,
        phase_schedule,
        single_pair_choices,
        single_pair_costs,
    )
    from ..optimizer.frontier import frontier, offer_choices, share_schedules
    from ..optimizer.plan import played_cost
    from ..optimizer.request import Request, make_step

    fronts: list[Front] = []
    steps, notes = [], list(trace.caveats)
    alternatives: tuple[Alternative, ...] = ()
    singles: list[tuple[float, float]] = []
    held: list[tuple[float, float]] = []
    share = time_limit_s / (len(names) + 1)
    for number, name in enumerate(names):
        request = Request(budget, **{**problem, "switches": name.replace("+", ",")})
        step, switches = make_step(trace, request)
        label = f"schedule, switches {_label(name, switches.described)}"
        on_front(name)
        if any(front.label == label for front in fronts):
            continue  # auto comes down to measured or free, which may be named as well
        notes += [*step.notes, *switches.notes]
        if switches.spread is not None:
            notes.append(f"switches {name}: fronts are planned at the median latency, not at 95%")
        by_phase = phase_schedule(step, budget, None, None)
        if number == 0:
            alternatives = compare(step, budget, time_limit_s=share, by_phase=by_phase)
            base = step.problem.baseline_time_ns
            singles = [(time / base - 1, energy) for time, energy in single_pair_costs(step)]
            played = [played_cost(step, choice) for choice in single_pair_choices(step)]
            held = [(time / base - 1, energy) for time, energy in played]
        front = frontier(step, _budgets(budget, end), label=label, time_limit_s=share)
        known = [*single_pair_choices(step), *([] if by_phase is None else [by_phase.choice])]
        fronts.append(offer_choices(step, front, known))
        steps.append(step)
    shared = list(share_schedules(steps, fronts))
    return _Drawn(shared, alternatives, singles, held, list(dict.fromkeys(notes)))


def _label(name: str, described: dict[str, Any]) -> str:
    semantic = described["semantic"]
    if semantic == "free":
        return "free"
    source = described["source"] if name in {"auto", "measured"} else name
    return f"{source} ({semantic})"


def _mark_name(name: str, fronts: list[Front]) -> str:
    """A baseline that switches says under which model, where several are drawn."""
    from ..optimizer.baselines import PASS_LEVEL

    if name != PASS_LEVEL or len(fronts) == 1:
        return name
    return f"{name}, {fronts[0].label.removeprefix('schedule, ')}"


def _best_at_each(front: Front, held: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(slowdown, mJ) of what no other schedule beats in both, by slowdown."""
    found = {
        (point.time_ns / front.baseline_time_ns - 1, point.energy_mj)
        for point in front.points
        if point.time_ns is not None and point.energy_mj is not None
    }
    best: list[tuple[float, float]] = []
    for slowdown, energy_mj in sorted(found | set(held)) if found else []:
        if not best or energy_mj < best[-1][1]:
            best.append((slowdown, energy_mj))
    return best


def _draw(
    output: Path,
    trace: Trace,
    budget: float,
    end: float,
    drawn: _Drawn,
) -> None:
    from ..charts import Curve, Mark, draw_pareto
    from ..charts._style import describe

    fronts, alternatives = drawn.fronts, drawn.alternatives
    curves = []
    for front in fronts:
        ordered = _best_at_each(front, [pair for pair in drawn.held if pair[0] <= end])
        bounds = [
            (point.budget, point.lower_bound_mj)
            for point in front.points
            if point.energy_mj is not None and point.lower_bound_mj > 0
        ]
        curves.append(
            Curve(
                front.label,
                tuple(x for x, _ in ordered),
                tuple(e for _, e in ordered),
                tuple(budget for budget, _ in bounds),
                tuple(bound for _, bound in bounds),
            )
        )
    base = next((entry for entry in alternatives if entry.name in {"governor", "baseline"}), None)
    draw_pareto(
        output,
        curves,
        [
            Mark(_mark_name(entry.name, fronts), entry.slowdown, entry.energy_mj)
            for entry in alternatives
        ],
        title=f"{describe(trace.workload, trace.gpu)}: energy against time",
        simulated=trace.simulated,
        provenance=trace.provenance,
        baseline_mj=fronts[0].baseline_energy_mj,
        baseline_name=", ".join(base.pairs) if base is not None else "the baseline",
        singles=drawn.singles,
        budget=budget,
        max_slowdown=end,
    )


def _document(
    output: Path,
    trace: Trace,
    budget: float,
    drawn: _Drawn,
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "output": str(output),
        "simulated": trace.simulated,
        "provenance": trace.provenance,
        "budget": budget,
        "fronts": [
            {
                "label": front.label,
                "baseline": {
                    "time_ns": front.baseline_time_ns,
                    "energy_mj": front.baseline_energy_mj,
                },
                "method": front.method,
                "solves": front.solves,
                "points": [
                    {
                        "budget": point.budget,
                        "time_ns": point.time_ns,
                        "energy_mj": point.energy_mj,
                        "lower_bound_mj": point.lower_bound_mj,
                        "switches": point.switches,
                        "gap": point.gap,
                        "saving": front.saving(point),
                    }
                    for point in front.points
                ],
            }
            for front in drawn.fronts
        ],
        "single_pairs": [
            {"slowdown": slowdown, "energy_mj": energy_mj} for slowdown, energy_mj in drawn.singles
        ],
        "baselines": [asdict(entry) for entry in drawn.alternatives],
        "notes": drawn.notes,
    }
