"""The trace folder: what one step launches, and what each kernel costs at each clock pair.

A folder holds ``trace.json`` (identity and provenance), ``timeline.parquet``,
``signatures.parquet``, ``pairs.parquet``, ``profile.parquet`` and, where switches are known,
``switches.parquet``; columns and units are declared in `clockwright.data.tables`. Times and
energies belong to signatures, so a million launches of two hundred kernels stay small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from . import tables
from ._files import read_json, replace_dir, write_json
from .document import check_header, validate
from .errors import FormatError, InputError
from .units import GOVERNOR, ClockPair, parse_pair

__all__ = [
    "TRACE_VERSION",
    "Baseline",
    "Trace",
    "fingerprint",
    "pair_of",
    "read",
    "refuse_to_lose",
    "write",
]

TRACE_VERSION = 1
_FORMAT, _SCHEMA = "clockwright-trace", "trace-1"
_FROM_A_GPU = ("measured", "sensed", "fitted")


@dataclass(frozen=True)
class Baseline:
    """What a schedule is compared with: a whole step at a stated pair.

    Attributes:
        pair: the pair, usually the governor.
        time_ns: the step's time; None until measured or summed from the profile.
        energy_mj: the step's energy, likewise.
    """

    pair: ClockPair = GOVERNOR
    time_ns: float | None = None
    energy_mj: float | None = None


@dataclass(frozen=True)
class Trace:
    """One step of one workload on one GPU.

    Attributes:
        gpu: name, uuid, driver, vbios, power_limit_w and so on; ``simulated`` is always there.
        workload: name, options.
        provenance: one of `tables.PROVENANCES`, that of the profile as a whole.
        timeline, signatures, pairs, profile, switches: frames as `tables` declares them.
        switch_semantic: ``stall`` or ``lag`` where the device's behaviour is known.
        dropped: what the recording or import left out, reason to count.
        partial: why the trace is incomplete, or None if it is whole.
        notes: anything a reader should know.
    """

    gpu: Mapping[str, Any]
    workload: Mapping[str, Any]
    provenance: str
    timeline: pd.DataFrame
    signatures: pd.DataFrame
    pairs: pd.DataFrame
    profile: pd.DataFrame
    baseline: Baseline = field(default_factory=Baseline)
    switches: pd.DataFrame | None = None
    switch_semantic: str | None = None
    switch_min_dwell_ns: int | None = None
    cyclic: bool = True
    dropped: Mapping[str, int] = field(default_factory=dict)
    partial: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        """True if any number in the trace comes from a simulated GPU."""
        return bool(self.gpu.get("simulated")) or self.provenance == "simulated"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What must be said wherever numbers from the trace are: what is missing, then `notes`."""
        if self.partial is None:
            return self.notes
        return (f"the trace is incomplete: {self.partial}", *self.notes)

    @property
    def fingerprint(self) -> str:
        """Identity of the kernel sequence (not of its times)."""
        return fingerprint(self.timeline, self.signatures)

    def clock_pairs(self) -> tuple[ClockPair, ...]:
        """The pairs of the sweep, in the order of `pairs`."""
        return tuple(pair_of(row) for row in self.pairs.itertuples(index=False))

    def grid(self, column: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """One profile column as an array of shape (S signatures, F pairs); NaN where unknown."""
        values = np.full((len(self.signatures), len(self.pairs)), np.nan)
        rows = self.profile["signature"].to_numpy(dtype=np.int64)
        pairs = self.profile["pair"].to_numpy(dtype=np.int64)
        values[rows, pairs] = self.profile[column].to_numpy(dtype=np.float64, na_value=np.nan)
        return values

    def checked(self) -> Trace:
        """The same trace with every frame checked, and the frames checked against each other.

        Raises:
            FormatError: a column, a value or a reference between tables is wrong.
        """
        whole = replace(
            self,
            timeline=tables.TIMELINE.frame(self.timeline),
            signatures=tables.SIGNATURES.frame(self.signatures),
            pairs=tables.PAIRS.frame(self.pairs),
            profile=tables.PROFILE.frame(self.profile),
            switches=None if self.switches is None else tables.SWITCHES.frame(self.switches),
        )
        _check_references(whole)
        return whole


def pair_of(row: Any) -> ClockPair:
    """The clock pair of a row with ``core_mhz`` and ``mem_mhz``, unknown being None."""
    core, mem = row.core_mhz, row.mem_mhz
    return ClockPair(None if pd.isna(core) else int(core), None if pd.isna(mem) else int(mem))


def fingerprint(timeline: pd.DataFrame, signatures: pd.DataFrame) -> str:
    """SHA-256 over the launch signatures in launch order, with their streams.

    Streams are numbered by first appearance, since the driver's numbers differ between runs.
    """
    columns = ["name", "grid", "block", "shared_bytes", "registers", "op", "shapes"]
    texts = signatures[columns].astype("string").fillna("?").agg("|".join, axis=1).tolist()
    streams = pd.factorize(timeline["stream"])[0]
    digest = hashlib.sha256()
    launches = timeline["launches"].to_numpy(dtype=np.int64)
    for signature, stream, count in zip(timeline["signature"], streams, launches, strict=True):
        digest.update(f"{stream};{count};{texts[int(signature)]}\n".encode())
    return "sha256:" + digest.hexdigest()


def _check_references(trace: Trace) -> None:
    if not len(trace.timeline):
        raise FormatError("timeline: no kernel in the trace; record at least one step")
    for table, frame, column in (
        ("signatures", trace.signatures, "signature"),
        ("pairs", trace.pairs, "pair"),
        ("timeline", trace.timeline, "index"),
    ):
        if not np.array_equal(frame[column].to_numpy(dtype=np.int64), np.arange(len(frame))):
            raise FormatError(f"{table}.{column}: must count up from 0 without a hole")
    for table, frame in (("timeline", trace.timeline), ("profile", trace.profile)):
        if int(frame["signature"].max() if len(frame) else 0) >= len(trace.signatures):
            raise FormatError(f"{table}.signature: refers to a signature that is not there")
    if len(trace.profile) and int(trace.profile["pair"].max()) >= len(trace.pairs):
        raise FormatError("profile.pair: refers to a pair that is not there")
    if trace.profile.duplicated(["signature", "pair"]).any():
        row = int(trace.profile.duplicated(["signature", "pair"]).to_numpy().argmax())
        raise FormatError(f"profile: row {row} repeats a signature and pair already given")
    if len(set(trace.clock_pairs())) != len(trace.pairs):
        raise FormatError("pairs: a clock pair is listed twice")
    if trace.provenance not in tables.PROVENANCES:
        raise FormatError(f"provenance must be one of {', '.join(tables.PROVENANCES)}")


def _meta(trace: Trace) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": TRACE_VERSION,
        "simulated": trace.simulated,
        "provenance": trace.provenance,
        "gpu": dict(trace.gpu),
        "workload": dict(trace.workload),
        "fingerprint": trace.fingerprint,
        "kernels": len(trace.timeline),
        "signatures": len(trace.signatures),
        "clock_pairs": [str(pair) for pair in trace.clock_pairs()],
        "baseline": {
            "pair": str(trace.baseline.pair),
            "time_ns": trace.baseline.time_ns,
            "energy_mj": trace.baseline.energy_mj,
        },
        "switch_semantic": trace.switch_semantic,
        "switch_min_dwell_ns": trace.switch_min_dwell_ns,
        "cyclic": trace.cyclic,
        "dropped": dict(trace.dropped),
        "partial": trace.partial,
        "notes": list(trace.notes),
        "units": {"time": "ns", "energy": "mJ", "power": "W", "clock": "MHz"},
    }


def _is_trace(path: Path) -> bool:
    return (path / "trace.json").is_file()


def _from_a_gpu(provenance: Any, simulated: Any) -> bool:
    return provenance in _FROM_A_GPU and not simulated


def refuse_to_lose(path: Path, made: str) -> None:
    """Refuse to put what is no recording in the place of a recording of a real GPU.

    A recording takes a GPU and minutes to make again; a simulation or an import does not. What
    cannot be read may have been one.

    Args:
        path: where a trace is to be written.
        made: what the new trace is, in a word.

    Raises:
        InputError: ``path`` holds such a recording.
    """
    if not _is_trace(path):
        return
    mend = f"the new one is {made}: name another output, or delete that folder first"
    try:
        there = read_json(path / "trace.json")
        recorded = _from_a_gpu(there["provenance"], there["simulated"])
        name = there["gpu"]["name"]
    except (InputError, KeyError, TypeError):
        raise InputError(
            f"{path} holds a trace whose trace.json cannot be read, a recording perhaps, and {mend}"
        ) from None
    if recorded:
        raise InputError(f"{path} holds a {there['provenance']} trace of {name}, and {mend}")


def write(trace: Trace, path: Path) -> None:
    """Write the folder, whole or not at all; an older trace there is replaced.

    Raises:
        InputError: the place cannot be written, holds other files, or holds a recording of a real
            GPU that `refuse_to_lose` keeps.
        FormatError: the trace is not sound.
    """
    path, whole = Path(path), trace.checked()
    meta = _meta(whole)
    validate(meta, _SCHEMA, f"{path}/trace.json")
    if not _from_a_gpu(whole.provenance, whole.simulated):
        refuse_to_lose(path, "simulated" if whole.simulated else whole.provenance)
    with replace_dir(path, _is_trace) as folder:
        tables.TIMELINE.write(whole.timeline, folder / "timeline.parquet")
        tables.SIGNATURES.write(whole.signatures, folder / "signatures.parquet")
        tables.PAIRS.write(whole.pairs, folder / "pairs.parquet")
        tables.PROFILE.write(whole.profile, folder / "profile.parquet")
        if whole.switches is not None:
            tables.SWITCHES.write(whole.switches, folder / "switches.parquet")
        write_json(folder / "trace.json", meta)


def read(path: Path) -> Trace:
    """Read and check a trace folder.

    Raises:
        InputError: no such folder.
        FormatError, VersionError: it is not a whole trace of a version we read.
    """
    path = Path(path)
    if not _is_trace(path):
        raise InputError(f"{path}: not a trace folder (no trace.json in it)")
    document = path / "trace.json"
    meta = check_header(read_json(document), document, _FORMAT, TRACE_VERSION)
    validate(meta, _SCHEMA, str(document))
    switches = path / "switches.parquet"
    baseline = meta["baseline"]
    try:
        pair = parse_pair(baseline["pair"])
    except InputError as error:
        raise FormatError(f"{document}: field baseline/pair: {error}") from None
    trace = Trace(
        gpu=meta["gpu"],
        workload=meta["workload"],
        provenance=meta["provenance"],
        timeline=tables.TIMELINE.read(path / "timeline.parquet"),
        signatures=tables.SIGNATURES.read(path / "signatures.parquet"),
        pairs=tables.PAIRS.read(path / "pairs.parquet"),
        profile=tables.PROFILE.read(path / "profile.parquet"),
        baseline=Baseline(pair, baseline["time_ns"], baseline["energy_mj"]),
        switches=tables.SWITCHES.read(switches) if switches.exists() else None,
        switch_semantic=meta["switch_semantic"],
        switch_min_dwell_ns=meta["switch_min_dwell_ns"],
        cyclic=meta["cyclic"],
        dropped=meta["dropped"],
        partial=meta["partial"],
        notes=tuple(meta["notes"]),
    )
    try:
        _check_references(trace)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    told = _meta(trace)
    for key in ("fingerprint", "kernels", "signatures", "clock_pairs", "simulated"):
        if meta[key] != told[key]:
            raise FormatError(
                f"{path}: tables and trace.json disagree ({key}); files of two traces are mixed"
            )
    return trace
