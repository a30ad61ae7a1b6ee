"""Other tools' files become traces: Kineto, Nsight Systems, Zeus/Perseus, sweep CSV.

The format is found from the content. Never imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import ImportResult

__all__ = ["import_file", "write_traces"]


def import_file(
    path: Path, *, baseline: str = "auto", drop_incomplete_pairs: bool = False
) -> ImportResult:
    """Read a file, or a folder of ranks, in whatever format it is.

    Args:
        path: the file or folder.
        baseline: ``auto``, ``governor`` or ``CORE/MEM``: what a schedule is compared with.
        drop_incomplete_pairs: for tables, leave out pairs at which some kernel is missing.

    Raises:
        InputError, FormatError: no such file, or not one that can be read; says where and why.
    """
    from .detect import detect
    from .result import single

    kind = detect(Path(path))
    if kind == "sweep":
        from ...data.sweep_csv import read_sweep

        trace = read_sweep(path, baseline=baseline, drop_incomplete_pairs=drop_incomplete_pairs)
        return single("sweep", trace)
    if kind == "perseus":
        from .perseus import read_perseus

        return single("perseus", read_perseus(Path(path), baseline=baseline))
    from .ranks import import_recordings

    return import_recordings(Path(path), baseline=baseline)


def write_traces(result: ImportResult, output: Path) -> list[Path]:
    """Write an import's traces; see `clockwright.tracer.importers.result.write_traces`."""
    from .result import write_traces as write

    return write(result, output)
