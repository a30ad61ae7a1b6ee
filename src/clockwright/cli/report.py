"""``clockwright report``: what a schedule promises, and the proof of it, in words or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._output import emit, json_option, say

if TYPE_CHECKING:
    from ..data.schedule import Schedule

__all__ = ["command"]


@click.command("report")
@click.argument("schedule", type=click.Path(path_type=Path))
@json_option
def command(schedule: Path, as_json: bool) -> None:
    """Tell what SCHEDULE promises: prediction, baselines, proof, recommendation."""
    from ..data import schedule as schedules
    from ._describe import baseline_table, headline, proof_line

    read = schedules.read(schedule)
    if as_json:
        document = read.to_json()
        for long in ("segments", "extra"):
            del document[long]
        document["segment_count"] = len(read.segments)
        document["clock_pairs"] = _shares(read)
        document["noise"] = read.extra.get("noise")
        emit(document)
        return
    for line in headline(read):
        say(line)
    say(proof_line(read))
    for line in baseline_table(read):
        say(line)
    for line in _clocks(read):
        say(line)
    say(f"recommendation: {read.recommendation}")
    for note in read.notes:
        say(f"note: {note}")


def _shares(schedule: Schedule) -> list[dict[str, Any]]:
    """How many kernels run at each pair, most first."""
    kernels: dict[str, int] = {}
    for segment in schedule.segments:
        pair = str(segment.pair)
        kernels[pair] = kernels.get(pair, 0) + segment.end - segment.start
    return [
        {"pair": pair, "kernels": count}
        for pair, count in sorted(kernels.items(), key=lambda entry: (-entry[1], entry[0]))
    ]


def _clocks(schedule: Schedule) -> Iterator[str]:
    shares = _shares(schedule)
    whole = sum(entry["kernels"] for entry in shares)
    listed = ", ".join(
        f"{entry['pair']} ({entry['kernels'] / whole:.0%} of kernels)" for entry in shares[:6]
    )
    rest = f" and {len(shares) - 6} more" if len(shares) > 6 else ""
    yield f"clock pairs: {listed}{rest}"
