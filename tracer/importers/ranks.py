"""Recordings of one or several ranks, each a trace of its own.

Ranks are told apart by what their file says (``distributedInfo``), else by its name, never by the
device: with one GPU visible to each process, every rank calls its GPU device 0. Clocks of
different ranks are not compared, so each trace has its own zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ...data.errors import FormatError, InputError
from .assemble import Built, baseline_pair, build_traces
from .detect import detect
from .kineto import read_kineto
from .nsys import read_nsys
from .recording import Recording
from .result import ImportResult, merge, unique_name

__all__ = ["import_folder", "import_recording"]

_RANK = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_READERS: dict[str, Callable[[Path], Recording]] = {"kineto": read_kineto, "nsys": read_nsys}


class _Sum:
    """The traces so far and the counts over all files."""

    def __init__(self) -> None:
        self.built: dict[str, Built] = {}
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.other_events: Counter[str] = Counter()

    def add(self, recording: Recording, path: Path, name: str, baseline: str) -> None:
        self.dropped += recording.dropped
        self.repaired += recording.repaired
        self.other_events += recording.other_events
        traces = build_traces(recording, path.name, baseline)
        for one in traces:
            # A process that drives several GPUs: the device tells its traces apart.
            wanted = name if len(traces) == 1 else f"{name}-device{one.name}"
            self.built[unique_name(wanted, self.built)] = one

    def result(self, kind: str) -> ImportResult:
        return merge(kind, self.built, self.dropped, self.repaired, self.other_events)


def import_recording(path: Path, kind: str, baseline: str) -> ImportResult:
    """Import one recording.

    Raises:
        InputError, FormatError: it is no whole recording of that kind, or has no GPU kernel.
    """
    baseline_pair(baseline)
    recording = _READERS[kind](path)
    if recording.kernels.empty:
        raise FormatError(f"{path}: {_no_kernels(recording)}")
    total = _Sum()
    total.add(recording, path, f"rank{recording.rank or 0}", baseline)
    return total.result(kind)


def import_folder(path: Path, baseline: str) -> ImportResult:
    """Import every recording in a folder and in the folders right below it, one rank a file.

    Files that are no recording, and ranks without a GPU kernel, are left out and counted.

    Raises:
        InputError: no recording there; or one of them cannot be read (none is imported then).
    """
    baseline_pair(baseline)
    total = _Sum()
    kinds = set()
    last = ""
    for file in _files(path):
        try:
            kind = detect(file)
        except InputError:
            kind = "sweep"
        if kind not in _READERS:
            total.dropped["file that is no recording"] += 1
            continue
        recording = _READERS[kind](file)
        if recording.kernels.empty:
            last = f"{file.name}: {_no_kernels(recording)}"
            total.dropped["file without a GPU kernel"] += 1
            continue
        total.add(recording, file, _rank_name(file, recording), baseline)
        kinds.add(kind)
    if not total.built:
        raise InputError(
            f"{path}: no recording of a GPU in this folder ({last})"
            if last
            else f"{path}: no recording in this folder; expected one Kineto JSON file a rank"
        )
    return total.result("+".join(sorted(kinds)))


def _files(path: Path) -> list[Path]:
    try:
        found = [*path.iterdir(), *path.glob("*/*")]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    files = [f for f in found if f.is_file() and not f.name.startswith(".")]
    return sorted(files, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort rank10 behind rank9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _SPLIT.split(str(path))]


_SPLIT = re.compile(r"(\d+)")


def _rank_name(file: Path, recording: Recording) -> str:
    if recording.rank is not None:
        return f"rank{recording.rank}"
    match = _RANK.search(file.name) or _RANK.search(file.parent.name)
    return f"rank{int(match[1])}" if match else file.name.split(".")[0]


def _no_kernels(recording: Recording) -> str:
    if recording.dropped:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in recording.dropped.items())
        return f"no usable GPU kernel in the trace ({reasons})"
    found = ", ".join(f"{count} {kind}" for kind, count in recording.other_events.most_common(4))
    return (
        f"no GPU kernel in the trace (it has {found or 'no events'}); "
        "record with the GPU's activities on (ProfilerActivity.CUDA, nsys -t cuda)"
    )
