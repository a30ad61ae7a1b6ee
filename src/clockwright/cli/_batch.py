"""The batch side of ``clockwright optimize``: lists in, progress and a summary out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._output import emit, progress, say
from ._requests import split_list

if TYPE_CHECKING:
    from ..optimizer.request import Request

__all__ = ["run_batch"]


def run_batch(
    traces: Sequence[Path],
    output: Path,
    request: Request,
    budgets: str | None,
    latencies: str | None,
    *,
    workers: int | None,
    dask: str | None,
    quiet: bool,
) -> None:
    """Solve the product of traces, budgets and switch models into a folder of results."""
    from ..data.errors import InputError
    from ..optimizer.batch import dask_executor, local_executor, make_jobs, read_results, run_jobs

    if workers and dask:
        raise InputError("--workers is for local processes; a Dask cluster has its own")
    switches = _switches(latencies) if latencies is not None else [request.switches]
    allowed = _budgets(budgets) if budgets is not None else [request.budget]
    jobs = make_jobs(traces, allowed, switches, request)
    make: Callable[[], Any] = (
        partial(dask_executor, dask) if dask else partial(local_executor, workers)
    )
    with progress(quiet=quiet) as display:
        task = display.add_task("solving", total=len(jobs))

        def on_start(done: int, total: int) -> None:
            display.update(task, completed=done, total=total)
            if done and not quiet:
                say(f"{done} of {total} results are there already")

        def on_row(row: dict[str, Any]) -> None:
            display.update(task, advance=1)
            if not quiet:
                say(_line(row))

        solved = run_jobs(jobs, output, make, on_start=on_start, on_row=on_row)
    keys = {job.key for job in jobs}
    frame = read_results(output)
    rows = frame[frame["key"].isin(keys)]
    counts = {str(status): int(n) for status, n in rows["status"].value_counts().items()}
    if quiet:
        emit({"output": str(output), "jobs": len(jobs), "solved": solved, "status": counts})
        return
    listed = ", ".join(f"{count} {status}" for status, count in counts.items())
    say(f"wrote {output}: {len(jobs)} results ({solved} now): {listed}")


def _budgets(text: str) -> list[float]:
    """Percentages: ``0,0.6,2,5``, with or without a sign."""
    from ..data.units import parse_fraction

    parts = split_list("--budgets", text)
    return [parse_fraction(part if part.endswith("%") else part + "%") for part in parts]


def _switches(text: str) -> list[str]:
    return [part.replace("+", ",") for part in split_list("--latencies", text)]


def _line(row: dict[str, Any]) -> str:
    head = f"{Path(row['trace']).name} {row['budget']:.2%} switches {row['switches']}"
    if row["error"] is not None:
        return f"{head}: {row['status']}: {row['error']}"
    return (
        f"{head}: saving {row['saving']:.2%}, slowdown {row['slowdown']:+.3%}, gap {row['gap']:.1e}"
    )
