"""From a trace to the problem: which kernels in which order, at what cost, against what baseline.

A kernel costs its signature's profile cell, times its launches and its own scale. Idle gaps are
those of the recorded timeline and last the same at every pair. Where kernels overlap on several
streams the step is laid out as `streams` says, and the problem has a relaxation for the bound.
The baseline's time and energy are the same sums over the baseline's own cells, so that what the
profile misses of a step cancels; a baseline without cells uses the step's own measurement.

Left out: the gap between one step and the next, which a timeline of one step does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InputError
from ..data.schedule import Anchor
from ..data.trace import Trace
from ..data.units import GOVERNOR, ClockPair, parse_pair
from .anchors import find_anchors
from .capped import capped_pairs, choosable, unheld_pairs
from .problem import Problem
from .streams import Layout, lay_out
from .switch_model import Free, SwitchModel

__all__ = ["Step", "from_trace"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Step:
    """A problem with its way back to the trace.

    Attributes:
        trace: the trace it was made from.
        problem: what the solver minimises.
        relaxed: a problem no schedule of the trace takes less time in, for the lower bound; None
            where no kernels overlap and ``problem`` itself is exact.
        layout: the slices of the step.
        signatures: (S,) the trace's signature of each row of the tables below.
        columns: (F,) the trace's pair of each of the problem's pairs.
        baseline: index of the baseline among the problem's pairs, None if it has no cells.
        sd: (S, F) standard deviations of the cells' means, ns and mJ; None if none is known.
        n: (S, F) measurements behind each cell; NaN where unknown.
        scales: (N,) factors of each timeline row, on time and on energy, launches included.
        anchors: the anchor of each timeline row.
        capped: (F,) pairs at which the power cap slowed the step as a whole.
        unheld: (F,) pairs whose cells were measured under the cap; never chosen.
        notes: what a reader should know.
    """

    trace: Trace
    problem: Problem
    relaxed: Problem | None
    layout: Layout
    signatures: Ints
    columns: Ints
    baseline: int | None
    sd: tuple[Array, Array] | None
    n: Array
    scales: tuple[Array, Array]
    anchors: tuple[Anchor | None, ...] | None
    tables: tuple[Array, Array]
    capped: NDArray[np.bool_]
    unheld: NDArray[np.bool_]
    notes: tuple[str, ...]

    def with_switch(self, switch: SwitchModel) -> Step:
        """The same step under another switch model, which may bar capped pairs."""
        governor = np.array([pair.is_governor for pair in self.problem.pairs])
        allowed = choosable(governor, self.capped, self.unheld, switch)
        problem = replace(self.problem, switch=switch, allowed=allowed)
        relaxed = self.relaxed
        if relaxed is not None:
            relaxed = replace(relaxed, switch=switch, allowed=allowed)
        return replace(self, problem=problem, relaxed=relaxed)

    def with_tables(self, time_ns: Array, energy_mj: Array) -> Step:
        """The same step with other (S, F) cells; the baseline follows them if it has cells."""
        problem, relaxed = _problems(self, time_ns, energy_mj)
        return replace(self, problem=problem, relaxed=relaxed, tables=(time_ns, energy_mj))

    def rows(self) -> Ints:
        """(N,) the row of the tables of each timeline row."""
        return np.searchsorted(self.signatures, _integers(self.trace, "signature"))

    def makespan_ns(self, choice: NDArray[np.int32], stalls_ns: Array | None = None) -> float:
        """The step's time at a choice, played stream by stream; stalls None are 0."""
        rows, scale = self.rows(), self.scales[0]
        table = self.tables[0]
        stalls = np.zeros(len(choice)) if stalls_ns is None else stalls_ns
        return self.layout.makespan_ns(
            lambda row, pair: float(scale[row] * table[rows[row], pair]),
            choice.tolist(),
            stalls.tolist(),
        )


def from_trace(
    trace: Trace,
    *,
    baseline: str = "auto",
    drop_incomplete_pairs: bool = False,
    switch: SwitchModel | None = None,
    anchors: str = "any",
) -> Step:
    """Make the problem of a trace.

    Args:
        trace: the trace; every kernel must have a time and an energy at every pair.
        baseline: ``auto`` (the trace's own; else the governor's row; else the highest pair),
            ``governor``, or ``CORE/MEM``.
        drop_incomplete_pairs: leave out pairs at which some kernel lacks a cell.
        switch: the switch model; None is free. Its matrices follow the problem's pairs.
        anchors: ``any`` kernel may be switched at, or only those at a ``module`` edge.

    Raises:
        FormatError: the trace's tables are not sound.
        InputError: a cell is missing, the baseline is not in the table, no pair is left.
    """
    if anchors not in {"any", "module"}:
        raise InputError(f"anchors must be any or module, got {anchors!r}")
    trace = trace.checked()
    used = np.unique(_integers(trace, "signature"))
    base_pair = _baseline_pair(trace, baseline)
    columns, notes = _columns(trace, used, base_pair, drop_incomplete_pairs)
    pairs = [trace.clock_pairs()[int(column)] for column in columns]
    grid = np.ix_(used, columns)
    tables = trace.grid("duration_ns")[grid], trace.grid("energy_mj")[grid]
    launches = trace.timeline["launches"].to_numpy(dtype=float)
    scales = (
        launches * trace.timeline["time_scale"].to_numpy(dtype=float, na_value=1.0),
        launches * trace.timeline["energy_scale"].to_numpy(dtype=float, na_value=1.0),
    )
    layout = lay_out(
        _integers(trace, "start_ns"), _integers(trace, "duration_ns"), _integers(trace, "stream")
    )
    # A placeholder problem carries what does not depend on the cells.
    blank = Problem(
        tuple(pairs),
        np.ones((1, len(pairs))),
        np.ones((1, len(pairs))),
        np.zeros(len(layout.chain), dtype=np.int32),
        1.0,
        1.0,
        base_pair,
        gap_ns=layout.gap_ns if layout.gap_ns.any() else None,
        idle_power_w=_idle_power(trace, columns, layout, notes),
        switch=Free() if switch is None else switch,
        cyclic=trace.cyclic,
    )
    found = tuple(find_anchors(trace.timeline)) if anchors == "module" else None
    if found is not None:
        blank = replace(blank, boundary=np.array([found[row] is not None for row in layout.chain]))
    step = Step(
        trace=trace,
        problem=blank,
        relaxed=None,
        layout=layout,
        signatures=used,
        columns=columns,
        baseline=pairs.index(base_pair) if base_pair in pairs else None,
        sd=_spread(trace, grid, notes),
        n=trace.grid("n")[grid],
        scales=scales,
        anchors=found,
        tables=tables,
        capped=capped_pairs(trace, columns),
        unheld=unheld_pairs(trace, used, columns),
        notes=(),
    )
    problem, relaxed = _problems(step, *tables)
    _compare_with_measured(trace, problem, notes)
    notes += _what_is_special(step, pairs)
    made = replace(step, problem=problem, relaxed=relaxed, notes=tuple(notes))
    return made.with_switch(problem.switch)


def _what_is_special(step: Step, pairs: list[ClockPair]) -> Iterator[str]:
    """Notes on overlapping kernels and on the power cap."""
    if not step.layout.serial:
        yield (
            f"kernels overlap on several streams: the step is laid out as "
            f"{len(step.layout.chain)} slices of {len(step.trace.timeline)} kernels, and its "
            "makespan is held to the budget"
        )
    if step.capped.any():
        yield (
            f"the power cap slows the step at {step.capped.sum()} of {len(pairs)} clock pairs, "
            f"such as {pairs[int(np.argmax(step.capped))]}: "
            + (
                "their kernels were measured under it, so they are left out"
                if step.unheld.any()
                else "they are chosen only where switches take under 1 ms"
            )
        )


def _integers(trace: Trace, column: str) -> Ints:
    return trace.timeline[column].to_numpy(dtype=np.int64)


def _baseline_pair(trace: Trace, asked: str) -> ClockPair:
    pairs = trace.clock_pairs()
    if asked.strip().lower() != "auto":
        wanted = parse_pair(asked)
        if wanted not in pairs and not (wanted == trace.baseline.pair and _measured(trace)):
            near = sorted(pairs, key=lambda pair: _distance(pair, wanted))[:5]
            raise InputError(
                f"baseline {wanted} is not among the trace's {len(pairs)} clock pairs; the nearest "
                f"are {', '.join(map(str, near))}"
            )
        return wanted
    if trace.baseline.pair in pairs or _measured(trace):
        return trace.baseline.pair
    if GOVERNOR in pairs:
        return GOVERNOR
    return max(pairs, key=lambda pair: (pair.core_mhz or 0, pair.mem_mhz or 0))


def _measured(trace: Trace) -> bool:
    return trace.baseline.time_ns is not None and trace.baseline.energy_mj is not None


def _distance(pair: ClockPair, wanted: ClockPair) -> float:
    parts = zip(pair, wanted, strict=True)
    return float(sum(abs(np.log((a or 1) / (b or 1))) for a, b in parts))


def _columns(trace: Trace, used: Ints, base_pair: ClockPair, drop: bool) -> tuple[Ints, list[str]]:
    """The trace's pairs that every kernel has cells at, in order; and what was left out."""
    pairs = trace.clock_pairs()
    known = np.isfinite(trace.grid("duration_ns")) & np.isfinite(trace.grid("energy_mj"))
    if not np.isfinite(trace.grid("energy_mj")).any():
        raise InputError(
            "the trace is a timeline without energies: plan with --assume GPU (rtx3080ti, v100, "
            "h200), labelled so, or trace the step"
        )
    whole = known[used].all(axis=0)
    # The governor is never chosen: without cells of its own it simply is not a candidate.
    optional = np.array([pair.is_governor for pair in pairs])
    if base_pair.is_governor and not _measured(trace):
        optional[:] = False
    holes = np.flatnonzero(~whole & ~optional)
    if len(holes) and not drop:
        column = int(holes[0])
        row = int(used[int(np.argmin(known[used, column]))])
        lacking = "energy" if np.isfinite(trace.grid("duration_ns")[row, column]) else "time"
        raise InputError(
            f"kernel {trace.signatures['name'].iloc[row]!r} has no {lacking} at {pairs[column]} "
            f"({len(holes)} of {len(pairs)} pairs are incomplete); measure it, or drop such pairs "
            "with --drop-incomplete-pairs"
        )
    columns = np.flatnonzero(whole)
    if not len(columns):
        raise InputError("no clock pair has a time and an energy for every kernel")
    if base_pair not in [pairs[int(i)] for i in columns] and not (
        base_pair == trace.baseline.pair and _measured(trace)
    ):
        raise InputError(
            f"baseline {base_pair} lacks the time or energy of some kernel; name another with "
            "--baseline CORE/MEM"
        )
    notes = []
    holed = np.flatnonzero(optional & ~whole & known[used].any(axis=0))
    if len(holed):
        unknown = int((~known[used, int(holed[0])]).sum())
        notes.append(
            f"{unknown} of {len(used)} signatures have no cell at the governor: it is the whole "
            "step as measured there, not a sum of cells"
        )
    if len(holes):
        notes.append(f"{len(holes)} of {len(pairs)} clock pairs left out: some kernel lacks a cell")
    return columns.astype(np.int64), notes


def _idle_power(trace: Trace, columns: Ints, layout: Layout, notes: list[str]) -> Array | None:
    """(F,) W of each pair; unknown ones take the mean of those known."""
    power = trace.pairs["idle_power_w"].to_numpy(dtype=float, na_value=np.nan)[columns]
    known = np.isfinite(power)
    if known.all():
        return power
    if layout.gap_ns.any():
        share = layout.gap_ns.sum() / max(1, int(layout.end.max() - layout.start.min()))
        what = "counted at the mean of the known ones" if known.any() else "not counted"
        notes.append(
            f"idle power is unknown at some pairs: the energy of gaps ({share:.1%} of the step) "
            f"is {what}"
        )
    elif not known.any():
        return None
    return np.where(known, power, power[known].mean() if known.any() else 0.0)


def _spread(trace: Trace, grid: tuple[Ints, ...], notes: list[str]) -> tuple[Array, Array] | None:
    """(S, F) standard deviations; an unknown one takes the median relative one of its table."""
    tables = []
    for mean_name, sd_name in (("duration_ns", "duration_sd_ns"), ("energy_mj", "energy_sd_mj")):
        mean, sd = trace.grid(mean_name)[grid], trace.grid(sd_name)[grid]
        known = np.isfinite(sd)
        if not known.any():
            tables.append(np.zeros_like(mean))
            continue
        if not known.all():
            positive = known & (mean > 0)
            relative = float(np.median(sd[positive] / mean[positive])) if positive.any() else 0.0
            sd = np.where(known, sd, relative * mean)
            notes.append(f"{sd_name} is unknown in {np.mean(~known):.0%} of the cells: taken as "
                         f"{relative:.2%} of the mean, the median of the others")  # fmt: skip
        tables.append(sd)
    if not any(table.any() for table in tables):
        return None
    return tables[0], tables[1]


def _compare_with_measured(trace: Trace, problem: Problem, notes: list[str]) -> None:
    """Say how far the profile's sum is from the whole step as measured."""
    for what, measured, modelled in (
        ("time", trace.baseline.time_ns, problem.baseline_time_ns),
        ("energy", trace.baseline.energy_mj, problem.baseline_energy_mj),
    ):
        if measured and problem.baseline_pair == trace.baseline.pair:
            off = modelled / measured - 1
            if abs(off) > 0.005:
                notes.append(
                    f"the kernels' {what} at the baseline adds up to {off:+.1%} of the whole "
                    "step's as measured; fractions are of the sum"
                )


def _problems(step: Step, time_ns: Array, energy_mj: Array) -> tuple[Problem, Problem | None]:
    """The problem over given (S, F) cells, and its relaxation."""
    rows = step.rows()
    layout, (time_scale, energy_scale) = step.layout, step.scales
    row = rows[layout.chain].astype(np.int32)
    scales = [time_scale[layout.chain].copy(), energy_scale[layout.chain].copy()]
    tables = [time_ns, energy_mj, time_ns]
    if layout.pieces:
        made = _composite(layout, lambda r: time_scale[r] * time_ns[rows[r]],
                          lambda r: energy_scale[r] * energy_mj[rows[r]])  # fmt: skip
        places = np.array(list(layout.pieces))
        row[places] = len(time_ns) + np.arange(len(places))
        for scale in scales:
            scale[places] = 1.0
        tables = [np.vstack([old, new]) for old, new in zip(tables, made, strict=True)]
    names = step.trace.signatures["name"].iloc[step.signatures].tolist()
    names += [f"kernels from {int(layout.chain[k])}" for k in layout.pieces]
    base_time, base_energy = _baseline_cost(step, tables, row, scales, time_ns)
    problem = replace(
        step.problem,
        time_ns=tables[0],
        energy_mj=tables[1],
        row=row,
        time_scale=scales[0] if np.any(scales[0] != 1.0) else None,
        energy_scale=scales[1] if np.any(scales[1] != 1.0) else None,
        baseline_time_ns=base_time,
        baseline_energy_mj=base_energy,
        signatures=names,
    )
    return problem, replace(problem, time_ns=tables[2]) if layout.pieces else None


def _composite(
    layout: Layout, times: Callable[[int], Array], energies: Callable[[int], Array]
) -> tuple[Array, Array, Array]:
    """(P, F) longest-path ns, mJ, and chain ns of the P slices that have pieces."""
    longest, energy, chain = [], [], []
    for index, pieces in layout.pieces.items():
        slice_ns, chain_ns = layout.slice_times(index, times)
        longest.append(slice_ns)
        chain.append(chain_ns)
        parts = [piece.share * energies(piece.kernel) for piece in pieces]
        energy.append(np.sum(parts, axis=0))
    return np.array(longest), np.array(energy), np.array(chain)


def _baseline_cost(
    step: Step, tables: list[Array], row: NDArray[np.int32], scales: list[Array], cells: Array
) -> tuple[float, float]:
    """Time and energy of the step at the baseline: exact sums, or the step's own measurement."""
    base, measured = step.baseline, step.trace.baseline
    if base is None:
        assert measured.time_ns is not None and measured.energy_mj is not None
        return measured.time_ns, measured.energy_mj
    gap, idle = step.problem.gap_ns, step.problem.idle_power_w
    energy = (scales[1] * tables[1][row, base]).tolist()
    if gap is not None and idle is not None:
        energy += (gap * idle[base] * 1e-6).tolist()
    if step.layout.serial:
        gaps = [] if gap is None else gap.tolist()
        return fsum((scales[0] * tables[0][row, base]).tolist() + gaps), fsum(energy)
    constant = np.full(len(row), base, dtype=np.int32)
    played = replace(step, tables=(cells, tables[1][: len(cells)]))
    return played.makespan_ns(constant), fsum(energy)
