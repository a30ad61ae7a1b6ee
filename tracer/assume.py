"""Give a timeline without a sweep the responses that a simulated GPU's model assumes.

A timeline alone (a Kineto trace, say) has durations at one clock and nothing at any other. Each
kernel is put into a class by its name, or by its FLOPs and bytes where they are known; work of that
class is sized to last as long as the kernel did on the model; the model then says how time and
power would change with the clocks. The measured durations stay as they are, and where the whole
step's energy was measured the energies are scaled to add up to it. Everything else is assumed, and
the trace says so: provenance ``assumed``, and ``simulated`` true.

Left out: what a name does not tell (a cuBLAS kernel may well be memory bound at small sizes), and
communication, whose time is taken to follow no clock.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data import tables
from ..data import trace as trace_file
from ..data.errors import InputError, MismatchError
from ..data.schedule import Schedule
from ..data.trace import Baseline, Trace
from ..data.units import GOVERNOR, ClockPair
from .gpu.simulated import SimulatedGpu, open_simulated
from .work import KernelWork, MathUnit

__all__ = ["assume_responses", "trace_behind"]

Floats = npt.NDArray[np.float64]

_MATRIX = re.compile(
    r"gemm|cutlass|xmma|wgmma|hmma|nvjet|matmul|conv(?!ert)|wgrad|dgrad|flash|fmha|attention|mma_",
    re.IGNORECASE,
)
_SINGLE = re.compile(r"sgemm|f32f32|ffma|simt", re.IGNORECASE)
_COMMUNICATION = re.compile(r"nccl|rccl|nvshmem|allreduce|all_reduce", re.IGNORECASE)
# FLOPs a byte at which an assumed matrix kernel works: well above any GPU's ridge.
_MATRIX_INTENSITY = 600.0
# Operations an assumed pointwise kernel makes for each byte it moves.
_POINTWISE_INTENSITY = 1.0
_PROBE_BYTES = 1 << 28


def assume_responses(trace: Trace, gpu: SimulatedGpu) -> Trace:
    """The same timeline with a profile at the governor and at every pair of ``gpu``'s sweep.

    The recorded durations hold at the trace's baseline pair, and stay there; the model says how
    times and energies change from it.

    Args:
        trace: a trace with a timeline; its own profile, if any, is not used.
        gpu: the simulated GPU whose model is assumed.

    Raises:
        InputError: the trace already holds a sweep, its kernels last no time at all, or it was
            recorded at a pair that ``gpu`` does not have.
    """
    if len(trace.pairs) > 1:
        raise InputError(
            f"the trace already has a sweep of {len(trace.pairs)} clock pairs; optimize it as it "
            "is, without --assume"
        )
    trace = trace.checked()
    at_baseline = _own_duration(trace)
    recorded = _recorded_pair(trace.baseline.pair, gpu)
    visit = tuple(dict.fromkeys((recorded, GOVERNOR, *gpu.sweep_pairs())))
    works = [_work(row) for row in trace.signatures.itertuples(index=False)]
    time_ns, energy_mj, _ = gpu.truth_table(works, visit)
    slower = time_ns / time_ns[:, :1]
    fixed = [bool(_COMMUNICATION.search(str(name))) for name in trace.signatures["name"]]
    slower[fixed] = 1.0
    power_w = energy_mj / time_ns  # mJ per ns
    duration_ns = at_baseline[:, None] * slower
    energy = duration_ns * power_w
    idle_w = [gpu.idle_power_w(pair) for pair in visit]
    step_ns = _span_ns(trace)
    scale = _energy_scale(trace, energy[:, 0], idle_w[0], step_ns)
    step_mj = trace.baseline.energy_mj
    return replace(
        trace,
        gpu={
            "name": gpu.spec.name,
            "simulated": True,
            "assumed": gpu.spec.key,
            "recorded_on": trace.gpu.get("name"),
            "recorded_at": str(trace.baseline.pair),
        },
        provenance="assumed",
        pairs=tables.PAIRS.frame(
            {
                "pair": np.arange(len(visit)),
                "core_mhz": pd.array([pair.core_mhz for pair in visit], dtype="Int32"),
                "mem_mhz": pd.array([pair.mem_mhz for pair in visit], dtype="Int32"),
                "idle_power_w": np.array(idle_w) * scale,
                "provenance": "assumed",
            }
        ),
        profile=_profile(duration_ns, energy * scale),
        baseline=Baseline(recorded, float(step_ns), step_mj),
        notes=(
            *trace.notes,
            f"times and energies away from the recorded clocks are assumed: the model of a "
            f"simulated {gpu.spec.name} was put on this timeline",
            *_of_another_product(trace, gpu),
        ),
    ).checked()


def trace_behind(schedule: Schedule, path: Path) -> Trace:
    """The trace that a schedule was made from, with assumed responses put on it again.

    Raises:
        InputError, FormatError: as `clockwright.data.trace.read` and `assume_responses`.
        MismatchError: the responses were assumed of a timeline recorded at another pair.
    """
    trace = trace_file.read(path)
    assumed = schedule.gpu.get("assumed")
    if not isinstance(assumed, str) or len(trace.pairs) > 1:
        return trace
    here, planned = str(trace.baseline.pair), schedule.gpu.get("recorded_at")
    if planned is not None and here != planned:
        raise MismatchError(
            f"the schedule was planned on a timeline recorded at {planned}, and {path} says "
            f"{here}: what was assumed of it differs; optimize this trace with --assume {assumed}"
        )
    return assume_responses(trace, open_simulated(assumed))


def _of_another_product(trace: Trace, gpu: SimulatedGpu) -> list[str]:
    recorded_on = str(trace.gpu.get("name"))
    if recorded_on in {gpu.spec.name, "unknown"}:
        return []
    return [
        f"the timeline was recorded on {recorded_on}: its durations at the recorded clocks are "
        f"that GPU's, clocks and all else those of {gpu.spec.name}"
    ]


def _recorded_pair(told: ClockPair, gpu: SimulatedGpu) -> ClockPair:
    """The GPU's pair that a recording ran at; a memory clock not varied is the GPU's own."""
    pair = told
    if told.core_mhz is not None and told.mem_mhz is None:
        pair = ClockPair(told.core_mhz, gpu.spec.default_mem_mhz)
    if pair != GOVERNOR and pair not in gpu.pairs():
        raise InputError(
            f"the timeline was recorded at {pair}, a clock pair that the simulated {gpu.spec.name} "
            f"does not have (its highest is {gpu.pairs()[0]}): assume another GPU, or import the "
            "timeline again with the pair as --baseline"
        )
    return pair


def _profile(duration_ns: Floats, energy_mj: Floats) -> pd.DataFrame:
    signatures, pairs = duration_ns.shape
    return tables.PROFILE.frame(
        {
            "signature": np.repeat(np.arange(signatures), pairs),
            "pair": np.tile(np.arange(pairs), signatures),
            "duration_ns": duration_ns.ravel(),
            "energy_mj": energy_mj.ravel(),
            "provenance": "assumed",
        }
    )


def _own_duration(trace: Trace) -> Floats:
    """Mean duration of one launch of each signature, (S,) ns, from the timeline."""
    row = trace.timeline["signature"].to_numpy(dtype=np.int64)
    launches = trace.timeline["launches"].to_numpy(dtype=np.int64)
    total = np.bincount(
        row, trace.timeline["duration_ns"].to_numpy(dtype=float), minlength=len(trace.signatures)
    )
    count = np.bincount(row, launches, minlength=len(trace.signatures))
    if total.sum() <= 0:
        raise InputError("the timeline's kernels last no time at all; there is nothing to plan")
    # A signature that never runs, or lasts 0 ns by the recorder's clock, costs nothing.
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def _span_ns(trace: Trace) -> int:
    start = trace.timeline["start_ns"].to_numpy(dtype=np.int64)
    end = start + trace.timeline["duration_ns"].to_numpy(dtype=np.int64)
    return int(end.max() - start.min())


def _energy_scale(trace: Trace, energy_mj: Floats, idle_w: float, step_ns: int) -> float:
    """What makes the assumed energies add up to the measured step; 1 where none was measured."""
    if trace.baseline.energy_mj is None:
        return 1.0
    row = trace.timeline["signature"].to_numpy(dtype=np.int64)
    launches = trace.timeline["launches"].to_numpy(dtype=np.int64)
    busy_ns = float(trace.timeline["duration_ns"].sum())
    idle_mj = max(step_ns - busy_ns, 0.0) * idle_w * 1e-6
    whole = float((energy_mj[row] * launches).sum()) + idle_mj
    return trace.baseline.energy_mj / whole if whole > 0 else 1.0


def _work(row: Any) -> KernelWork:
    """Work of the class that a signature's name, or its known FLOPs and bytes, put it into."""
    name = str(row.name)
    matrix = bool(_MATRIX.search(name))
    flops = None if pd.isna(row.flops) else int(row.flops)
    moved = None if pd.isna(row.bytes) else int(row.bytes)
    if moved is None or moved == 0:
        moved = _PROBE_BYTES
        flops = None
    if flops is None:
        flops = int(moved * (_MATRIX_INTENSITY if matrix else _POINTWISE_INTENSITY))
    math: MathUnit = "fp32" if not matrix or _SINGLE.search(name) else "tensor_16"
    return KernelWork(
        name=name,
        op="" if pd.isna(row.op) else str(row.op),
        shapes="" if pd.isna(row.shapes) else str(row.shapes),
        dtype="bfloat16" if math == "tensor_16" else "float32",
        flops=flops,
        bytes_read=moved // 2,
        bytes_written=moved - moved // 2,
        math=math,
        elements=max(moved // 4, 1),
    )
