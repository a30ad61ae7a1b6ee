"""Record a step on a simulated GPU as it would be recorded on a real one.

At the governor and at every pair of the sweep the whole step is played several times: its kernels'
durations come from those timelines, as they run beside their neighbours. Energies come from loops
of each kernel alone (mean power of the loop times the duration within the step), and are then
scaled, pair by pair, so that kernels and idle gaps add up to the energy of the whole step. Every
number is simulated and says so.

Left out: streams (a captured step is one sequence), and dropped launches (a simulation has none).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data import tables
from ..data.errors import InputError
from ..data.trace import Baseline, Trace
from ..data.units import GOVERNOR, ClockPair
from .gpu.simulated import SimulatedGpu, SimulatedRun
from .work import StepWork

__all__ = ["record_simulated"]

Floats = npt.NDArray[np.float64]

# Steps run this long before any is measured: clocks, power cap and temperature settle under load,
# not while idle. Short steps after a rest would show more power than the cap lets a training hold.
_SETTLE_NS = 2_000_000_000
_WARM_STEPS = 2
# The clock keeper allows 50 switches a second, here as on real hardware.
_LEAST_DWELL_NS = 20_000_000


@dataclass(frozen=True)
class _AtPair:
    """What one pair's runs gave: per-signature means over R runs, and the whole step."""

    duration_ns: Floats  # (R, S)
    gap_ns: float
    step_time_ns: Floats  # (R,)
    step_energy_mj: Floats  # (R,)
    core_mhz: float
    throttle_reasons: int
    temperature_c: float
    idle_power_w: float
    last: SimulatedRun


def record_simulated(
    step: StepWork,
    gpu: SimulatedGpu,
    *,
    pairs: Sequence[ClockPair] | None = None,
    repeats: int = 3,
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
    visit = [GOVERNOR, *dict.fromkeys(gpu.sweep_pairs() if pairs is None else pairs)]
    seen = []
    for done, pair in enumerate(visit):
        seen.append(_run_at(step, gpu, pair, repeats))
        if on_pair is not None:
            on_pair(done + 1, len(visit))
    gpu.release()
    loop_time, loop_energy = gpu.measure_table(step.works, visit, windows=repeats)
    profile = _profile(step, visit, seen, loop_energy / loop_time)
    base = seen[0]
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


def _run_at(step: StepWork, gpu: SimulatedGpu, pair: ClockPair, repeats: int) -> _AtPair:
    if pair.is_governor:
        gpu.release()
    else:
        gpu.lock(pair)
    settled_ns = gpu.now_ns() + _SETTLE_NS
    warm = 0
    while warm < _WARM_STEPS or gpu.now_ns() < settled_ns:
        gpu.run(step)
        warm += 1
    runs = [gpu.run(step) for _ in range(repeats)]
    work = np.fromiter((item.work for item in step.items), np.int64, len(step.items))
    count = np.bincount(work, minlength=len(step.works))
    duration = np.stack(
        [np.bincount(work, run.duration_ns, minlength=len(step.works)) / count for run in runs]
    )
    busy = np.array([run.duration_ns.sum() for run in runs])
    time_ns = np.array([run.time_ns for run in runs], dtype=float)
    return _AtPair(
        duration_ns=duration,
        gap_ns=float((time_ns - busy).mean()),
        step_time_ns=time_ns,
        step_energy_mj=np.array([run.energy_mj for run in runs]),
        core_mhz=float(np.average(runs[-1].core_mhz, weights=np.maximum(runs[-1].duration_ns, 1))),
        throttle_reasons=int(np.bitwise_or.reduce(runs[-1].throttle_reasons)),
        temperature_c=runs[-1].mean_temperature_c,
        idle_power_w=gpu.idle_power_w(pair),
        last=runs[-1],
    )


def _profile(
    step: StepWork, visit: Sequence[ClockPair], seen: Sequence[_AtPair], loop_power: Floats
) -> pd.DataFrame:
    """Cells of every signature and pair; ``loop_power`` is (R, S, F) in mJ per ns."""
    count = np.bincount([item.work for item in step.items], minlength=len(step.works))
    frames = []
    for number, at in enumerate(seen):
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


def _pairs(visit: Sequence[ClockPair], seen: Sequence[_AtPair], repeats: int) -> pd.DataFrame:
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
    """Nominal latencies between the sweep's extremes and middles, on both axes."""
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
            rows.append(
                {
                    "from_core_mhz": before.core_mhz,
                    "from_mem_mhz": before.mem_mhz,
                    "to_core_mhz": after.core_mhz,
                    "to_mem_mhz": after.mem_mhz,
                    "call_ns_p50": behaviour.call_ns,
                    "latency_ns_p50": nominal_ns,
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
