"""Read the traces and tables that people already have, as trace folders.

One module a format: `kineto` (torch.profiler), `nsys` (Nsight Systems SQLite), `perseus`
(Zeus/Perseus stage profiles), and `clockwright.data.sweep_csv` for sweep CSVs; `ranks` reads a
folder of recordings. `import_file` finds the format from the content. Every nanosecond is kept,
and what cannot be kept is counted by reason.
"""

from __future__ import annotations

from pathlib import Path

from .detect import detect
from .result import ImportResult, single, write_traces

__all__ = ["ImportResult", "detect", "import_file", "write_traces"]


def import_file(
    path: Path | str, *, baseline: str = "auto", drop_incomplete_pairs: bool = False
) -> ImportResult:
    """Import a file, or a folder with one recording a rank.

    Args:
        path: a Kineto trace (JSON, gzip or not), an Nsight Systems SQLite export, a Zeus/Perseus
            stage profile, a sweep CSV, or a folder of recordings.
        baseline: the clock pair to compare with. A table has rows to choose from (``auto``: the
            governor's, else the marked or highest pair); a recording ran at one pair and does not
            say which (``auto``: the governor).
        drop_incomplete_pairs: for tables, leave out a pair at which some kernel is missing.

    Raises:
        InputError: nothing to import there, or an option does not fit.
        FormatError: the content is not whole; the message says where.
    """
    path = Path(path)
    kind = detect(path)
    if kind == "sweep":
        from ...data.sweep_csv import read_sweep

        return single(
            kind,
            read_sweep(path, baseline=baseline, drop_incomplete_pairs=drop_incomplete_pairs),
        )
    if kind == "perseus":
        from .perseus import read_perseus

        return single(
            kind,
            read_perseus(path, baseline=baseline, drop_incomplete_pairs=drop_incomplete_pairs),
        )
    from .ranks import import_folder, import_recording

    if kind == "ranks":
        return import_folder(path, baseline)
    return import_recording(path, kind, baseline)
