"""What any reader hands on: one recording's kernels as columns, with the words they refer to.

A row is a kernel launch, in the order of the file. Unknown whole numbers are `UNKNOWN`, never 0;
unknown words are -1. Nothing here has been averaged, rounded or put in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = [
    "DAY_NS",
    "UNKNOWN",
    "Int64s",
    "LaunchShape",
    "Marks",
    "Recording",
    "Vocabulary",
    "amount",
    "screen",
]

UNKNOWN = int(np.iinfo(np.int64).min)
DAY_NS = 86_400 * 10**9

Int64s = npt.NDArray[np.int64]
_T = TypeVar("_T")


class LaunchShape(NamedTuple):
    """What a kernel's identity rests on when no operator is known; absent parts are None."""

    name: str
    grid: str | None
    block: str | None
    shared_bytes: int | None
    registers: int | None


def amount(value: int | None, top: int = 1 << 31) -> int | None:
    """A count as a file gives it; None where it cannot be one (negative, or absurdly large)."""
    return value if value is not None and 0 <= value < top else None


class Vocabulary(dict[_T, int]):
    """Numbers things in order of first appearance: ``vocabulary[word]`` is its number."""

    def __missing__(self, word: _T) -> int:
        number = self[word] = len(self)
        return number

    def words(self) -> list[_T]:
        """The words in order of their numbers."""
        return list(self)


@dataclass(frozen=True)
class Marks:
    """Windows in which the recorder says a step ran, on the host's clock and on the GPU's.

    Each is (start_ns, end_ns, step number), sorted by start.
    """

    host: Int64s = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    gpu: Int64s = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))


@dataclass
class Recording:
    """One file's kernels before they are cut into steps.

    Attributes:
        kernels: int64 columns ``process`` (a number for each process and device), ``stream``,
            ``start_ns``, ``duration_ns``, ``shape`` (row of ``shapes``), ``launch_ns``,
            ``correlation``, ``node`` (CUDA graph node), ``op``, ``dims``, ``dtype``, ``module``,
            ``layer``, ``phase`` (number in `tables.PHASES`), ``flops``.
        shapes, ops, dims, dtypes, modules: the words of the columns of those names.
        processes: for each process number, the device as the file names it.
        marks: step windows, for all processes or by process number.
        rank: the rank the file says it is, if it says so.
        gpus: GPU name by device number, where the file names them.
        facts: what else the file says of itself, for the trace's ``workload``.
        dropped, repaired: reason to count.
        other_events: events that are not kernels and were read for their context only, by kind.
    """

    kernels: pd.DataFrame
    shapes: list[LaunchShape]
    ops: list[str]
    dims: list[str]
    dtypes: list[str]
    modules: list[str]
    processes: list[str]
    marks: dict[int | None, Marks]
    rank: int | None = None
    gpus: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    other_events: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def screen(kernels: pd.DataFrame, dropped: Counter[str]) -> pd.DataFrame:
    """Leave out kernels whose times cannot be true, counting each reason.

    A kernel of a day or more is a clock that wrapped or an end that was never written. A start a
    day or more from the median start is of another epoch, or was never written (0).
    """
    start = kernels["start_ns"].to_numpy()
    duration = kernels["duration_ns"].to_numpy()
    good = np.ones(len(kernels), dtype=bool)

    def leave_out(bad: npt.NDArray[np.bool_], reason: str) -> None:
        nonlocal good
        count = int((bad & good).sum())
        if count:
            dropped[reason] += count
            good = good & ~bad

    leave_out((start == 0) & (duration == 0), "kernel without a time (start and duration 0)")
    leave_out(duration < 0, "kernel with a negative duration")
    leave_out(duration >= DAY_NS, "kernel of a day or longer (a wrapped clock)")
    if good.any():
        # Through Python integers: the difference of two int64 need not fit in one.
        middle = int(np.median(start[good]))
        span = np.abs(start.astype(np.float64) - middle)
        leave_out(span >= DAY_NS, "kernel that starts a day or more from the others")
        others = start[good & (start != 0)]
        # A clock may truly begin at 0; then the next kernels are near.
        if len(others) and others.min() > max(10**9, int(np.ptp(others))):
            leave_out(start == 0, "kernel without a start (0)")
    return kernels if good.all() else kernels[good].reset_index(drop=True)
