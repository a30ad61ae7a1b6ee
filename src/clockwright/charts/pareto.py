"""Energy against time: fronts under several switch models, with every baseline marked.

The x axis is the step's slowdown against the baseline, the y axis its energy, with the saving on
the right. Dotted under each front is its lower bound: where the two meet, the front is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ._style import COLORS, figure_to, stamp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Curve", "Mark", "draw_pareto"]


@dataclass(frozen=True)
class Curve:
    """A front: budgets and slowdowns in fractions, energies in mJ, by rising slowdown.

    Attributes:
        label: for the legend.
        slowdown: the schedules' own slowdowns.
        energy_mj: their energies.
        bound_slowdown: budgets at which a bound is known.
        bound_mj: the bounds there.
    """

    label: str
    slowdown: tuple[float, ...]
    energy_mj: tuple[float, ...]
    bound_slowdown: tuple[float, ...] = ()
    bound_mj: tuple[float, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A single point with a name."""

    label: str
    slowdown: float
    energy_mj: float


def draw_pareto(
    path: Path,
    curves: Sequence[Curve],
    marks: Sequence[Mark],
    *,
    title: str,
    simulated: bool,
    provenance: str,
    baseline_mj: float,
    baseline_name: str,
    singles: Sequence[tuple[float, float]] = (),
    budget: float | None = None,
    max_slowdown: float = 0.2,
) -> None:
    """Draw a Pareto chart to a PNG or SVG file.

    Args:
        path: the file.
        curves: the fronts.
        marks: the baselines.
        title: what and where, without provenance.
        simulated: True if any number comes from a simulated GPU; the title says so.
        provenance: else where the numbers come from.
        baseline_mj: the energy the saving is relative to.
        baseline_name: its name, for the axes.
        singles: (slowdown, energy in mJ) of every single pair, drawn as small dots.
        budget: slowdown at which the baselines were chosen, drawn as a line.
        max_slowdown: right end of the x axis; points beyond are left out.

    Raises:
        InputError: the file is neither PNG nor SVG, or cannot be written.
    """
    unit, per_unit = ("J", 1e3) if baseline_mj >= 1e3 else ("mJ", 1.0)
    with figure_to(path, (9.0, 5.6)) as figure:
        axes = figure.add_subplot()
        for number, curve in enumerate(curves):
            color = COLORS[number % len(COLORS)]
            _draw_curve(axes, curve, color, per_unit, number, max_slowdown)
        _draw_singles(axes, singles, per_unit, max_slowdown)
        for number, mark in enumerate(marks):
            _draw_mark(axes, mark, number, per_unit, unit)
        if budget is not None:
            axes.axvline(budget * 100, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(
                f"budget {budget:.2%}",
                (budget * 100, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(4, -4),
                textcoords="offset points",
                va="top",
                fontsize=8,
                color="#666666",
            )
        _limits(axes, curves, marks, per_unit, max_slowdown)
        axes.set_xlabel(f"slowdown against {baseline_name} (%)")
        axes.set_ylabel(f"energy of a step ({unit})")
        base = baseline_mj / per_unit
        right = axes.secondary_yaxis(
            "right",
            functions=(
                lambda energy: (1 - np.asarray(energy, dtype=float) / base) * 100,
                lambda saving: (1 - np.asarray(saving, dtype=float) / 100) * base,
            ),
        )
        right.set_ylabel("energy saved (%)")
        axes.set_title(stamp(title, simulated, provenance), fontsize=11)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)


def _draw_curve(
    axes: Axes, curve: Curve, color: str, per_unit: float, number: int, max_slowdown: float
) -> None:
    # The last schedule of a front is still there for whoever allows more.
    axes.plot(
        [x * 100 for x in (*curve.slowdown, *([max_slowdown] if curve.slowdown else []))],
        [e / per_unit for e in (*curve.energy_mj, *curve.energy_mj[-1:])],
        color=color,
        linewidth=1.8,
        drawstyle="steps-post",
        label=curve.label,
        zorder=3,
    )
    if curve.bound_mj:
        axes.plot(
            [x * 100 for x in curve.bound_slowdown],
            [e / per_unit for e in curve.bound_mj],
            color=color,
            linewidth=1.0,
            linestyle=":",
            # Between two budgets only the bound of the larger one holds.
            drawstyle="steps-pre",
            label="lower bounds (dotted)" if number == 0 else None,
            zorder=2,
        )


def _draw_singles(
    axes: Axes, singles: Sequence[tuple[float, float]], per_unit: float, max_slowdown: float
) -> None:
    shown = [(x, e) for x, e in singles if x <= max_slowdown]
    if shown:
        axes.scatter(
            [x * 100 for x, _ in shown],
            [e / per_unit for _, e in shown],
            s=9,
            color="#9a9a9a",
            linewidths=0,
            label="every single pair",
            zorder=1,
        )


_SHAPES = ("o", "s", "D", "^", "v", "P", "X", "*")


def _draw_mark(axes: Axes, mark: Mark, number: int, per_unit: float, unit: str) -> None:
    axes.scatter(
        [mark.slowdown * 100],
        [mark.energy_mj / per_unit],
        s=130 - 14 * min(number, 6),  # marks that coincide stay visible under one another
        marker=_SHAPES[number % len(_SHAPES)],
        color=COLORS[-1 - number % len(COLORS)],
        edgecolors="white",
        linewidths=0.8,
        label=f"{mark.label}: {mark.slowdown:+.2%} time, {mark.energy_mj / per_unit:.4g} {unit}",
        zorder=5,
    )


def _limits(
    axes: Axes,
    curves: Sequence[Curve],
    marks: Sequence[Mark],
    per_unit: float,
    max_slowdown: float,
) -> None:
    """Show the curves and marks whole; single pairs that would dwarf them are cut off."""
    xs = [x for curve in curves for x in curve.slowdown] + [mark.slowdown for mark in marks]
    energies = [e for curve in curves for e in (*curve.energy_mj, *curve.bound_mj)]
    energies += [mark.energy_mj for mark in marks if mark.slowdown <= max_slowdown]
    if not energies:
        return
    low, high = min(energies) / per_unit, max(energies) / per_unit
    room = max(high - low, 0.01 * high) * 0.08
    axes.set_ylim(low - room, high + room)
    left = min(0.0, max(min(xs, default=0.0), -max_slowdown))
    width = max_slowdown - left
    axes.set_xlim((left - 0.02 * width) * 100, (max_slowdown + 0.01 * width) * 100)
