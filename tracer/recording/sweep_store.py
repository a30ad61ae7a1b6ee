"""The folder of a sweep under way: one result a clock pair, so that a second run continues.

``sweep.json`` says which step on which GPU; ``pairs/`` holds a one-pair trace for each measured
pair, written whole or not at all; ``raw/`` what the instrument left. A sweep of another step or
another GPU is refused rather than mixed in.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...data import trace as trace_file
from ...data._files import read_json, write_json
from ...data.document import check_header
from ...data.errors import FormatError, InputError, MismatchError
from ...data.trace import Trace
from ...data.units import ClockPair, parse_pair
from ..gpu.protocol import GpuInfo

__all__ = ["SweepStore"]

_FORMAT, _VERSION = "clockwright-sweep", 1


class SweepStore:
    """Results of one sweep in a folder; made by `open`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path, workload: Mapping[str, Any], gpu: GpuInfo) -> SweepStore:
        """Begin a sweep in ``folder``, or go on with the one there.

        Raises:
            MismatchError: the one there is of another step, GPU, driver or power limit.
            InputError: the folder holds something else, or cannot be written.
        """
        identity = _identity(workload, gpu)
        marker = folder / "sweep.json"
        if marker.exists():
            _check_same(folder, read_json(marker), identity)
            return cls(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                f"{folder} is not a clockwright sweep; move it, or name another output"
            )
        try:
            (folder / "pairs").mkdir(parents=True)
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror}") from error
        write_json(marker, {"format": _FORMAT, "version": _VERSION, **identity})
        return cls(folder)

    def measured(self) -> dict[ClockPair, Trace]:
        """Every result so far, by requested pair, in the order of measuring."""
        found = []
        for path in (self.folder / "pairs").iterdir():
            if path.name.startswith("."):  # cut off while it was written
                shutil.rmtree(path, ignore_errors=True)
                continue
            marker = path / "trace.json"
            found.append((marker.stat().st_mtime_ns if marker.exists() else 0, path))
        return {_pair_of(path): trace_file.read(path) for _, path in sorted(found)}

    def raw_folder(self, pair: ClockPair) -> Path:
        """An empty folder for one measurement's raw files."""
        path = self.folder / "raw" / _name_of(pair)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def keep(self, pair: ClockPair, trace: Trace) -> Trace:
        """Write one pair's result, its row labelled with the pair; returns it so labelled."""
        if len(trace.pairs) != 1:
            raise FormatError(f"a measurement at {pair} gave {len(trace.pairs)} pair rows, not one")
        row = trace.pairs.copy()
        for column, value in (("core_mhz", pair.core_mhz), ("mem_mhz", pair.mem_mhz)):
            row[column] = row[column].astype("Int32")
            row.loc[:, column] = value
        labelled = replace(trace, pairs=row).checked()
        trace_file.write(labelled, self.folder / "pairs" / _name_of(pair))
        return labelled


def _name_of(pair: ClockPair) -> str:
    return str(pair).replace("/", "-")


def _pair_of(path: Path) -> ClockPair:
    return parse_pair(path.name.replace("-", "/"))


def _identity(workload: Mapping[str, Any], gpu: GpuInfo) -> dict[str, Any]:
    return {
        "workload": {
            "name": workload["name"],
            "options": dict(workload.get("options") or {}),
            "fingerprint": workload.get("fingerprint"),
        },
        "gpu": {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "driver": gpu.driver,
            "vbios": gpu.vbios,
            "power_limit_w": gpu.power_limit_w,
        },
    }


def _check_same(folder: Path, found: Any, wanted: dict[str, Any]) -> None:
    check_header(found, folder / "sweep.json", _FORMAT, _VERSION)
    for group in ("workload", "gpu"):
        before = found.get(group)
        for key, value in wanted[group].items():
            old = before.get(key) if isinstance(before, dict) else None
            if old != value:
                raise MismatchError(
                    f"the sweep in {folder} was begun with another {group} ({key} was {old!r}, is "
                    f"{value!r}); name another output, or remove that folder to begin anew"
                )
