"""From one raw folder to a trace: what was measured, taken apart, reconciled with the whole.

Durations are the profiled steps' own, energies those of `sensed_fit` at the clock and temperature
of the plain step. Both are then scaled, times and energies apart, so that kernels and gaps add up
to the step as it runs with the profiler off; by how much is told in ``gpu.composition``.

Rows at sensed clocks lean on that row: a kernel's duration and energy there, times what their
responses say of another clock. No row lies outside the clocks that were sensed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...data import tables
from ...data.errors import ClockwrightError, DeviceError
from ...data.trace import Baseline, Trace
from ...data.units import GOVERNOR
from ..gpu.protocol import GpuInfo, ThrottleReason
from ..measure.sensed_fit import MixPoint, fit_mix_times, fit_mixes
from ..measure.timeline import StepTimeline, read_timeline
from .costs import KernelEnergies, composed_time, share_operators
from .raw_record import WholeStep, mix_points, read_record, whole_step
from .responses import Responses, fit_responses

__all__ = ["assemble"]

Floats = npt.NDArray[np.float64]

_SENSED_ROWS = 13
_LEAST_SPREAD = 0.03


@dataclass(frozen=True)
class _Cells:
    """(S,) of one row: durations, energies, relative standard deviations of both."""

    duration_ns: Floats
    energy_mj: Floats
    duration_sd: Floats
    energy_sd: Floats


def assemble(
    folder: Path, *, workload: Mapping[str, Any], gpu: GpuInfo, sensed: bool = True
) -> Trace:
    """Put a raw folder together.

    Args:
        folder: what a `Session` wrote.
        workload: ``name``, ``options`` and so on, for the trace.
        gpu: the GPU it was measured on.
        sensed: add rows at the clocks that moved by themselves.

    Raises:
        FormatError: the folder holds no whole record.
        WorkloadError: the timeline holds no complete step, or its steps differ.
        DeviceError: too few mixes to take apart, or none of the step's kernels in them.
    """
    folder = Path(folder)
    raw = read_record(folder)
    timeline = read_timeline(folder / "timeline.json")
    whole = whole_step(raw)
    points = mix_points(raw)
    energies = share_operators(fit_mixes(points), raw["loops"], timeline)
    gaps_ns = float((timeline.span_ns - timeline.busy_ns).mean())
    wait_w = energies.fit.wait_w(whole.core_mhz)
    cells, composition = _reconciled(timeline, energies, whole, gaps_ns, wait_w)
    if energies.known_share == 1:
        composition |= _time_from_mixes(points, raw["loops"], whole, gaps_ns)
    frames = [(_pair_row(whole, wait_w), _profile(0, cells, whole, len(timeline.duration_ns)))]
    notes = [*timeline.odd, *_composition_notes(composition, energies)]
    if sensed:
        more, told = _sensed(folder, raw, timeline, energies, whole, cells)
        frames += more
        notes += told
    pairs, profiles = zip(*frames, strict=True)
    partial = raw.get("partial")
    return Trace(
        gpu=_identity(gpu, raw, composition),
        workload={key: workload[key] for key in ("name", "options") if key in workload},
        provenance="sensed" if len(frames) > 1 else "measured",
        timeline=_timeline(timeline),
        signatures=_signatures(timeline),
        pairs=pd.DataFrame([row | {"pair": number} for number, row in enumerate(pairs)]),
        profile=pd.concat(
            [frame.assign(pair=number) for number, frame in enumerate(profiles)], ignore_index=True
        ),
        baseline=Baseline(GOVERNOR, whole.time_ns, whole.energy_mj),
        dropped=dict(timeline.dropped),
        partial=partial,
        notes=tuple(dict.fromkeys(notes)),
    ).checked()


def _time_from_mixes(
    points: list[MixPoint], loops: list[dict[str, Any]], whole: WholeStep, gaps_ns: float
) -> dict[str, float]:
    """The step put together without the profiler's durations, at its clock; nothing if too few."""
    try:
        times = fit_mix_times(points)
    except DeviceError:
        return {}
    time_ns, sd_ns = composed_time(times, loops, whole.core_mhz, gaps_ns)
    return {
        "time_from_mixes": time_ns / whole.time_ns - 1,
        "time_from_mixes_stated_sd": sd_ns / whole.time_ns,
    }


def _reconciled(
    timeline: StepTimeline,
    energies: KernelEnergies,
    whole: WholeStep,
    gaps_ns: float,
    wait_w: float,
) -> tuple[_Cells, dict[str, float]]:
    """The governor's row, and how far the parts were from the whole before it was scaled."""
    signature = timeline.kernels["signature"].to_numpy(dtype=np.int64)
    size, runs = len(timeline.signatures), len(timeline.duration_ns)
    count = energies.count
    by_run = np.stack(
        [np.bincount(signature, row, size) / count for row in timeline.duration_ns.astype(float)]
    )
    duration = by_run.mean(axis=0)
    spread = by_run.std(axis=0, ddof=1) / duration / np.sqrt(runs) if runs > 1 else np.zeros(size)
    temperature = energies.fit.temperature_c if whole.temperature_c is None else whole.temperature_c
    energy, energy_sd = energies.at(whole.core_mhz, temperature)
    gaps_mj = gaps_ns * wait_w * 1e-6
    composition = {
        "time": float(count @ duration + gaps_ns) / whole.time_ns - 1,
        "energy": float(count @ energy + gaps_mj) / whole.energy_mj - 1,
        "energy_stated_sd": float(np.sqrt(((count * energy * energy_sd) ** 2).sum()))
        / whole.energy_mj,
        "gaps_ns": gaps_ns,
        "known_energy_share": energies.known_share,
    }
    if whole.drift is not None:
        composition["drift"] = whole.drift
    duration = duration * (whole.time_ns - gaps_ns) / float(count @ duration)
    energy = energy * (whole.energy_mj - gaps_mj) / float(count @ energy)
    # Levels are common to all rows and scaled to the whole: what is left is the whole's own error.
    whole_sd = np.full(size, whole.energy_sd_mj / whole.energy_mj)
    return _Cells(duration, energy, spread, whole_sd), composition


def _composition_notes(composition: Mapping[str, float], energies: KernelEnergies) -> list[str]:
    notes = [
        f"before they were scaled to the whole step, kernels and gaps added up to "
        f"{composition['time']:+.2%} of its time and {composition['energy']:+.2%} of its energy"
    ]
    if "time_from_mixes" in composition:
        notes.append(
            f"put together from mixes instead, profiler off, its time is off by "
            f"{composition['time_from_mixes']:+.2%} (standard error "
            f"{composition['time_from_mixes_stated_sd']:.2%})"
        )
    if energies.known_share < 1:
        notes.append(
            f"{1 - energies.known_share:.1%} of the kernel time was launched by no operator that "
            "could be looped: its energy is taken at the others' mean power"
        )
    return notes


def _sensed(
    folder: Path,
    raw: Mapping[str, Any],
    timeline: StepTimeline,
    energies: KernelEnergies,
    whole: WholeStep,
    cells: _Cells,
) -> tuple[list[tuple[dict[str, Any], pd.DataFrame]], list[str]]:
    """Rows at sensed clocks, and what to know of them."""
    profiles, lost = _profiles(folder, raw)
    found = fit_responses(timeline, profiles)
    if found is None:
        return [], [*lost, "no profile at other clocks could be used: there are no sensed rows"]
    low, high = found.range_mhz()
    low, high = max(low, energies.fit.range_mhz[0]), min(high, energies.fit.range_mhz[1])
    if not high > low * (1 + _LEAST_SPREAD):
        return [], [
            *lost,
            f"the clock moved from {low:.0f} to {high:.0f} MHz only, too little to tell responses",
        ]
    rows = [
        _at_clock(clock, found, energies, whole, cells)
        for clock in _clocks(low, high, raw.get("core_clocks_mhz"))
    ]
    own_mhz = found.clock_of(float(timeline.busy_ns.mean()))
    return rows, [
        *lost,
        *found.left_out,
        *found.held_out_notes(),
        f"rows between {low:.0f} and {high:.0f} MHz are sensed: no clock was set; the slopes are "
        f"each kernel's own, the level leans on the step's mean clock of {whole.core_mhz:.0f} MHz "
        f"(kernel times in the profiles at other clocks would put it at {own_mhz:.0f})",
    ]


def _profiles(
    folder: Path, raw: Mapping[str, Any]
) -> tuple[list[tuple[str, StepTimeline]], list[str]]:
    """The profiles at other clocks, and why any cannot be read: the step is known without it."""
    profiles, lost = [], []
    for entry in raw.get("ambient", []):
        try:
            profiles.append((str(entry["name"]), read_timeline(folder / entry["file"])))
        except ClockwrightError as error:
            why = str(error).replace(f"{folder}/", "")
            lost.append(f"the profile {entry['name']!r} is left out: {why}")
    return profiles, lost


def _clocks(low: float, high: float, listed: list[int] | None) -> list[int]:
    """Clocks to give rows: evenly spread, and such as the driver lists where that is known."""
    wanted = np.linspace(low, high, _SENSED_ROWS)
    if listed:
        inside = np.array([clock for clock in listed if low <= clock <= high])
        if len(inside):
            wanted = inside[np.abs(inside[:, None] - wanted).argmin(axis=0)]
    # Whole MHz, rounded inwards at both ends.
    return sorted({int(clock) for clock in np.minimum(np.ceil(wanted), high)}, reverse=True)


def _at_clock(
    clock: int, found: Responses, energies: KernelEnergies, whole: WholeStep, cells: _Cells
) -> tuple[dict[str, Any], pd.DataFrame]:
    at_base, here = found.durations_ns(whole.core_mhz), found.durations_ns(clock)
    lever = abs(np.log(clock / whole.core_mhz))
    slope_sd = np.array([(r.high - r.low) / 3.92 for r in found.each])
    ratio, ratio_sd = energies.ratio(clock, whole.core_mhz)
    made = _Cells(
        cells.duration_ns * here / at_base,
        cells.energy_mj * ratio,
        np.hypot(cells.duration_sd, lever * slope_sd),
        np.hypot(cells.energy_sd, ratio_sd),
    )
    capped = bool((whole.throttle_reasons or 0) & ThrottleReason.SW_POWER_CAP)
    row = {
        "core_mhz": clock,
        "mem_mhz": whole.mem_mhz,
        "idle_power_w": energies.fit.wait_w(clock),
        "sensed_core_mhz": float(clock),
        # A whole step at a clock above the one it settles at would be capped, as it is unlocked.
        "throttle_reasons": ThrottleReason.SW_POWER_CAP if capped and clock > whole.core_mhz else 0,
        "temperature_c": whole.temperature_c,
        "provenance": "sensed",
    }
    n = np.array([response.n for response in found.each])
    frame = _rows(made, n).assign(
        sensed_core_mhz=float(clock),
        throttle_reasons=0,
        temperature_c=whole.temperature_c,
        provenance="sensed",
    )
    return row, frame


def _pair_row(whole: WholeStep, wait_w: float) -> dict[str, Any]:
    return {
        "core_mhz": None,
        "mem_mhz": None,
        "idle_power_w": wait_w,
        "step_time_ns": whole.time_ns,
        "step_time_sd_ns": whole.time_sd_ns,
        "step_energy_mj": whole.energy_mj,
        "step_energy_sd_mj": whole.energy_sd_mj,
        "step_n": whole.steps,
        "sensed_core_mhz": whole.core_mhz,
        "throttle_reasons": whole.throttle_reasons,
        "temperature_c": whole.temperature_c,
        "provenance": "measured",
    }


def _rows(cells: _Cells, n: npt.NDArray[np.int64]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "signature": np.arange(len(cells.duration_ns)),
            "duration_ns": cells.duration_ns,
            "duration_sd_ns": cells.duration_ns * cells.duration_sd,
            "energy_mj": cells.energy_mj,
            "energy_sd_mj": cells.energy_mj * cells.energy_sd,
            "n": n,
        }
    )


def _profile(pair: int, cells: _Cells, whole: WholeStep, runs: int) -> pd.DataFrame:
    return _rows(cells, np.full(len(cells.duration_ns), runs)).assign(
        pair=pair,
        sensed_core_mhz=whole.core_mhz,
        throttle_reasons=whole.throttle_reasons,
        temperature_c=whole.temperature_c,
        provenance="measured",
    )


def _timeline(timeline: StepTimeline) -> pd.DataFrame:
    middle = int(np.argsort(timeline.busy_ns, kind="stable")[len(timeline.busy_ns) // 2])
    start = timeline.start_ns[middle]
    return tables.TIMELINE.frame(
        timeline.kernels.assign(
            index=np.arange(len(start)),
            start_ns=start - start[0],
            duration_ns=timeline.duration_ns[middle],
            launches=1,
        )
    )


def _signatures(timeline: StepTimeline) -> pd.DataFrame:
    columns = [name for name in tables.SIGNATURES.names if name in timeline.signatures]
    return tables.SIGNATURES.frame(timeline.signatures[columns])


def _identity(
    gpu: GpuInfo, raw: Mapping[str, Any], composition: Mapping[str, float]
) -> dict[str, Any]:
    named = {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "driver": gpu.driver,
        "vbios": gpu.vbios,
        "power_limit_w": gpu.power_limit_w,
        "memory_bytes": gpu.memory_bytes,
        "simulated": gpu.simulated,
        "torch": raw.get("torch"),
        "composition": dict(composition),
        "trace_cost_s": dict(raw.get("parts_s", {})),
    }
    profiled, plain = raw.get("profiled_step_ns"), raw["step"]["plain"]["time_ns"]
    if profiled:
        named["profiler_overhead"] = profiled / plain - 1
        named["profiled_core_mhz"] = raw.get("profiled_core_mhz")
    return named
