"""``clockwright plot``: a schedule's clocks over the step."""

from __future__ import annotations

from pathlib import Path

import click

from ._output import emit, json_option, say

__all__ = ["command"]


@click.command("plot")
@click.argument("schedule", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Chart to write, .png or .svg.",
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    help="The trace it was made from: draws time and phases instead of kernel numbers.",
)
@json_option
def command(schedule: Path, output: Path, trace_path: Path | None, as_json: bool) -> None:
    """Draw the core and memory clocks that SCHEDULE chooses over one step."""
    from ..charts._style import check_suffix
    from ..data import schedule as schedules
    from ..tracer.assume import trace_behind

    check_suffix(output)
    chosen = schedules.read(schedule)
    trace = None if trace_path is None else trace_behind(chosen, trace_path)
    from ..charts import draw_timeline

    draw_timeline(output, chosen, trace)
    if as_json:
        emit(
            {
                "output": str(output),
                "segments": len(chosen.segments),
                "kernels": chosen.trace["kernels"],
                "simulated": chosen.simulated,
                "x_axis": "kernels" if trace is None else "time",
            }
        )
        return
    say(f"wrote {output}")
