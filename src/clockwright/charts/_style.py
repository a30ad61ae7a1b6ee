"""What all charts share: look, the word "simulated", and writing the file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data._files import replace_file
from ..data.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLORS", "check_suffix", "describe", "figure_to", "stamp"]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B", "#A6761D")
"""Okabe and Ito's palette, told apart by colour-blind readers."""

_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "clockwright",
}


def check_suffix(path: Path) -> None:
    """Refuse a file that is neither PNG nor SVG, before anything is computed.

    Raises:
        InputError: another suffix, or the folder does not exist.
    """
    if path.suffix.lower() not in {".png", ".svg"}:
        raise InputError(f"{path}: a chart is written as .png or .svg")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the folder {path.absolute().parent} does not exist")


@contextmanager
def figure_to(path: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Yield a figure of ``size`` inches; on a clean end it is written to ``path``.

    Raises:
        InputError: the file is neither PNG nor SVG, or cannot be written.
    """
    check_suffix(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        kind = path.suffix.lower().removeprefix(".")
        # A date would make two equal charts differ.
        metadata = {"Date": None} if kind == "svg" else {"Software": "clockwright"}
        with replace_file(path) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(temporary, format=kind, metadata=metadata)


def describe(workload: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    """What ran where, as far as is known."""
    device = str(gpu["name"])
    return f"{workload['name']} on {'an unknown GPU' if device == 'unknown' else device}"


def stamp(title: str, simulated: bool, provenance: str) -> str:
    """A title that says where the numbers come from.

    Assumed responses come from a simulated GPU's model too, but stand on a timeline recorded
    elsewhere: both words are needed.
    """
    word = provenance
    if simulated:
        word = "assumed, simulated" if provenance == "assumed" else "simulated"
    return title if f"({word})" in title else f"{title} ({word})"
