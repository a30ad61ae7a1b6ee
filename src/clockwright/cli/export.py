"""``clockwright export``: a trace's profile as a sweep CSV, for any other tool."""

from __future__ import annotations

from pathlib import Path

import click

from ._output import emit, json_option, say

__all__ = ["command"]


@click.command("export")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Sweep CSV to write: kernel, core_mhz, mem_mhz, time_ms, energy_mj and more.",
)
@json_option
def command(trace: Path, output: Path, as_json: bool) -> None:
    """Write the cells of TRACE as a sweep CSV, one row a kernel of the step and clock pair.

    For other tools: a sweep has no place for gaps, streams, phases, modules, spreads, throttle
    reasons or switches, so plan on TRACE itself, not on its export.
    """
    from ..data.errors import InputError
    from ..data.sweep_csv import write_sweep
    from ..data.trace import read

    if output.suffix.lower() != ".csv":
        raise InputError(f"{output}: a sweep is exported as .csv")
    whole = read(trace)
    write_sweep(whole, output)
    kernels, pairs = len(whole.timeline), len(whole.pairs)
    if as_json:
        emit(
            {
                "output": str(output),
                "kernels": kernels,
                "pairs": pairs,
                "rows": kernels * pairs,
                "simulated": whole.simulated,
            }
        )
        return
    say(f"wrote {output} ({kernels} kernels at {pairs} clock pairs)")
    say(
        "left out, since a sweep has no place for them: gaps, streams, phases, modules, spreads, "
        "throttle reasons, switches"
    )
