"""The replay report: what a schedule did, block by block, and the verdict on it.

One JSON document, validated against ``schemas/report-1.json`` on write and on read. It keeps every
block, so that each interval can be computed again from the file alone. Fractions are of the
baseline: a slowdown of 0.006 is 0.6% more time, a saving of 0.15 is 15% less energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ._files import read_json, write_json
from .document import check_header, validate
from .errors import FormatError, InputError

__all__ = [
    "BASELINE",
    "REPORT_VERSION",
    "SCHEDULE",
    "SINGLE",
    "Block",
    "Comparison",
    "Estimate",
    "Prediction",
    "Report",
    "read",
    "write",
]

REPORT_VERSION = 1
_FORMAT = "clockwright-report"

BASELINE = "baseline"
SCHEDULE = "schedule"
SINGLE = "best single pair"


@dataclass(frozen=True)
class Estimate:
    """A quantity with its interval.

    Attributes:
        value: the point estimate.
        low: lower end of the interval; None where there are too few rounds for one.
        high: upper end, likewise.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Block:
    """Consecutive steps under one arm.

    Attributes:
        round: which round, from 0; a round has one block of every arm.
        position: place of the block within its round, from 0 (the order is drawn at random).
        arm: name of the arm.
        steps: steps measured, those that settle the clocks left out.
        start_ns: when the first of them began, on the GPU's clock.
        time_ns: mean time of a step.
        energy_mj: mean energy of a step; None where the GPU reports none.
        energy_error_mj: bound on its error from the counter's refresh; None where unknown.
        temperature_c: at the end of the block.
        throttle_reasons: every NVML reason bit seen during the block.
        core_mhz: SM clock reported at the end of the block.
        switches: clock requests issued during the measured steps.
    """

    round: int
    position: int
    arm: str
    steps: int
    start_ns: int
    time_ns: float
    energy_mj: float | None
    energy_error_mj: float | None = None
    temperature_c: float | None = None
    throttle_reasons: int | None = None
    core_mhz: int | None = None
    switches: int = 0


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline.

    Attributes:
        arm: the arm.
        slowdown: fraction of the baseline's time, more than it.
        saving: fraction of the baseline's energy, less than it; None where no energy was read.
        difference: ``no difference``, ``slower``, ``faster`` or ``unresolved``, in time.
    """

    arm: str
    slowdown: Estimate
    saving: Estimate | None
    difference: str


@dataclass(frozen=True)
class Prediction:
    """The schedule's promise against what was measured.

    Attributes:
        slowdown: promised slowdown.
        saving: promised saving.
        slowdown_error: measured less promised, in fractions of the baseline's time.
        saving_error: measured less promised, in fractions of the baseline's energy.
        time_agrees: the promise lies within what was measured; None if it cannot be told.
        energy_agrees: likewise for the energy.
    """

    slowdown: float
    saving: float
    slowdown_error: Estimate
    saving_error: Estimate | None
    time_agrees: bool | None
    energy_agrees: bool | None


@dataclass(frozen=True)
class Report:
    """A replay.

    Attributes:
        gpu: name, uuid, driver and ``simulated``.
        workload: as in the schedule.
        schedule: ``fingerprint``, ``kernels``, ``segments`` and, where read from one, ``path``
            and ``sha256`` of the file.
        mode: ``set`` where clocks were set, ``dry`` where every request was only counted.
        budget: ``max_slowdown``, a fraction.
        confidence: of every interval, all looks of the run together.
        settings: block length, rounds, seed and limits as they were used.
        blocks: every block, in the order of running.
        comparisons: one entry an arm other than the baseline.
        verdict: ``within``, ``over`` or ``ambiguous``, on the budget.
        prediction: promise against measurement.
        stopped: why measuring ended: ``decided``, ``narrow``, ``rounds`` or ``time``.
        coverage: share of the step's kernels that the schedule was played on.
        requests: what became of the clock requests, outcome to count.
        notes: what a reader should know.
    """

    gpu: Mapping[str, Any]
    workload: Mapping[str, Any]
    schedule: Mapping[str, Any]
    simulated: bool
    mode: str
    budget: Mapping[str, Any]
    confidence: float
    settings: Mapping[str, Any]
    blocks: tuple[Block, ...]
    comparisons: tuple[Comparison, ...]
    verdict: str
    prediction: Prediction | None
    stopped: str
    coverage: float = 1.0
    requests: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    created_by: str = ""

    def comparison(self, arm: str) -> Comparison | None:
        """The comparison of one arm, or None if it was not run."""
        return next((entry for entry in self.comparisons if entry.arm == arm), None)

    @property
    def rounds(self) -> int:
        """Whole rounds measured."""
        return 1 + max((block.round for block in self.blocks), default=-1)

    @property
    def kind(self) -> str:
        """Measured or simulated, and what cells the plan rests on where they are no simulation."""
        if not self.simulated:
            return "measured"
        planned = self.schedule.get("provenance", "simulated")
        return "simulated" if planned == "simulated" else f"simulated, plan of {planned} cells"

    def to_json(self) -> dict[str, Any]:
        """The document as written."""
        return {
            "format": _FORMAT,
            "version": REPORT_VERSION,
            "created_by": self.created_by,
            "simulated": self.simulated,
            "mode": self.mode,
            "gpu": dict(self.gpu),
            "workload": dict(self.workload),
            "schedule": dict(self.schedule),
            "budget": dict(self.budget),
            "confidence": self.confidence,
            "verdict": self.verdict,
            "stopped": self.stopped,
            "coverage": self.coverage,
            "comparisons": [asdict(entry) for entry in self.comparisons],
            "prediction": None if self.prediction is None else asdict(self.prediction),
            "requests": dict(self.requests),
            "settings": dict(self.settings),
            "blocks": [asdict(block) for block in self.blocks],
            "notes": list(self.notes),
        }


def write(report: Report, path: Path) -> None:
    """Validate and write, whole or not at all.

    Raises:
        FormatError: the report breaks its own schema (a bug) or holds a non-finite number.
        InputError: the place cannot be written.
    """
    document = report.to_json()
    validate(document, "report-1", str(path))
    write_json(Path(path), document)


def read(path: Path) -> Report:
    """Read and validate a report file.

    Raises:
        InputError: no such file.
        FormatError, VersionError: not a report of a version we read.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; a replay report is one JSON file")
    document = check_header(read_json(path), path, _FORMAT, REPORT_VERSION)
    validate(document, "report-1", str(path))
    report = _from_json(document)
    known = {entry.arm for entry in report.comparisons} | {BASELINE}
    strange = sorted({block.arm for block in report.blocks} - known)
    if strange:
        raise FormatError(f"{path}: blocks of an arm that is not compared: {strange[0]!r}")
    return report


def _estimate(entry: Mapping[str, Any] | None) -> Estimate | None:
    return None if entry is None else Estimate(**entry)


def _from_json(document: dict[str, Any]) -> Report:
    prediction = document["prediction"]
    return Report(
        gpu=document["gpu"],
        workload=document["workload"],
        schedule=document["schedule"],
        simulated=document["simulated"],
        mode=document["mode"],
        budget=document["budget"],
        confidence=document["confidence"],
        settings=document["settings"],
        blocks=tuple(Block(**entry) for entry in document["blocks"]),
        comparisons=tuple(
            Comparison(
                entry["arm"],
                Estimate(**entry["slowdown"]),
                _estimate(entry["saving"]),
                entry["difference"],
            )
            for entry in document["comparisons"]
        ),
        verdict=document["verdict"],
        prediction=None
        if prediction is None
        else Prediction(
            **{
                **prediction,
                "slowdown_error": Estimate(**prediction["slowdown_error"]),
                "saving_error": _estimate(prediction["saving_error"]),
            }
        ),
        stopped=document["stopped"],
        coverage=document["coverage"],
        requests=document["requests"],
        notes=tuple(document["notes"]),
        created_by=document["created_by"],
    )
