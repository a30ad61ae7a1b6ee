"""From a recording to traces: one step of each process, with means over all steps like it.

The step that stands for the rest is one of the commonest sequence, the one of median kernel time,
with its own starts and durations, every nanosecond of them. Its signatures' mean durations are
taken over all steps of that sequence, each kernel's own mean over the signature's being its
``time_scale``. Other sequences (a step with an extra kernel, a warm-up) are left out and counted.
Times of different processes are never compared: each trace begins at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...data.tables import PAIRS, PHASES, PROFILE, SIGNATURES, TIMELINE
from ...data.trace import Baseline, Trace
from ...data.units import GOVERNOR, ClockPair, parse_pair
from .recording import UNKNOWN, Int64s, Marks, Recording
from .steps import find_steps, step_order

__all__ = ["Built", "baseline_pair", "build_traces"]


@dataclass(frozen=True)
class Built:
    """One process's trace and what was counted on the way."""

    name: str
    trace: Trace
    kernels: int
    steps: int
    streams: int
    total_kernel_ns: int


def baseline_pair(text: str) -> ClockPair:
    """The pair a recording ran at: recordings do not say, so ``auto`` is the governor.

    Raises:
        InputError: not a clock pair.
    """
    return GOVERNOR if text.strip().lower() == "auto" else parse_pair(text)


def build_traces(recording: Recording, name: str, baseline: str) -> list[Built]:
    """One trace for each process and device of the recording, in the order they appear.

    Raises:
        InputError: ``baseline`` is not a clock pair.
    """
    pair = baseline_pair(baseline)
    numbers = recording.kernels["process"].to_numpy()
    built = []
    for process in np.unique(numbers).tolist():
        kernels = recording.kernels[numbers == process]
        kernels = kernels.sort_values("start_ns", kind="stable").reset_index(drop=True)
        built.append(_build(recording, kernels, int(process), name, pair))
    return built


def _build(
    recording: Recording, kernels: pd.DataFrame, process: int, name: str, pair: ClockPair
) -> Built:
    keys = kernels[["shape", "op", "dims", "dtype"]]
    groups = keys.groupby(list(keys.columns), sort=False).ngroup()
    signature = np.asarray(groups, dtype=np.int64)
    kernels = kernels.assign(signature=signature)
    marks = recording.marks.get(process, recording.marks.get(None, Marks()))
    steps = find_steps(kernels, signature, marks)
    kernels["step"] = steps.step
    chosen = _choose(kernels)
    dropped = Counter(recording.dropped)
    dropped.update(chosen.dropped)
    notes = [*recording.notes, *_oddities(kernels), *_mended(recording)]
    step = chosen.step
    used, rows = np.unique(step["signature"].to_numpy(), return_inverse=True)
    order = np.argsort([int((rows == i).argmax()) for i in range(len(used))], kind="stable")
    rank = np.empty(len(used), dtype=np.int64)
    rank[order] = np.arange(len(used))
    step = step.assign(row=rank[rows])
    time_ns, spread = _step_times(kernels, chosen)
    profile = _profile(kernels, chosen, used[order])
    device = recording.processes[process]
    trace = Trace(
        gpu={
            "name": recording.gpus.get(device, "unknown"),
            "device": device,
            "simulated": False,
        },
        workload={"name": name, "rank": recording.rank, **recording.facts},
        provenance="imported",
        timeline=_timeline(recording, step, profile),
        signatures=_signatures(recording, step),
        pairs=PAIRS.frame(
            {
                "pair": [0],
                "core_mhz": pd.array([pair.core_mhz], dtype="Int32"),
                "mem_mhz": pd.array([pair.mem_mhz], dtype="Int32"),
                "step_time_ns": pd.array([time_ns if chosen.alike > 1 else None], dtype="Float64"),
                "step_time_sd_ns": pd.array([spread], dtype="Float64"),
                "step_n": pd.array([chosen.alike], dtype="Int32"),
                "provenance": ["imported"],
            }
        ),
        profile=PROFILE.frame(profile),
        baseline=Baseline(pair, time_ns, None),
        cyclic=steps.count > 1,
        dropped=dict(dropped),
        partial="; ".join(n for n in recording.notes if "not closed" in n) or None,
        notes=tuple(notes),
    )
    return Built(
        name=device,
        trace=trace,
        kernels=len(kernels),
        steps=steps.count,
        streams=int(kernels["stream"].nunique()),
        total_kernel_ns=sum(kernels["duration_ns"].tolist()),
    )


@dataclass(frozen=True)
class _Chosen:
    """The step that stands for the rest.

    ``alike`` steps have its sequence; ``aligned`` holds their kernels as rows of the process's
    frame, shape (alike, kernels a step), in comparing order; ``step`` is the chosen step's frame,
    by start, with ``mean_ns`` over the alike steps.
    """

    step: pd.DataFrame
    alike: int
    aligned: Int64s
    dropped: Mapping[str, int]


def _choose(kernels: pd.DataFrame) -> _Chosen:
    order = step_order(kernels)
    number = kernels["step"].to_numpy()[order]
    order, number = order[number >= 0], number[number >= 0]
    signature = kernels["signature"].to_numpy()[order]
    stream = pd.factorize(kernels["stream"])[0][order]
    words = np.stack([signature, stream], axis=1)
    cuts = np.flatnonzero(np.diff(number)) + 1
    bounds = list(zip([0, *cuts], [*cuts, len(order)], strict=True))
    groups: dict[bytes, list[tuple[int, int]]] = {}
    for begin, end in bounds:
        groups.setdefault(words[begin:end].tobytes(), []).append((int(begin), int(end)))
    # The commonest sequence; of several as common, the one that holds the most kernels.
    alike = max(groups.values(), key=lambda g: (len(g), g[0][1] - g[0][0]))
    aligned = np.stack([order[begin:end] for begin, end in alike])
    duration = kernels["duration_ns"].to_numpy()
    totals = duration[aligned].sum(axis=1)
    middle = int(np.argsort(totals, kind="stable")[len(totals) // 2])
    mean = duration[aligned].mean(axis=0)
    step = kernels.iloc[aligned[middle]].assign(mean_ns=mean)
    step = step.sort_values("start_ns", kind="stable").reset_index(drop=True)
    outside = len(kernels) - len(order)
    others = len(order) - aligned.size
    dropped = {
        "kernel outside every step": outside,
        "kernel of a step with another sequence": others,
    }
    return _Chosen(step, len(alike), aligned, {k: v for k, v in dropped.items() if v})


def _step_times(kernels: pd.DataFrame, chosen: _Chosen) -> tuple[float, float | None]:
    """Wall time of a step and its spread: first kernel to first kernel of the step after it.

    Where no step follows an alike one, from the first start to the last end.
    """
    start, end = kernels["start_ns"].to_numpy(), kernels["duration_ns"].to_numpy()
    begins = kernels[kernels["step"] >= 0].groupby("step")["start_ns"].min()
    steps = kernels["step"].to_numpy()[chosen.aligned[:, 0]]
    after = begins.reindex(steps + 1).to_numpy(dtype=float, na_value=np.nan)
    periods = after - begins.reindex(steps).to_numpy(dtype=float)
    periods = periods[np.isfinite(periods)]
    if len(periods):
        return float(periods.mean()), float(periods.std(ddof=1)) if len(periods) > 1 else None
    rows = chosen.aligned[0]
    return float((start[rows] + end[rows]).max() - start[rows].min()), None


def _profile(kernels: pd.DataFrame, chosen: _Chosen, used: Int64s) -> pd.DataFrame:
    rows = kernels.iloc[chosen.aligned.ravel()]
    by = rows.groupby("signature")["duration_ns"].agg(["mean", "std", "size"]).loc[used]
    return pd.DataFrame(
        {
            "signature": np.arange(len(used)),
            "pair": 0,
            "duration_ns": by["mean"].to_numpy(),
            "duration_sd_ns": pd.array((by["std"] / np.sqrt(by["size"])).tolist(), dtype="Float64"),
            "n": by["size"].to_numpy(),
            "provenance": "imported",
        }
    )


def _timeline(recording: Recording, step: pd.DataFrame, profile: pd.DataFrame) -> pd.DataFrame:
    first = int(step["start_ns"].min())
    row = step["row"].to_numpy()
    usual = profile["duration_ns"].to_numpy()[row]
    scale = np.divide(
        step["mean_ns"].to_numpy(), usual, out=np.full(len(step), np.nan), where=usual > 0
    )
    launch = step["launch_ns"].to_numpy()
    return TIMELINE.frame(
        {
            "index": np.arange(len(step)),
            "stream": step["stream"].to_numpy(),
            "start_ns": step["start_ns"].to_numpy() - first,
            "duration_ns": step["duration_ns"].to_numpy(),
            "signature": row,
            "launches": np.ones(len(step), dtype=np.int64),
            "op": _words(recording.ops, step["op"]),
            "module": _words(recording.modules, step["module"]),
            "phase": _words(PHASES, step["phase"]),
            "layer": _numbers(step["layer"].to_numpy(), -1),
            "launch_ns": _numbers(np.where(launch == UNKNOWN, UNKNOWN, launch - first), UNKNOWN),
            "time_scale": pd.array(scale, dtype="Float64"),
        }
    )


def _signatures(recording: Recording, step: pd.DataFrame) -> pd.DataFrame:
    first = step.drop_duplicates("row").sort_values("row")
    shapes = [recording.shapes[number] for number in first["shape"]]
    return SIGNATURES.frame(
        {
            "signature": np.arange(len(first)),
            "name": [shape.name for shape in shapes],
            "grid": pd.array([shape.grid for shape in shapes], dtype="string"),
            "block": pd.array([shape.block for shape in shapes], dtype="string"),
            "shared_bytes": pd.array([shape.shared_bytes for shape in shapes], dtype="Int64"),
            "registers": pd.array([shape.registers for shape in shapes], dtype="Int32"),
            "op": _words(recording.ops, first["op"]),
            "shapes": _words(recording.dims, first["dims"]),
            "dtype": _words(recording.dtypes, first["dtype"]),
            "flops": _numbers(first["flops"].to_numpy(), UNKNOWN),
        }
    )


def _words(words: list[str] | tuple[str, ...], numbers: pd.Series[Any]) -> Any:
    texts = [words[number] or None if number >= 0 else None for number in numbers]
    return pd.array(texts, dtype="string")


def _numbers(values: npt.NDArray[np.int64], unknown: int) -> Any:
    return pd.arrays.IntegerArray(values.astype(np.int64), values == unknown)


def _mended(recording: Recording) -> list[str]:
    return [f"mended in the file: {count} x {what}" for what, count in recording.repaired.items()]


def _oddities(kernels: pd.DataFrame) -> list[str]:
    """What a recorder's clock or the hardware did that a reader should know; nothing is changed."""
    notes = []
    ordered = kernels.sort_values(["stream", "start_ns"], kind="stable")
    start = ordered["start_ns"].to_numpy()
    end = start + ordered["duration_ns"].to_numpy()
    stream = ordered["stream"].to_numpy()
    latest = pd.Series(end).groupby(stream).cummax().to_numpy()
    same = stream[1:] == stream[:-1]
    overlap = np.where(same, np.minimum(latest[:-1], end[1:]) - start[1:], 0)
    if (overlap > 0).any():
        notes.append(
            f"{int((overlap > 0).sum())} kernels overlap an earlier one on their own stream, "
            f"by at most {int(overlap.max())} ns; both are kept as recorded"
        )
    launch = kernels["launch_ns"].to_numpy()
    early = (launch != UNKNOWN) & (kernels["start_ns"].to_numpy() < launch)
    if early.any():
        notes.append(
            f"{int(early.sum())} kernels start before their launch (the clocks of host and GPU "
            "differ); times are kept as recorded"
        )
    return notes
