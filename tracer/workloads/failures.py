"""A failure inside the user's own code, told in one line with the place in their file."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...data.errors import ClockwrightError, WorkloadError
from .step import Step

__all__ = ["describe", "guarded"]

_T = TypeVar("_T")

_OWN = str(Path(__file__).resolve().parent)


def _is_library(filename: str) -> bool:
    return (
        filename.startswith("<")
        or "site-packages" in filename
        or "dist-packages" in filename
        or "/clockwright/" in filename
        or str(Path(filename).resolve()).startswith(_OWN)
        or "importlib" in filename
    )


def describe(error: BaseException) -> str:
    """``ValueError: bad shape (train.py, line 12)``; the line is the innermost one not ours."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else text[:297] + "..."
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):
        return line
    theirs = [f for f in traceback.extract_tb(error.__traceback__) if not _is_library(f.filename)]
    if theirs:
        line += f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})"
    return line


def _told(run: Callable[[], _T], spec: str) -> _T:
    try:
        return run()
    except ClockwrightError:
        raise
    except Exception as error:
        raise WorkloadError(f"workload {spec} failed: {describe(error)}") from error


def guarded(build: Callable[[], Step], spec: str) -> Step:
    """Build a step whose failures, then and in every run, are a `WorkloadError` of one line."""
    step = _told(build, spec)
    run = step.run
    return dataclasses.replace(step, run=lambda: _told(run, spec))
