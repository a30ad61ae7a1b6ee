"""Traces as commands read them: as written, or with assumed responses put on a bare timeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..data.trace import Trace

__all__ = ["assume_option", "load_trace"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def assume_option(command: _Command) -> _Command:
    """Add ``--assume`` to a command that reads a trace."""
    return click.option(
        "--assume",
        metavar="GPU",
        help="For a timeline without a sweep: plan with the modelled responses of a simulated "
        "GPU (rtx3080ti, v100, h200), labelled assumed.",
    )(command)


def load_trace(path: Path, assume: str | None = None) -> Trace:
    """Read a trace folder; with ``assume``, add that simulated GPU's responses.

    Raises:
        InputError: no such trace, no such simulated GPU, or a sweep is there already.
    """
    from ..data.trace import read

    trace = read(path)
    if assume is None:
        return trace
    from ..tracer.assume import assume_responses
    from ..tracer.gpu.simulated import open_simulated

    return assume_responses(trace, open_simulated(assume.removeprefix("sim:")))
