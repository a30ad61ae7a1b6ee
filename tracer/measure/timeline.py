"""Kernel timelines of several steps, from torch.profiler, exact to the nanosecond.

Steps are marked by `marked_step` inside one profiler session whose first steps are unmarked and
left out (the profiler's own buffers are made during them). The export is read by the Kineto
importer; kernels of the steps are then aligned by stream and order. A step whose launches have no
kernel (the profiler dropped them) is incomplete and refused; a step whose signatures differ from
the commonest sequence is left out, and its first difference is named.

Module paths come from ranges that forward hooks open, backward kernels take the module of the
forward operator they belong to (autograd's sequence numbers), the optimizer's kernels its own
range. Left out: copies and sets of memory, which have no clock response worth a schedule.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...data.errors import DeviceError, WorkloadError
from ...data.tables import PHASES
from ..importers.event_stream import EventStream
from ..importers.kineto import read_kineto
from ..importers.recording import UNKNOWN, Marks, Recording
from ..importers.source import open_source
from ..importers.steps import find_steps, step_order

__all__ = [
    "SPIN_KERNEL",
    "Probes",
    "StepTimeline",
    "marked_step",
    "module_ranges",
    "profile_to",
    "read_timeline",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SPIN_KERNEL = "spin_kernel"
"""Name of the kernel that ``torch.cuda._sleep`` launches: a probe, never part of the step."""

_MODULE = "nn.Module: "
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_KEY = ["shape", "op", "dims", "dtype"]


@dataclass(frozen=True)
class Probes:
    """Spin kernels found among the steps: start, duration (ns) and step, each (N,)."""

    start_ns: Ints
    duration_ns: Ints
    step: Ints


@dataclass(frozen=True)
class StepTimeline:
    """R alike steps of K kernels.

    Attributes:
        signatures: one row a distinct launch, with the identity columns of `tables.SIGNATURES`.
        kernels: one row a kernel in order of start: ``stream``, ``signature``, ``op``,
            ``module``, ``phase``, ``layer``.
        start_ns: (R, K) on the recorder's clock.
        duration_ns: (R, K).
        launch_ns: (R, K); `UNKNOWN` where the launch is not known.
        probes: spin kernels within the steps.
        odd: what differed in the steps left out, a sentence each.
        dropped: what was left out, reason to count.
    """

    signatures: pd.DataFrame
    kernels: pd.DataFrame
    start_ns: Ints
    duration_ns: Ints
    launch_ns: Ints
    probes: Probes
    odd: tuple[str, ...]
    dropped: dict[str, int]

    @property
    def busy_ns(self) -> Floats:
        """(R,) kernel time of each step, overlaps counted twice."""
        return np.asarray(self.duration_ns.sum(axis=1), dtype=np.float64)

    @property
    def span_ns(self) -> Floats:
        """(R,) first start to last end of each step."""
        end = self.start_ns + self.duration_ns
        return np.asarray(end.max(axis=1) - self.start_ns.min(axis=1), dtype=np.float64)

    def keys(self) -> list[tuple[Any, ...]]:
        """The identity of each kernel's launch, in order."""
        columns = ["name", "grid", "block", "shared_bytes", "registers", "op", "shapes"]
        rows = [
            tuple(None if pd.isna(v) else v for v in row)
            for row in self.signatures[columns].itertuples(index=False)
        ]
        return [rows[i] for i in self.kernels["signature"]]


@contextmanager
def marked_step(number: int) -> Iterator[None]:
    """Mark the launches within as step ``number``, as the profiler's own schedule would."""
    from torch.profiler import record_function

    with record_function(f"ProfilerStep#{number}"):
        yield


@contextmanager
def module_ranges(model: Any) -> Iterator[None]:
    """Open a profiler range around each module's forward; hooks are removed at the end.

    A range is named by the module's path, its dots written as slashes so that nested ranges can be
    told apart when they are joined.
    """
    from torch.profiler import record_function

    if model is None:
        yield
        return
    open_ranges: list[Any] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            scope: Any = record_function(_MODULE + (name.replace(".", "/") or "~"))
            scope.__enter__()
            open_ranges.append(scope)

        return hook

    def leave(*_: Any) -> None:
        if open_ranges:
            open_ranges.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter(name), prepend=True).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def profile_to(path: Path, body: Callable[[], object]) -> None:
    """Run ``body`` under torch.profiler (CPU and CUDA activities, shapes) and export its trace.

    Raises:
        DeviceError: the profiler cannot be started (another profiler holds CUPTI, say).
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    try:
        # One cycle is all there is; without the last option some versions warn that more are lost.
        profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            record_shapes=True,
            acc_events=True,
        )
        profiler.start()
    except RuntimeError as error:
        raise DeviceError(
            f"torch.profiler could not start: {str(error).splitlines()[0]}; another profiler may "
            "hold the GPU's tracing interface"
        ) from error
    try:
        body()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    finally:
        profiler.stop()
    profiler.export_chrome_trace(str(path))


def read_timeline(path: Path) -> StepTimeline:
    """Read the marked steps of a profile.

    Raises:
        FormatError: the file is damaged or holds no kernel.
        WorkloadError: no complete step, or no two steps alike.
    """
    recording = read_kineto(path)
    kernels = recording.kernels.sort_values("start_ns", kind="stable").reset_index(drop=True)
    signature = np.asarray(kernels.groupby(_KEY, sort=False).ngroup(), dtype=np.int64)
    marks = recording.marks.get(None, Marks())
    if not len(marks.host):
        raise WorkloadError(f"{path}: no marked step in the profile; the step never ran")
    windows = marks.host
    kernels = kernels.assign(signature=signature, step=find_steps(kernels, signature, marks).step)
    numbers = _step_numbers(kernels, windows)
    lost = _lost_launches(path, kernels, windows)
    names = np.array([SPIN_KERNEL in shape.name for shape in recording.shapes])
    spin = names[kernels["shape"].to_numpy()]
    probes = kernels[spin & (kernels["step"] >= 0).to_numpy()]
    work = kernels[~spin].reset_index(drop=True)
    aligned, order_steps, odd = _align(work, recording, numbers, lost)
    dropped = Counter(recording.dropped)
    if lost:
        dropped["kernel that the profiler dropped"] = sum(lost.values())
    return _timeline(recording, work, aligned, order_steps, probes, odd, dropped)


def _step_numbers(kernels: pd.DataFrame, windows: Ints) -> dict[int, int]:
    """Step index (as `find_steps` counts) to the number its mark bears."""
    numbers = {}
    for step, rows in kernels[kernels["step"] >= 0].groupby("step"):
        launch = rows["launch_ns"].to_numpy()
        known = launch[launch != UNKNOWN]
        at = int(known[0]) if len(known) else int(rows["start_ns"].iloc[0])
        row = int(np.searchsorted(windows[:, 0], at, side="right")) - 1
        numbers[int(str(step))] = int(windows[max(row, 0), 2])
    return numbers


def _lost_launches(path: Path, kernels: pd.DataFrame, windows: Ints) -> dict[int, int]:
    """Kernel launches without a kernel, by the number of the step they are in."""
    from ..importers.decimals import us_text_to_ns

    seen = set(kernels["correlation"].to_numpy().tolist())
    lost: Counter[int] = Counter()
    with open_source(path) as source:
        for batch in EventStream(source):
            for event in batch:
                if event.cat not in {"cuda_runtime", "cuda_driver"} or event.args is None:
                    continue
                low = (event.name or "").lower()
                if "launchkernel" not in low or event.args.correlation in seen:
                    continue
                at = us_text_to_ns(bytes(event.ts))
                row = int(np.searchsorted(windows[:, 0], at, side="right")) - 1
                if row >= 0 and at < windows[row, 1]:
                    lost[int(windows[row, 2])] += 1
    return dict(lost)


def _align(
    work: pd.DataFrame, recording: Recording, numbers: dict[int, int], lost: dict[int, int]
) -> tuple[Ints, list[int], tuple[str, ...]]:
    """Rows of ``work`` as (R, K) in comparing order, their steps, and what others did."""
    order = step_order(work)
    step = work["step"].to_numpy()[order]
    order, step = order[step >= 0], step[step >= 0]
    stream = pd.factorize(work["stream"])[0]
    signature = work["signature"].to_numpy()
    groups: dict[bytes, list[tuple[int, Ints]]] = {}
    odd = []
    for number in np.unique(step).tolist():
        rows = order[step == number]
        if lost.get(numbers[number]):
            odd.append(
                f"step {numbers[number]} is incomplete: the profiler dropped "
                f"{lost[numbers[number]]} of its kernels"
            )
            continue
        words = np.stack([signature[rows], stream[rows]], axis=1)
        groups.setdefault(words.tobytes(), []).append((number, rows))
    if not groups:
        raise WorkloadError("; ".join(odd) or "the marked steps launched no kernel")
    usual = max(groups.values(), key=len)
    for group in groups.values():
        if group is not usual:
            odd += [
                f"step {numbers[n]}: {_difference(work, recording, usual[0][1], rows)}"
                for n, rows in group
            ]
    if len(usual) < 2 and len(groups) > 1:
        raise WorkloadError(f"no two steps launch the same kernels: {odd[0]}")
    return np.stack([rows for _, rows in usual]), [n for n, _ in usual], tuple(odd)


def _difference(work: pd.DataFrame, recording: Recording, usual: Ints, other: Ints) -> str:
    a = work["signature"].to_numpy()[usual]
    b = work["signature"].to_numpy()[other]
    shared = min(len(a), len(b))
    place = int((a[:shared] != b[:shared]).argmax()) if (a[:shared] != b[:shared]).any() else shared

    def name(rows: Ints) -> str:
        if place >= len(rows):
            return "nothing"
        row = work.iloc[int(rows[place])]
        shape = recording.shapes[int(row["shape"])]
        dims = recording.dims[int(row["dims"])] if row["dims"] >= 0 else "unknown shapes"
        return f"{shape.name[:80]} grid {shape.grid} of {dims}"

    return f"kernel {place} is {name(other)}, where the usual step has {name(usual)}"


def _timeline(
    recording: Recording,
    work: pd.DataFrame,
    aligned: Ints,
    steps: list[int],
    probes: pd.DataFrame,
    odd: tuple[str, ...],
    dropped: Counter[str],
) -> StepTimeline:
    duration = work["duration_ns"].to_numpy()
    start = work["start_ns"].to_numpy()
    middle = int(np.argsort(duration[aligned].sum(axis=1), kind="stable")[len(aligned) // 2])
    columns = np.argsort(start[aligned[middle]], kind="stable")
    aligned = aligned[:, columns]
    one = work.iloc[aligned[middle]].reset_index(drop=True)
    number, first = pd.factorize(one["signature"].to_numpy())
    rows = one.iloc[[int((number == i).argmax()) for i in range(len(first))]]
    shapes = [recording.shapes[i] for i in rows["shape"]]
    signatures = pd.DataFrame(
        {
            "signature": np.arange(len(rows)),
            "name": [shape.name for shape in shapes],
            "grid": pd.array([shape.grid for shape in shapes], dtype="string"),
            "block": pd.array([shape.block for shape in shapes], dtype="string"),
            "shared_bytes": pd.array([shape.shared_bytes for shape in shapes], dtype="Int64"),
            "registers": pd.array([shape.registers for shape in shapes], dtype="Int32"),
            "op": _words(recording.ops, rows["op"]),
            "shapes": _words(recording.dims, rows["dims"]),
            "dtype": _words(recording.dtypes, rows["dtype"]),
        }
    )
    modules = [_module(recording.modules[m]) if m >= 0 else None for m in one["module"]]
    kernels = pd.DataFrame(
        {
            "stream": one["stream"].to_numpy(),
            "signature": number,
            "op": _words(recording.ops, one["op"]),
            "module": pd.array(modules, dtype="string"),
            "phase": [PHASES[p] for p in one["phase"]],
            "layer": pd.array([_layer(m) for m in modules], dtype="Int32"),
        }
    )
    position = {step: i for i, step in enumerate(steps)}
    inside = probes[probes["step"].isin(position)]
    return StepTimeline(
        signatures=signatures,
        kernels=kernels,
        start_ns=start[aligned],
        duration_ns=duration[aligned],
        launch_ns=work["launch_ns"].to_numpy()[aligned],
        probes=Probes(
            inside["start_ns"].to_numpy(),
            inside["duration_ns"].to_numpy(),
            np.array([position[s] for s in inside["step"]], dtype=np.int64),
        ),
        odd=odd,
        dropped={k: v for k, v in dropped.items() if v},
    )


def _words(words: list[str], numbers: pd.Series[Any]) -> Any:
    return pd.array([words[n] or None if n >= 0 else None for n in numbers], dtype="string")


def _module(joined: str) -> str | None:
    """The path of the innermost module out of the joined ranges around a launch."""
    return joined.rpartition(".")[2].replace("/", ".").removeprefix("~") or None


def _layer(module: str | None) -> int | None:
    match = _LAYER.search(module or "")
    return int(match[1]) if match else None
