"""What an import gives back, and how it is written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...data import trace as trace_files
from ...data._files import replace_dir
from ...data.errors import InputError
from ...data.trace import Trace
from .assemble import Built

__all__ = ["ImportResult", "merge", "single", "write_traces"]

_UNSAFE = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class ImportResult:
    """Everything that was read, and an account of what was not.

    Attributes:
        format: ``kineto``, ``nsys``, ``perseus`` or ``sweep``.
        traces: one for each rank (process and device), by name, such as ``rank0``.
        kernels: launches read, over all steps and ranks.
        steps: steps found; of several ranks, the most that one has.
        streams: streams that ran a kernel, those of each rank counted apart.
        total_kernel_ns: sum of the durations of all ``kernels``, exact.
        dropped: what is not in the traces, reason to count.
        repaired: what was mended in the text, how often.
        other_events: events read for context only (operators, counters), by kind.
        notes: what a reader should know of each rank.
    """

    format: str
    traces: Mapping[str, Trace]
    kernels: int
    steps: int
    streams: int
    total_kernel_ns: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    other_events: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def single(kind: str, trace: Trace) -> ImportResult:
    """The result of a table that is one step already."""
    return ImportResult(
        format=kind,
        traces={"rank0": trace},
        kernels=len(trace.timeline),
        steps=1,
        streams=int(trace.timeline["stream"].nunique()),
        total_kernel_ns=sum(int(value) for value in trace.timeline["duration_ns"]),
        dropped=dict(trace.dropped),
        notes=trace.notes,
    )


def merge(
    kind: str,
    built: Mapping[str, Built],
    dropped: Counter[str],
    repaired: Counter[str],
    other_events: Counter[str],
) -> ImportResult:
    """Add up the traces of several ranks; ``dropped`` is what was lost before the steps."""
    total = Counter(dropped)
    for one in built.values():
        for reason in ("kernel outside every step", "kernel of a step with another sequence"):
            total[reason] += one.trace.dropped.get(reason, 0)
    many = len(built) > 1
    return ImportResult(
        format=kind,
        traces={name: one.trace for name, one in built.items()},
        kernels=sum(one.kernels for one in built.values()),
        steps=max(one.steps for one in built.values()),
        streams=sum(one.streams for one in built.values()),
        total_kernel_ns=sum(one.total_kernel_ns for one in built.values()),
        dropped={reason: count for reason, count in total.items() if count},
        repaired=dict(repaired),
        other_events=dict(other_events),
        notes=tuple(
            f"{name}: {note}" if many else note
            for name, one in built.items()
            for note in one.trace.notes
        ),
    )


def unique_name(wanted: str, taken: Iterable[str]) -> str:
    """A folder name made of ``wanted``, with a number behind it if it is taken."""
    name = base = _UNSAFE.sub("-", wanted).strip("-.") or "rank"
    count = 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    return name


def _is_ours(path: Path) -> bool:
    """A trace folder, or a folder of nothing but trace folders."""
    return all((folder / "trace.json").is_file() for folder in _traces_at(path))


def _traces_at(path: Path) -> list[Path]:
    """The folder itself if it is a trace, else what lies in it."""
    if (path / "trace.json").is_file() or not path.is_dir():
        return [path]
    return list(path.iterdir())


def write_traces(result: ImportResult, output: Path) -> list[Path]:
    """Write one trace as the folder ``output``, several as folders by rank inside it.

    All are written or none; traces of an earlier import there are replaced, recordings never.

    Raises:
        InputError: the place cannot be written, holds other files, or a recording of a real GPU.
    """
    output = Path(output)
    for folder in _traces_at(output):
        trace_files.refuse_to_lose(folder, "imported")
    if not result.traces:
        raise InputError("the import holds no trace")
    if len(result.traces) == 1:
        trace_files.write(next(iter(result.traces.values())), output)
        return [output]
    with replace_dir(output, _is_ours) as folder:
        for name, trace in result.traces.items():
            trace_files.write(trace, folder / name)
    return [output / name for name in result.traces]
