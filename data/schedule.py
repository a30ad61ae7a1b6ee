"""The schedule file: which clock pair each stretch of the step runs at, and the proof behind it.

One JSON document, validated against ``schemas/schedule-1.json`` on write and on read. It is data:
nothing in it is ever evaluated. Kernel indexes are positions in the trace's timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ._files import read_json, write_json
from .document import check_header, validate
from .errors import FormatError, InputError, MismatchError
from .trace import Trace
from .units import ClockPair, parse_pair

__all__ = [
    "SCHEDULE_VERSION",
    "Alternative",
    "Anchor",
    "Cost",
    "Predicted",
    "Proof",
    "Schedule",
    "Segment",
    "check_trace",
    "read",
    "validate",
    "write",
]

SCHEDULE_VERSION = 1
_FORMAT = "clockwright-schedule"


@dataclass(frozen=True)
class Anchor:
    """A place in the model where eager replay can fire a trigger.

    Attributes:
        module: module path; '' is the whole model.
        edge: ``forward_pre``, ``forward_post``, ``backward_pre``, ``backward_post``,
            ``optimizer_pre``, ``optimizer_post`` or ``step_start``.
        occurrence: which firing of that edge within the step, from 0.
    """

    module: str
    edge: str
    occurrence: int = 0


@dataclass(frozen=True)
class Segment:
    """Kernels ``start`` to ``end`` (exclusive) run at ``pair``.

    ``trigger`` is the kernel index just before which the request is issued: ``start`` itself
    where a switch stalls, earlier where it lags (it may lie in the step before, when it is
    greater than ``start``).
    """

    start: int
    end: int
    pair: ClockPair
    trigger: int
    anchor: Anchor | None = None


@dataclass(frozen=True)
class Cost:
    """Time and energy of one step."""

    time_ns: float
    energy_mj: float


@dataclass(frozen=True)
class Predicted:
    """What the optimizer expects of one step under the schedule, re-evaluated exactly.

    ``slowdown`` and ``saving`` are fractions of the baseline; intervals are (low, high) fractions
    at the budget's confidence, or None where the trace carries no spread.
    """

    time_ns: float
    energy_mj: float
    slowdown: float
    saving: float
    slowdown_interval: tuple[float, float] | None = None
    saving_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Alternative:
    """A baseline beside the schedule: governor, best single pair, pass-level, power cap, ..."""

    name: str
    time_ns: float
    energy_mj: float
    slowdown: float
    saving: float
    pairs: tuple[str, ...] = ()
    within_budget: bool = True
    note: str = ""


@dataclass(frozen=True)
class Proof:
    """No schedule within the budget uses less than ``lower_bound_mj``; ``gap`` is relative."""

    lower_bound_mj: float
    gap: float
    method: str
    status: str
    seconds: float | None = None


@dataclass(frozen=True)
class Schedule:
    """A schedule with its identity, prediction, baselines and proof.

    Attributes:
        gpu, workload: as in the trace.
        trace: ``fingerprint`` and ``kernels`` of the trace it was made from.
        budget: ``max_slowdown`` (fraction) and ``confidence`` (fraction or None).
        switch_model: ``semantic``, ``source`` and its costs.
        recommendation: ``schedule``, ``best single pair`` or ``baseline``: what is worth running.
    """

    gpu: Mapping[str, Any]
    workload: Mapping[str, Any]
    trace: Mapping[str, Any]
    simulated: bool
    provenance: str
    budget: Mapping[str, Any]
    switch_model: Mapping[str, Any]
    segments: tuple[Segment, ...]
    baseline: Cost
    baseline_pair: ClockPair
    predicted: Predicted
    proof: Proof
    baselines: tuple[Alternative, ...] = ()
    recommendation: str = "schedule"
    cyclic: bool = True
    notes: tuple[str, ...] = ()
    created_by: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def pair_per_kernel(self) -> list[ClockPair]:
        """The pair of each kernel, in timeline order, length ``trace['kernels']``."""
        pairs: list[ClockPair] = []
        for segment in self.segments:
            pairs.extend([segment.pair] * (segment.end - segment.start))
        return pairs

    def to_json(self) -> dict[str, Any]:
        """The document as written."""
        return {
            "format": _FORMAT,
            "version": SCHEDULE_VERSION,
            "created_by": self.created_by,
            "simulated": self.simulated,
            "provenance": self.provenance,
            "gpu": dict(self.gpu),
            "workload": dict(self.workload),
            "trace": dict(self.trace),
            "cyclic": self.cyclic,
            "budget": dict(self.budget),
            "switch_model": dict(self.switch_model),
            "baseline": {**asdict(self.baseline), "pair": str(self.baseline_pair)},
            "predicted": _plain(asdict(self.predicted)),
            "proof": asdict(self.proof),
            "recommendation": self.recommendation,
            "baselines": [_plain(asdict(entry)) for entry in self.baselines],
            "segments": [_segment_json(segment) for segment in self.segments],
            "notes": list(self.notes),
            "extra": dict(self.extra),
        }


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in document.items()
    }


def _segment_json(segment: Segment) -> dict[str, Any]:
    return {
        "start": segment.start,
        "end": segment.end,
        "core_mhz": segment.pair.core_mhz,
        "mem_mhz": segment.pair.mem_mhz,
        "trigger": segment.trigger,
        "anchor": None if segment.anchor is None else asdict(segment.anchor),
    }


def _check_segments(segments: list[dict[str, Any]], kernels: int, where: str) -> None:
    expected = 0
    for number, segment in enumerate(segments):
        if segment["start"] != expected or segment["end"] <= segment["start"]:
            raise FormatError(
                f"{where}: segment {number} covers kernels {segment['start']} to {segment['end']}, "
                f"expected to start at {expected}: segments must follow one another without a hole"
            )
        if not 0 <= segment["trigger"] < kernels:
            raise FormatError(f"{where}: segment {number} has its trigger outside the step")
        expected = segment["end"]
    if expected != kernels:
        raise FormatError(f"{where}: segments end at kernel {expected}, the step has {kernels}")


def write(schedule: Schedule, path: Path) -> None:
    """Validate and write, whole or not at all.

    Raises:
        FormatError: the schedule breaks its own schema (a bug) or holds a non-finite number.
        InputError: the place cannot be written.
    """
    document = schedule.to_json()
    validate(document, "schedule-1", str(path))
    _check_segments(document["segments"], schedule.trace["kernels"], str(path))
    write_json(Path(path), document)


def read(path: Path) -> Schedule:
    """Read and validate a schedule file.

    Raises:
        InputError: no such file.
        FormatError, VersionError: not a schedule of a version we read.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; a schedule is one JSON file")
    document = check_header(read_json(path), path, _FORMAT, SCHEDULE_VERSION)
    validate(document, "schedule-1", str(path))
    _check_segments(document["segments"], document["trace"]["kernels"], str(path))
    return _from_json(document)


def _from_json(document: dict[str, Any]) -> Schedule:
    predicted = dict(document["predicted"])
    for key in ("slowdown_interval", "saving_interval"):
        predicted[key] = None if predicted.get(key) is None else tuple(predicted[key])
    segments = tuple(
        Segment(
            entry["start"],
            entry["end"],
            ClockPair(entry["core_mhz"], entry["mem_mhz"]),
            entry["trigger"],
            None if entry["anchor"] is None else Anchor(**entry["anchor"]),
        )
        for entry in document["segments"]
    )
    baseline = document["baseline"]
    return Schedule(
        gpu=document["gpu"],
        workload=document["workload"],
        trace=document["trace"],
        simulated=document["simulated"],
        provenance=document["provenance"],
        budget=document["budget"],
        switch_model=document["switch_model"],
        segments=segments,
        baseline=Cost(baseline["time_ns"], baseline["energy_mj"]),
        baseline_pair=parse_pair(baseline["pair"]),
        predicted=Predicted(**predicted),
        proof=Proof(**document["proof"]),
        baselines=tuple(
            Alternative(**{**entry, "pairs": tuple(entry["pairs"])})
            for entry in document["baselines"]
        ),
        recommendation=document["recommendation"],
        cyclic=document["cyclic"],
        notes=tuple(document["notes"]),
        created_by=document["created_by"],
        extra=document["extra"],
    )


def check_trace(schedule: Schedule, trace: Trace, *, sequence: bool = True) -> None:
    """Refuse a schedule made for another kernel sequence, or for another kind of GPU.

    Args:
        schedule: the schedule.
        trace: the trace.
        sequence: compare the kernel sequences too.

    Raises:
        MismatchError: the fingerprints or the GPUs' names differ.
    """
    made_for, here = schedule.gpu.get("name"), trace.gpu.get("name")
    if made_for != here:
        raise MismatchError(
            f"the schedule was made for {made_for}, and this trace is of {here}: its clocks and "
            "its kernels' times are others; optimize this trace first"
        )
    if sequence and schedule.trace["fingerprint"] != trace.fingerprint:
        raise MismatchError(
            f"the schedule was made for another trace: it covers {schedule.trace['kernels']} "
            f"kernels ({schedule.trace['fingerprint'][:19]}), this trace has "
            f"{len(trace.timeline)} ({trace.fingerprint[:19]}); optimize this trace first"
        )
