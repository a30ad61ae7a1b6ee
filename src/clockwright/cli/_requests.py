"""Options that say which problem a trace is: shared by optimize and pareto."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

__all__ = ["parse_budget", "parse_confidence", "parse_gap", "problem_options", "split_list"]


def problem_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a problem; they reach the command as fields of a `Request`."""

    @wraps(command)
    def parsed(*args: Any, min_dwell: str | None, **given: Any) -> Any:
        from ..data.units import parse_duration_ns

        given["min_dwell_ns"] = None if min_dwell is None else parse_duration_ns(min_dwell)
        return command(*args, **given)

    options = [
        click.option(
            "--switches",
            default="auto",
            show_default=True,
            help="What a switch costs: measured (the trace's table), free, 1ms, 2us,5us (core, "
            "memory), or a .csv, .parquet or .json table; auto is measured, else free.",
        ),
        click.option(
            "--semantic",
            type=click.Choice(["stall", "lag"]),
            help="Whether a switch stops the GPU or takes effect late [default: the device's own].",
        ),
        click.option("--min-dwell", help="Least time between two requests under lag, such as 2ms."),
        click.option(
            "--anchors",
            type=click.Choice(["any", "module"]),
            default="any",
            show_default=True,
            help="Switch at any kernel, or only at module edges, as eager replay needs.",
        ),
        click.option(
            "--baseline",
            default="auto",
            show_default=True,
            help="Pair to compare with: auto, governor, or CORE/MEM in MHz.",
        ),
        click.option(
            "--drop-incomplete-pairs",
            is_flag=True,
            help="Leave out pairs at which some kernel was not measured, instead of refusing.",
        ),
    ]
    for option in reversed(options):
        parsed = option(parsed)
    return parsed


def split_list(option: str, text: str) -> list[str]:
    """The parts of a list with commas, each once.

    Raises:
        InputError: there is none.
    """
    from ..data.errors import InputError

    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise InputError(f"{option} is an empty list; leave it out, or name at least one")
    return parts


def parse_budget(text: str, option: str = "--max-slowdown") -> float:
    """Read a slowdown; a bare number of 1 or more is a percentage without its sign.

    Raises:
        InputError: no fraction or percentage, or a bare number that would be 100% or more.
    """
    from ..data.errors import InputError
    from ..data.units import parse_fraction

    value = parse_fraction(text)
    if value >= 1 and not text.strip().endswith("%"):
        raise InputError(
            f"{option} {text.strip()} would be {value:.0%}; write {text.strip()}% for a "
            f"percentage, or {value * 100:g}% if that is what is meant"
        )
    return value


def parse_confidence(text: str) -> float | None:
    """Read ``0.95``, ``95%`` or ``none``.

    Raises:
        InputError: anything else.
    """
    from ..data.errors import InputError
    from ..data.units import parse_fraction

    if text.strip().lower() == "none":
        return None
    value = parse_fraction(text)
    if not 0.5 <= value < 1:
        raise InputError(f"--confidence must be from 0.5 to under 1, or none, got {text!r}")
    return value


def parse_gap(text: str | None) -> float | None:
    """Read a relative gap.

    Raises:
        InputError: not a number from 0 to under 1.
    """
    from ..data.errors import InputError

    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InputError(f"--gap must be a number from 0 to under 1, got {text!r}")
    return value
