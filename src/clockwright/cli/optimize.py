"""``clockwright optimize``: from one trace to a schedule, or from many to a table of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..data.units import counted
from ._output import emit, json_option, progress, say
from ._requests import parse_budget, parse_confidence, parse_gap, problem_options
from ._traces import assume_option, load_trace

if TYPE_CHECKING:
    from ..data.schedule import Schedule

__all__ = ["command"]


@click.command("optimize")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Schedule to write; in a batch, the folder of results (Parquet), which is resumed.",
)
@click.option(
    "--max-slowdown",
    default="0.6%",
    show_default=True,
    help="Slowdown allowed against the baseline: 0.6% or 0.006.",
)
@click.option("--budgets", help="Batch: slowdowns in percent, such as 0,0.6,2,5.")
@click.option(
    "--latencies", help="Batch: switch models, such as free,20us,1ms (2us+5us: two part)."
)
@problem_options
@assume_option
@click.option(
    "--confidence",
    default="0.95",
    show_default=True,
    help="Confidence of meeting the budget where cells carry a spread; none believes the cells.",
)
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds for the solver.")
@click.option("--gap", help="Relative gap to stop at [default: 1e-8 if small, 1e-5 if large].")
@click.option(
    "--method",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "full-ilp-highs", "full-ilp-cpsat", "full-ilp-scip"]),
    help="How to solve; the full integer programs are slow references.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the noise split.",
)
@click.option("--workers", type=click.IntRange(1), help="Batch: processes [default: CPUs].")
@click.option("--dask", help="Batch: address of a Dask scheduler to run on.")
@json_option
def command(
    traces: tuple[Path, ...],
    output: Path,
    max_slowdown: str,
    budgets: str | None,
    latencies: str | None,
    confidence: str,
    time_limit: float,
    gap: str | None,
    method: str,
    seed: int,
    workers: int | None,
    dask: str | None,
    assume: str | None,
    as_json: bool,
    **problem: Any,
) -> None:
    """Choose a clock pair for every kernel of TRACES, least energy within the slowdown allowed.

    Every schedule carries its proof: a lower bound on the energy, and the gap to it. Several
    traces, --budgets or --latencies make a batch, whose results are rows of a Parquet folder.
    """
    from ..data.errors import InputError
    from ..optimizer.request import Request

    if not time_limit > 0:
        raise InputError(f"--time-limit must be positive, got {time_limit:g}")
    request = Request(
        budget=parse_budget(max_slowdown),
        confidence=parse_confidence(confidence),
        time_limit_s=time_limit,
        tolerance=parse_gap(gap),
        method=method,  # type: ignore[arg-type]
        seed=seed,
        **problem,
    )
    if len(traces) > 1 or budgets is not None or latencies is not None:
        if assume:
            raise InputError("--assume is for one trace; import and optimize it by itself")
        from ._batch import run_batch

        run_batch(
            traces, output, request, budgets, latencies, workers=workers, dask=dask, quiet=as_json
        )
        return
    if workers or dask:
        raise InputError("--workers and --dask are for a batch; add --budgets or --latencies")
    schedule = _optimize(traces[0], output, request, assume, quiet=as_json)
    if as_json:
        document = schedule.to_json()
        document["output"] = str(output)
        document["segment_count"] = len(schedule.segments)
        document["extra"] = {k: v for k, v in document["extra"].items() if k != "sequence"}
        emit(document)
        return
    _tell(schedule, output)


def _optimize(
    path: Path, output: Path, request: Any, assume: str | None, *, quiet: bool
) -> Schedule:
    from ..data import schedule as schedules
    from ..optimizer.request import optimize_trace

    with progress(quiet=quiet) as display:
        task = display.add_task("reading", total=None)
        trace = load_trace(path, assume)
        display.update(task, description="solving")
        schedule = optimize_trace(trace, request)
        display.update(task, description="writing")
        schedules.write(schedule, output)
    return schedule


def _tell(schedule: Schedule, output: Path) -> None:
    from ._describe import baseline_table, headline, proof_line

    for line in headline(schedule):
        say(line)
    say(proof_line(schedule))
    for line in baseline_table(schedule):
        say(line)
    say(f"recommendation: {schedule.recommendation}")
    for note in schedule.notes:
        say(f"note: {note}")
    say(f"wrote {output} ({counted(len(schedule.segments), 'segment')})")
