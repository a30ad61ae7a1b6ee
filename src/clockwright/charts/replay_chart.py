"""Prediction against measurement: a replay report as a chart.

Left: slowdown and energy saving of every arm with their intervals, beside what the schedule
promised and the budget. Right: the rounds' own differences, so that drift and outliers show.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data._files import replace_file
from ..data.errors import InputError
from ..data.report import BASELINE, SCHEDULE, Estimate, Report
from ..data.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_chart_path", "draw_replay"]

_COLOURS = {SCHEDULE: "#0072b2"}
_OTHER = "#d55e00"
_PROMISE = "#555555"


def draw_replay(report: Report, path: Path) -> None:
    """Draw a report as PNG or SVG, by the name's ending.

    Raises:
        InputError: another ending, or the place cannot be written.
    """
    path = Path(path)
    check_chart_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(2, 2, width_ratios=[1, 1.6])
    for row, (what, title) in enumerate(
        [("slowdown", "slowdown (%)"), ("saving", "energy saving (%)")]
    ):
        _draw_estimates(axes[row, 0], report, what, title)
        _draw_rounds(axes[row, 1], report, what, title)
    figure.suptitle(_title(report), fontsize=11)
    with replace_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)


def check_chart_path(path: Path) -> None:
    """Refuse a name that no chart can be written under, before anything is measured.

    Raises:
        InputError: another ending than .png or .svg.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: a chart is written as .png or .svg")


def _title(report: Report) -> str:
    name = str(report.gpu["name"]).removesuffix(" (simulated)")
    kind = f"{report.kind}, " if report.simulated else ""
    dry = ", dry: no clock set" if report.mode == "dry" else ""
    budget = f"the budget of {report.budget['max_slowdown']:.2%}"
    told = "undecided on" if report.verdict == "ambiguous" else report.verdict
    ran = f"{kind}{counted(report.rounds, 'round')}{dry}"
    return f"{report.workload['name']} on {name} ({ran}): {told} {budget}"


def _draw_estimates(axes: Axes, report: Report, what: str, title: str) -> None:
    labels = []
    for place, entry in enumerate(report.comparisons):
        estimate: Estimate | None = getattr(entry, what)
        labels.append(entry.arm)
        if estimate is None:
            side = axes.get_xaxis_transform()
            axes.text(place, 0.5, "not measured", ha="center", fontsize=9, transform=side)
            continue
        played = "replayed, simulated" if report.simulated else "measured"
        _draw_interval(axes, place, estimate, _COLOURS.get(entry.arm, _OTHER), played)
        axes.annotate(
            f"{estimate.value:.2%}", (place + 0.08, 100 * estimate.value), fontsize=9, va="center"
        )
    if report.prediction is not None:
        place = labels.index(SCHEDULE)
        promised = report.prediction.slowdown if what == "slowdown" else report.prediction.saving
        axes.plot(
            [place - 0.18], [100 * promised], "D", color=_PROMISE, markersize=6, label="predicted"
        )
    if what == "slowdown":
        axes.axhline(
            100 * report.budget["max_slowdown"], color="black", ls="--", lw=1, label="budget"
        )
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.5, len(labels) - 0.2)
    axes.set_ylabel(title)
    axes.margins(y=0.25)
    axes.grid(axis="y", alpha=0.3)
    handles, names = axes.get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    axes.legend(list(unique.values()), list(unique), fontsize=8)


def _draw_interval(axes: Axes, place: float, estimate: Estimate, colour: str, label: str) -> None:
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    axes.errorbar(
        [place],
        [100 * estimate.value],
        yerr=[[100 * (estimate.value - low)], [100 * (high - estimate.value)]],
        fmt="o",
        color=colour,
        capsize=4,
        label=label,
    )


def _draw_rounds(axes: Axes, report: Report, what: str, title: str) -> None:
    field = "time_ns" if what == "slowdown" else "energy_mj"
    sign = 100.0 if what == "slowdown" else -100.0
    base = {b.round: getattr(b, field) for b in report.blocks if b.arm == BASELINE}
    for entry in report.comparisons:
        points = [
            (block.round + 1, sign * (value / base[block.round] - 1))
            for block in report.blocks
            if block.arm == entry.arm
            and (value := getattr(block, field)) is not None
            and base.get(block.round)
        ]
        if points:
            rounds, values = zip(*points, strict=True)
            axes.plot(rounds, values, ".", color=_COLOURS.get(entry.arm, _OTHER), label=entry.arm)
    axes.set_xlabel("round")
    axes.set_ylabel(title)
    axes.margins(y=0.2)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)
