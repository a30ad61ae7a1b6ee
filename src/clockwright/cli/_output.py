"""How commands print: people get lines and tables, ``--json`` gets one document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["emit", "json_option", "progress", "say"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(command: _Command) -> _Command:
    """Add ``--json`` (passed as ``as_json``) to a command."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
    )(command)


def emit(document: dict[str, Any]) -> None:
    """Print the JSON document of ``--json``; NaN is refused rather than printed."""
    click.echo(json.dumps(document, indent=1, allow_nan=False))


def say(text: str) -> None:
    """Print one line for people."""
    click.echo(text)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress]:
    """A rich progress display on standard error, hidden under ``--json`` or without a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal) as display:
        yield display
