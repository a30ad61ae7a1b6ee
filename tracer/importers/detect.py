"""Which format a file is in, by its content; names and endings are not asked."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...data.errors import FormatError, InputError
from .source import peek

__all__ = ["Format", "detect"]

Format = Literal["kineto", "nsys", "perseus", "sweep", "ranks"]

_SQLITE = b"SQLite format 3\x00"
_OTHERS = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd data; unpack it first",
    b"\xfd7zXZ": "xz data; unpack it first",
    b"PAR1": "a Parquet file; a trace folder needs no import",
    b"QDSTRM": "an Nsight Systems stream; import it with nsys, then nsys export --type sqlite",
}
_REPORTS = {".nsys-rep", ".qdrep"}


def detect(path: Path) -> Format:
    """Say which importer reads ``path``: ``ranks`` is a folder of recordings.

    Raises:
        InputError: no such file, a folder that is a trace already, or a format we do not read;
            the message says what to do.
    """
    path = Path(path)
    if path.is_dir():
        if (path / "trace.json").is_file() and (path / "timeline.parquet").exists():
            raise InputError(f"{path}: is a trace folder already; it needs no import")
        return "ranks"
    head = peek(path)
    if head.startswith(_SQLITE):
        return "nsys"
    if path.suffix in _REPORTS:
        raise InputError(
            f"{path}: an Nsight Systems report; run nsys export --type sqlite on it and import "
            "the .sqlite file"
        )
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(f"{path}: {what}")
    text = head.lstrip()
    if not text:
        raise FormatError(f"{path}: the file is empty")
    if text[:1] in {b"{", b"["}:
        return "kineto"
    if b"\x00" in head:
        raise FormatError(
            f"{path}: binary data of no kind known here; import reads Kineto JSON, Nsight Systems "
            "SQLite, Zeus/Perseus CSV and sweep CSV"
        )
    columns = _header(text)
    if {"stage", "instruction", "frequency"} <= columns:
        return "perseus"
    if "power_limit" in columns or "window_name" in columns or "power_limit_0" in columns:
        raise InputError(
            f"{path}: measured at power limits, not at clocks; a schedule of clocks needs a "
            "sweep of clock pairs"
        )
    if len(columns) < 2:
        raise FormatError(
            f"{path}: neither JSON, SQLite nor a CSV table; import reads Kineto JSON, Nsight "
            "Systems SQLite, Zeus/Perseus CSV and sweep CSV"
        )
    return "sweep"


def _header(text: bytes) -> set[str]:
    line = text.splitlines()[0].decode("utf-8", "replace")
    return {cell.strip().strip('"').lower() for cell in line.split(",")}
