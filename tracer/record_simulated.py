"""Record a step on a simulated GPU as it would be recorded on a real one.

At the governor and at every pair of the sweep the whole step is played several times: its kernels'
durations come from those timelines, as they run beside their neighbours. Energies come from bursts
of each kernel alone (mean power of the burst times the duration within the step), and are then
scaled, pair by pair, so that kernels and idle gaps add up to the energy of the whole step. Every
number is simulated and says so.

Where the power cap takes the clock down, the whole step does not run at the pair that is locked,
and what its kernels show there is no kernel's own: among kernels that draw less they would run at
the full clock. So at such a pair the step is played once more with rests between its kernels, long
enough that the cap stays away, and the cells come from that; the row of the pair in ``pairs`` keeps
the step as it ran, capped. Between the highest clock that held and the lowest that did not, the
driver's other clocks are visited too. Energies are those at the baseline's temperature: the growth
of power with heat is measured at two pairs, and each pair's energy is brought there by it.

Left out: streams (a captured step is one sequence), and dropped launches (a simulation has none).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data import tables
from ..data.errors import InputError
from ..data.trace import Baseline, Trace
from ..data.units import GOVERNOR, ClockPair
from .gpu.simulated import SimulatedGpu, SimulatedRun
from .like_conditions import (
    governor_power,
    measure_heat_slope,
    pairs_at_the_cap,
    rested,
    warm_up,
)
from .simulated_runs import AtPair, run_at, works_of
from .work import StepWork

__all__ = ["record_simulated"]

Floats = npt.NDArray[np.float64]

# The clock keeper allows 50 switches a second, here as on real hardware.
_LEAST_DWELL_NS = 20_000_000
# Draws behind the quantiles of a switch's latency.
_DRAWN = 10_000


def record_simulated(
    step: StepWork,
    gpu: SimulatedGpu,
    *,
    pairs: Sequence[ClockPair] | None = None,
    repeats: int = 8,
    on_pair: Callable[[int, int], None] | None = None,
) -> Trace:
    """Sweep ``pairs`` (the simulated GPU's default sweep if None) and return a whole trace.

    Args:
        step: the captured work.
        gpu: a simulated GPU; its virtual time advances and its clocks are released at the end.
        pairs: locked pairs to visit; the governor is always visited first, as the baseline.
        repeats: measured runs of the step at each pair, at least 2 (a spread needs two).
        on_pair: called with (pairs done, pairs in all).

    Raises:
        InputError: no pair, too few repeats, or a pair the GPU does not support.
    """
    if repeats < 2:
        raise InputError(f"repeats must be at least 2, to know a spread; got {repeats}")
    warm_up(step, gpu)
    visit = [GOVERNOR, *dict.fromkeys(gpu.sweep_pairs() if pairs is None else pairs)]
    seen: list[AtPair] = []
    while len(seen) < len(visit):
        seen.append(run_at(step, gpu, visit[len(seen)], repeats))
        if len(seen) == len(visit) and pairs is None:
            visit += [pair for pair in pairs_at_the_cap(gpu, visit, seen) if pair not in visit]
        if on_pair is not None:
            on_pair(len(seen), len(visit))
    base = seen[0]
    warm_c = base.temperature_c
    loop_time, loop_energy = gpu.measure_table(
        step.works, visit[1:], windows=repeats, bursts=True, temperature_c=warm_c
    )
    power = loop_energy / loop_time
    cells = [
        rested(step, gpu, pair, at, power[:, :, k]) if at.capped else at
        for k, (pair, at) in enumerate(zip(visit[1:], seen[1:], strict=True))
    ]
    slope = measure_heat_slope(step, gpu, visit, seen)
    gpu.release()
    if slope is not None:
        cells = [slope.at_temperature(at, warm_c) for at in cells]
        seen = [at if at.capped else slope.at_temperature(at, warm_c) for at in seen]
    at_governor = governor_power(step, visit[1:], base.last, power)
    if at_governor is None:  # no locked clock to lean on: its own loops, capped as they are
        loop_time, loop_energy = gpu.measure_table(step.works, [GOVERNOR], windows=repeats)
        at_governor = (loop_energy / loop_time)[:, :, 0]
    power = np.concatenate([at_governor[:, :, None], power], axis=2)
    profile = _profile(step, [base, *cells], power)
    return Trace(
        gpu=_identity(gpu),
        workload={"name": step.workload, "options": dict(step.options)},
        provenance="simulated",
        timeline=_timeline(step, base.last),
        signatures=_signatures(step),
        pairs=_pairs(visit, seen, repeats),
        profile=profile,
        baseline=Baseline(
            GOVERNOR, float(base.step_time_ns.mean()), float(base.step_energy_mj.mean())
        ),
        switches=_switches(gpu, visit),
        switch_semantic=gpu.switch.kind,
        switch_min_dwell_ns=_LEAST_DWELL_NS if gpu.switch.kind == "lag" else None,
        notes=("every number is simulated; docs/simulator.md says against what it was checked",),
    ).checked()


def _profile(step: StepWork, cells: Sequence[AtPair], loop_power: Floats) -> pd.DataFrame:
    """Cells of every signature and pair; ``loop_power`` is (R, S, F) in mJ per ns."""
    count = np.bincount(works_of(step), minlength=len(step.works))
    frames = []
    for number, at in enumerate(cells):
        repeats = len(at.duration_ns)
        duration = at.duration_ns.mean(axis=0)
        power = loop_power[:, :, number]
        energy = power.mean(axis=0) * duration
        idle_mj = at.gap_ns * at.idle_power_w * 1e-6
        # The parts must sum to the whole, so that a schedule's saving is a saving of the step.
        whole = (at.step_energy_mj.mean() - idle_mj) / float((energy * count).sum())
        spread = np.hypot(
            at.duration_ns.std(axis=0, ddof=1) / duration,
            power.std(axis=0, ddof=1) / power.mean(axis=0),
        )
        frames.append(
            pd.DataFrame(
                {
                    "signature": np.arange(len(step.works)),
                    "pair": number,
                    "duration_ns": duration,
                    "duration_sd_ns": at.duration_ns.std(axis=0, ddof=1) / np.sqrt(repeats),
                    "energy_mj": energy * whole,
                    "energy_sd_mj": energy * whole * spread / np.sqrt(repeats),
                    "n": repeats,
                    "sensed_core_mhz": at.core_mhz,
                    "throttle_reasons": at.throttle_reasons,
                    "temperature_c": at.temperature_c,
                    "provenance": "simulated",
                }
            )
        )
    return tables.PROFILE.frame(pd.concat(frames, ignore_index=True))


def _timeline(step: StepWork, run: SimulatedRun) -> pd.DataFrame:
    items = step.items
    return tables.TIMELINE.frame(
        {
            "index": np.arange(len(items)),
            "stream": [item.stream for item in items],
            "start_ns": run.start_ns - run.start_ns[0],
            "duration_ns": run.duration_ns,
            "signature": [item.work for item in items],
            "launches": 1,
            "op": pd.array([step.works[item.work].op for item in items], dtype="string"),
            "module": pd.array([item.module for item in items], dtype="string"),
            "phase": [item.phase for item in items],
            "layer": pd.array([item.layer for item in items], dtype="Int32"),
        }
    )


def _signatures(step: StepWork) -> pd.DataFrame:
    works = step.works
    return tables.SIGNATURES.frame(
        {
            "signature": np.arange(len(works)),
            "name": [work.name for work in works],
            "op": [work.op for work in works],
            "shapes": [work.shapes for work in works],
            "dtype": [work.dtype for work in works],
            "math": [work.math for work in works],
            "flops": [work.flops for work in works],
            "bytes": [work.bytes for work in works],
        }
    )


def _pairs(visit: Sequence[ClockPair], seen: Sequence[AtPair], repeats: int) -> pd.DataFrame:
    return tables.PAIRS.frame(
        {
            "pair": np.arange(len(visit)),
            "core_mhz": pd.array([pair.core_mhz for pair in visit], dtype="Int32"),
            "mem_mhz": pd.array([pair.mem_mhz for pair in visit], dtype="Int32"),
            "idle_power_w": [at.idle_power_w for at in seen],
            "step_time_ns": [at.step_time_ns.mean() for at in seen],
            "step_time_sd_ns": [at.step_time_ns.std(ddof=1) for at in seen],
            "step_energy_mj": [at.step_energy_mj.mean() for at in seen],
            "step_energy_sd_mj": [at.step_energy_mj.std(ddof=1) for at in seen],
            "step_n": repeats,
            "sensed_core_mhz": [at.core_mhz for at in seen],
            "throttle_reasons": [at.throttle_reasons for at in seen],
            "temperature_c": [at.temperature_c for at in seen],
            "provenance": "simulated",
        }
    )


def _identity(gpu: SimulatedGpu) -> dict[str, Any]:
    info = gpu.info
    return {
        "name": info.name,
        "uuid": info.uuid,
        "driver": info.driver,
        "vbios": info.vbios,
        "power_limit_w": info.power_limit_w,
        "memory_bytes": info.memory_bytes,
        "spec": gpu.spec.key,
        "simulated": True,
    }


def _switches(gpu: SimulatedGpu, visit: Sequence[ClockPair]) -> pd.DataFrame:
    """Latencies, scattered, between the sweep's extremes and middles, on both axes."""
    locked = [pair for pair in visit if not pair.is_governor]
    cores = sorted({pair.core_mhz for pair in locked if pair.core_mhz is not None})
    some = {cores[0], cores[len(cores) // 2], cores[-1]} if cores else set()
    ends = [pair for pair in locked if pair.core_mhz in some]
    behaviour = gpu.switch
    rows = []
    for before in ends:
        for after in ends:
            if before == after:
                continue
            nominal_ns = behaviour.nominal_ns(before, after)
            # The same draws for every transition: like transitions get like rows.
            rng = np.random.default_rng(0)
            drawn_ns = behaviour.sample_ns(np.full(_DRAWN, nominal_ns), rng)
            rows.append(
                {
                    "from_core_mhz": before.core_mhz,
                    "from_mem_mhz": before.mem_mhz,
                    "to_core_mhz": after.core_mhz,
                    "to_mem_mhz": after.mem_mhz,
                    "call_ns_p50": behaviour.call_ns,
                    **{
                        f"latency_ns_p{percent}": float(np.percentile(drawn_ns, percent))
                        for percent in tables.LATENCY_PERCENTILES
                    },
                    "n": _DRAWN,
                    "stall_ns": nominal_ns if behaviour.kind == "stall" else 0.0,
                    "energy_mj": behaviour.energy_mj,
                    "provenance": "simulated",
                }
            )
    columns = tables.SWITCHES.names
    frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
    for column in ("from_core_mhz", "from_mem_mhz", "to_core_mhz", "to_mem_mhz"):
        frame[column] = frame[column].astype("Int32")
    return tables.SWITCHES.frame(frame)
