"""The timeline of a schedule: core and memory clock over the step, and its phases.

With a trace, time is that of the schedule: each kernel takes its profile's duration at its pair,
after the recorded gaps (streams that overlap are drawn at their recorded times instead). Without
one, the x axis counts kernels. A clock left to the governor is drawn as a band named so.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.schedule import Schedule, check_trace
from ..data.trace import Trace
from ..data.units import counted
from ._style import COLORS, describe, figure_to, stamp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_timeline"]

Array = NDArray[np.float64]
_PHASE_COLORS = {
    "forward": "#56B4E9",
    "backward": "#E69F00",
    "optimizer": "#009E73",
    "other": "#BBBBBB",
}


@dataclass(frozen=True, eq=False)
class _Axis:
    """Where kernels begin: (N + 1,) positions on the x axis, its name, and (N,) phases."""

    edges: Array
    name: str
    phases: tuple[str, ...]


def draw_timeline(path: Path, schedule: Schedule, trace: Trace | None = None) -> None:
    """Draw the clocks a schedule chooses over one step.

    Args:
        path: PNG or SVG file.
        schedule: the schedule.
        trace: the trace it was made from, for times and phases.

    Raises:
        InputError: the file is neither PNG nor SVG, or cannot be written.
        MismatchError: the trace is another's.
    """
    if trace is not None:
        check_trace(schedule, trace)
    axis = _kernel_axis(schedule) if trace is None else _time_axis(schedule, trace)
    starts = [segment.start for segment in schedule.segments]
    edges = np.array([*axis.edges[starts], axis.edges[-1]])
    core = [segment.pair.core_mhz for segment in schedule.segments]
    mem = [segment.pair.mem_mhz for segment in schedule.segments]
    has_mem = any(clock is not None for clock in mem)
    panels = [("core clock (MHz)", core, COLORS[0])]
    if has_mem:
        panels.append(("memory clock (MHz)", mem, COLORS[1]))
    ratios = [3.0] + [2.0] * (len(panels) - 1) + ([0.35] if axis.phases else [])
    with figure_to(path, (10.0, 2.2 + 1.7 * len(panels))) as figure:
        rows = figure.subplots(
            len(ratios), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios}
        )[:, 0]
        for panel, (name, clocks, color) in zip(rows, panels, strict=False):
            _draw_clock(panel, edges, clocks, name, color)
        if axis.phases:
            _draw_phases(rows[-1], axis)
        for panel in rows[:-1]:
            panel.tick_params(labelbottom=False)
        rows[-1].set_xlabel(axis.name)
        rows[-1].set_xlim(float(axis.edges[0]), float(axis.edges[-1]))
        rows[0].set_title(_title(schedule), fontsize=11)


def _title(schedule: Schedule) -> str:
    head = stamp(describe(schedule.workload, schedule.gpu), schedule.simulated, schedule.provenance)
    cost = schedule.predicted
    segments = counted(len(schedule.segments), "segment")
    return (
        f"{head}\n{segments}, predicted saving {cost.saving:.2%} at "
        f"{cost.slowdown:+.2%} time, against {schedule.baseline_pair}"
    )


def _kernel_axis(schedule: Schedule) -> _Axis:
    kernels = int(schedule.trace["kernels"])
    return _Axis(np.arange(kernels + 1, dtype=np.float64), "kernel of the step", ())


def _time_axis(schedule: Schedule, trace: Trace) -> _Axis:
    timeline = trace.timeline
    phases = tuple(timeline["phase"].astype(str))
    begin = timeline["start_ns"].to_numpy(dtype=np.int64)
    recorded = timeline["duration_ns"].to_numpy(dtype=np.int64)
    end = begin + recorded
    column = {pair: number for number, pair in enumerate(trace.clock_pairs())}
    chosen = np.array([column.get(pair, -1) for pair in schedule.pair_per_kernel()])
    rows = timeline["signature"].to_numpy(dtype=np.int64)
    scale = timeline["launches"].to_numpy(dtype=float) * timeline["time_scale"].to_numpy(
        dtype=float, na_value=1.0
    )
    takes = trace.grid("duration_ns")[rows, chosen] * scale
    serial = bool(np.all(begin[1:] >= end[:-1]))
    if serial and (chosen >= 0).all() and np.isfinite(takes).all():
        gaps = np.concatenate([[0], begin[1:] - end[:-1]])
        edges = np.concatenate([[0.0], np.cumsum(takes + np.append(gaps[1:], 0))])
        name = "time under the schedule"
    else:
        ordered = np.maximum.accumulate(begin)
        edges = np.append(ordered, end.max()).astype(np.float64)
        name = "time as recorded at the baseline"
    unit, per_unit = ("ms", 1e6) if edges[-1] >= 1e6 else ("µs", 1e3)
    return _Axis(edges / per_unit, f"{name} ({unit})", phases)


def _draw_clock(axes: Axes, edges: Array, clocks: list[int | None], name: str, color: str) -> None:
    known = [clock for clock in clocks if clock is not None]
    values = np.array([np.nan if clock is None else clock for clock in clocks], dtype=float)
    axes.stairs(values, edges, color=color, linewidth=1.4, baseline=None)
    for number, clock in enumerate(clocks):
        if clock is None:
            axes.axvspan(edges[number], edges[number + 1], color="#DDDDDD", linewidth=0)
    if len(known) < len(clocks):
        axes.plot([], [], color="#DDDDDD", linewidth=6, label="left to the governor")
        axes.legend(loc="upper right", fontsize=8)
    axes.set_ylabel(name)
    low, high = (min(known), max(known)) if known else (0, 1)
    room = max(0.08 * (high - low), 0.02 * high)
    axes.set_ylim(low - room, high + room)
    levels = sorted(set(known), reverse=True)
    if len(levels) <= 6:
        axes.set_yticks(_apart(levels, 0.09 * (high - low + 2 * room)))


def _apart(levels: list[int], least: float) -> list[int]:
    """Ticks from the highest down, without those whose labels would touch the one above."""
    kept: list[int] = []
    for level in levels:
        if not kept or kept[-1] - level >= least:
            kept.append(level)
    return kept


def _draw_phases(axes: Axes, axis: _Axis) -> None:
    phases = axis.phases
    bounds = [0, *(i for i in range(1, len(phases)) if phases[i] != phases[i - 1]), len(phases)]
    whole = float(axis.edges[-1] - axis.edges[0])
    for start, stop in pairwise(bounds):
        left, right = float(axis.edges[start]), float(axis.edges[stop])
        name = phases[start]
        axes.axvspan(left, right, color=_PHASE_COLORS.get(name, "#BBBBBB"), linewidth=0)
        if right - left > 0.012 * len(name) * whole:
            axes.text(
                (left + right) / 2, 0.5, name, ha="center", va="center", fontsize=8.5, clip_on=True
            )
    axes.set_yticks([])
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    _name_unlabelled(axes, phases)


def _name_unlabelled(axes: Axes, phases: tuple[str, ...]) -> None:
    """A legend for the phases, since a short one has no room for its name."""
    shown: list[Any] = [
        axes.plot([], [], color=_PHASE_COLORS[name], linewidth=6, label=name)[0]
        for name in _PHASE_COLORS
        if name in set(phases)
    ]
    axes.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, -1.9), ncols=4, fontsize=8)
