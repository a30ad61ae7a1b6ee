"""``clockwright import``: other tools' files become trace folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..data.units import counted
from ._output import emit, json_option, progress, say

__all__ = ["command"]


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Trace folder to write (several ranks: one folder a rank inside it).",
)
@click.option(
    "--baseline",
    default="auto",
    show_default=True,
    help="Pair to compare with: auto (the governor's rows, else the marked or highest pair), "
    "governor, or CORE/MEM in MHz.",
)
@click.option(
    "--drop-incomplete-pairs",
    is_flag=True,
    help="Leave out pairs at which some kernel is missing, instead of refusing.",
)
@json_option
def command(
    file: Path, output: Path, baseline: str, drop_incomplete_pairs: bool, as_json: bool
) -> None:
    """Import FILE: a sweep CSV, a Kineto or Nsight Systems trace, or Zeus/Perseus profiles.

    The format is found from the content. Every nanosecond is kept, and what is left out is
    counted by reason.
    """
    from ..tracer import importers

    with progress(quiet=as_json) as display:
        task = display.add_task("reading", total=None)
        result = importers.import_file(
            file, baseline=baseline, drop_incomplete_pairs=drop_incomplete_pairs
        )
        display.update(task, description="writing")
        written = importers.write_traces(result, output)
    document: dict[str, Any] = {
        "format": result.format,
        "output": [str(path) for path in written],
        "kernels": result.kernels,
        "steps": result.steps,
        "streams": result.streams,
        "total_kernel_ns": result.total_kernel_ns,
        "dropped": dict(result.dropped),
    }
    if as_json:
        emit(document)
        return
    say(
        f"{file}: {result.format}, {counted(result.kernels, 'kernel')}, "
        f"{counted(result.steps, 'step')}, {counted(result.streams, 'stream')}, "
        f"{result.total_kernel_ns} ns of kernels"
    )
    for reason, count in result.dropped.items():
        say(f"  left out: {count} x {reason}")
    for path in written:
        say(f"wrote {path}")
