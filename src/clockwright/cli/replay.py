"""``clockwright replay``: run a step under a schedule and say what it cost and saved."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..data.errors import InputError
from ..data.units import counted, parse_duration_ns, parse_fraction
from ._output import emit, json_option, progress, say
from ._requests import parse_budget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data.report import Comparison, Estimate, Report

__all__ = ["command"]


@click.command("replay")
@click.argument("schedule", type=click.Path(path_type=Path))
@click.argument("workload", required=False)
@click.option(
    "--gpu",
    "gpu_spec",
    help="nvml:INDEX (nvml alone under torchrun), nvml:GPU-UUID, sim:NAME[?seed=N], or table (play "
    "the trace's own numbers). Default: the simulated GPU or the imported table the schedule was "
    "made from.",
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    help="Trace folder the schedule was made from: the table to play, or what to compare with.",
)
@click.option("--set-clocks", is_flag=True, help="Let the keeper set clocks on a real GPU.")
@click.option("--dry", is_flag=True, help="Issue every trigger, set no clock (also simulated).")
@click.option(
    "--allow-drift",
    default="0",
    show_default=True,
    help="Share of kernels that may differ; only matched segments are played.",
)
@click.option("--max-slowdown", help="Budget to judge by, instead of the schedule's own.")
@click.option("--confidence", default="95%", show_default=True, help="Of every interval.")
@click.option("--precision", default="0.1%", show_default=True, help="Half-width wanted.")
@click.option("--block", default="500ms", show_default=True, help="Least length of a block.")
@click.option("--rounds", default=96, show_default=True, help="Most rounds to run.")
@click.option("--time-limit", default="600s", show_default=True, help="Stop after this long.")
@click.option("--seed", default=0, show_default=True, help="Of block order and simulation.")
@click.option(
    "--triggers",
    type=click.Choice(["auto", "eager", "graph"]),
    default="auto",
    show_default=True,
    help="On a real GPU: at module edges, or in a captured CUDA graph at the exact kernels; auto "
    "is eager where the schedule switches at module edges only.",
)
@click.option(
    "--switches",
    type=click.Choice(["own", "schedule", "stall", "lag", "free"]),
    default="own",
    show_default=True,
    help="How a simulated GPU changes clocks: as its product does, or as the schedule assumes.",
)
@click.option("--no-single", is_flag=True, help="Leave the best single pair out.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Report file to write.")
@click.option("--chart", type=click.Path(path_type=Path), help="Chart to write (.png or .svg).")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    schedule: Path,
    workload: str | None,
    gpu_spec: str | None,
    trace_path: Path | None,
    set_clocks: bool,
    dry: bool,
    allow_drift: str,
    max_slowdown: str | None,
    confidence: str,
    precision: str,
    block: str,
    rounds: int,
    time_limit: str,
    seed: int,
    triggers: str,
    switches: str,
    no_single: bool,
    output: Path | None,
    chart: Path | None,
    as_json: bool,
) -> None:
    """Replay SCHEDULE, on WORKLOAD or the one it was made from, and verify it.

    Blocks of the baseline, the schedule and the best single pair are interleaved in random order.
    Exit status: 0 the slowdown is within the budget; 3 it is over, or it could not be decided;
    2 bad input; 4 the GPU or the keeper refused; 5 the step itself failed.
    """
    from ..replay.ranks import rank
    from ..replay.run import run_replay
    from ..replay.source import ReplayOptions, open_replay
    from ..replay.verdict import EXIT_CODES
    from ..replay.verify import Settings
    from ..replay.watched import read_watched

    if set_clocks and dry:
        raise InputError("--set-clocks and --dry contradict each other; give one of them")
    _check_places(output, chart)
    watched = read_watched(schedule)
    settings = Settings(
        block_ns=parse_duration_ns(block),
        precision=parse_fraction(precision),
        confidence=parse_fraction(confidence),
        max_rounds=rounds,
        time_limit_ns=parse_duration_ns(time_limit),
        seed=seed,
    )
    options = ReplayOptions(
        gpu_spec=gpu_spec,
        workload=workload,
        trace_path=trace_path,
        set_clocks=set_clocks,
        dry=dry,
        allow_drift=parse_fraction(allow_drift),
        seed=seed,
        triggers=triggers,
        switches=switches,
    )
    budget = None if max_slowdown is None else parse_budget(max_slowdown)
    with open_replay(watched.schedule, options) as opened, _rounds(rounds, as_json) as on_round:
        report = run_replay(
            watched,
            opened.player,
            opened.match,
            opened.info,
            max_slowdown=budget,
            settings=settings,
            single=not no_single,
            dry=opened.dry,
            notes=opened.notes,
            on_round=on_round,
        )
    if rank():
        ctx.exit(EXIT_CODES[report.verdict])  # every rank knows the verdict; the first one tells
    _write(report, output, chart)
    if as_json:
        emit(report.to_json())
    else:
        _tell(report, output, chart)
    ctx.exit(EXIT_CODES[report.verdict])


def _check_places(output: Path | None, chart: Path | None) -> None:
    """A replay takes minutes: what cannot be written is told before, not after."""
    from ..charts.replay_chart import check_chart_path

    if chart is not None:
        check_chart_path(chart)
    for path in (output, chart):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"cannot write {path}: the folder {path.parent} does not exist")


@contextmanager
def _rounds(most: int, quiet: bool) -> Iterator[Any]:
    with progress(quiet=quiet) as display:
        task = display.add_task("rounds", total=most)

        def on_round(rounds: int, comparisons: Sequence[Comparison]) -> None:
            text = "rounds"
            for entry in comparisons:
                if entry.arm == "schedule":
                    text = f"rounds (slowdown {_percent(entry.slowdown)})"
            display.update(task, completed=rounds, description=text)

        yield on_round


def _write(report: Report, output: Path | None, chart: Path | None) -> None:
    from ..data import report as report_file

    if output is not None:
        report_file.write(report, output)
    if chart is not None:
        from ..charts.replay_chart import draw_replay

        draw_replay(report, chart)


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return "not measured"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3%} (no interval)"
    return f"{estimate.value:.3%} ({estimate.low:.3%} to {estimate.high:.3%})"


_DIFFERENCE = {
    "slower": "slower than the baseline",
    "faster": "faster than the baseline",
    "no difference": "as fast as the baseline",
    "unresolved": "not told apart from the baseline",
}

_STOPPED = {
    "decided": "the verdict is clear",
    "narrow": "the interval is narrower than what counts",
    "rounds": "all rounds were run",
    "time": "time was up",
}


def _tell(report: Report, output: Path | None, chart: Path | None) -> None:
    dry = ", dry (no clock was set)" if report.mode == "dry" else ""
    name = str(report.gpu["name"]).removesuffix(" (simulated)")
    say(
        f"{report.workload['name']} on {name}: {report.kind}{dry}, "
        f"{counted(report.rounds, 'round')}, intervals at {report.confidence:g}; "
        f"ended because {_STOPPED[report.stopped]}"
    )
    for entry in report.comparisons:
        say(
            f"  {entry.arm}: slowdown {_percent(entry.slowdown)}, "
            f"energy saving {_percent(entry.saving)}; in time {_DIFFERENCE[entry.difference]}"
        )
    if report.prediction is not None:
        told = report.prediction
        say(
            f"  predicted: slowdown {told.slowdown:.3%} (off by {_percent(told.slowdown_error)}, "
            f"{_agrees(told.time_agrees)}), saving {told.saving:.3%} "
            f"(off by {_percent(told.saving_error)}, {_agrees(told.energy_agrees)})"
        )
    for note in report.notes:
        say(f"  note: {note}")
    words = {
        "within": "within the budget",
        "over": "over the budget",
        "ambiguous": "ambiguous: the interval holds both sides of the budget",
    }
    say(f"verdict: {words[report.verdict]} of {report.budget['max_slowdown']:.3%}")
    for path in (output, chart):
        if path is not None:
            say(f"wrote {path}")


def _agrees(agrees: bool | None) -> str:
    return {True: "agrees", False: "disagrees", None: "cannot be told"}[agrees]
