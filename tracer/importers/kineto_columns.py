"""Sort Kineto events into columns, category by category, a batch at a time.

Kept of each event is only what links or times kernels: kernels, launches, operators with their
shapes, module, optimizer and backward scopes, step annotations. All else is counted by category
and let go, so memory grows with kernels and operators, not with the file. The work on a batch is
done by whole columns, since a Python statement an event would take most of the time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from .decimals import MALFORMED, MISSING, WIDE, us_texts_to_ns
from .kineto_events import Args, Event, Number
from .links import Host
from .recording import UNKNOWN, Int64s, Vocabulary, amount

__all__ = ["Columns", "whole"]

_KERNEL_COLUMNS = (
    "process",
    "stream",
    "start_ns",
    "duration_ns",
    "shape",
    "correlation",
    "external",
    "node",
)
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")
_DIGITS = re.compile(r"-?\d+")
_MODULE = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_NO_ARGS = Args()
_FIRST_MADE_UP_STREAM = 1_000_000
_TS, _DUR, _NAME, _TID = (attrgetter(name) for name in ("ts", "dur", "name", "tid"))
_ARGS = attrgetter("args")
_SHAPE = attrgetter("name", *(f"args.{n}" for n in ("grid", "block", "shared_bytes", "registers")))
_STREAM = attrgetter("args.stream", "args.queue", "tid")
_DEVICE = attrgetter("args.device", "pid")
_BAD_TIMES = {
    MISSING: "kernel without a start or a duration",
    MALFORMED: "kernel whose time is no number",
    WIDE: "kernel whose time is beyond 64 bits of nanoseconds",
}


def whole(value: Number) -> int | None:
    """A whole number out of what JSON gave, digits within a word included; else None."""
    if type(value) is int:
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and (match := _DIGITS.search(value)):
        return int(match[0])
    return None


def _key(value: Number) -> int:
    """An id as int64; those above 2**63 keep their 64 bits, so equal ids stay equal."""
    number = whole(value)
    if number is None:
        return UNKNOWN
    wrapped = ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
    return wrapped if wrapped != UNKNOWN else UNKNOWN + 1  # 2**63 itself is the mark for unknown


def _keys(values: Sequence[Number]) -> Int64s:
    """A column of ids as int64; UNKNOWN where there is none."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass
    if kinds == {type(None)}:
        return np.full(len(values), UNKNOWN)
    return np.array([_key(value) for value in values], dtype=np.int64)


def _counts(values: Sequence[Number]) -> Int64s:
    """A column of counts as int64; UNKNOWN where there is none that can be true."""
    counts = (amount(whole(value), 1 << 62) for value in values)
    return np.array([UNKNOWN if count is None else count for count in counts], dtype=np.int64)


def _externals(args: Sequence[Any]) -> Int64s:
    """External ids, by the name that files up to PyTorch 1.11 gave them where need be."""
    keys = _keys([one.external_id for one in args])
    unknown = keys == UNKNOWN
    if unknown.any():
        keys[unknown] = _keys(
            [args[row].external_id_old for row in np.flatnonzero(unknown).tolist()]
        )
    return keys


class _Streams(dict[Any, int]):
    """Numbers streams as the file does, or from a million where it has no small number."""

    def __missing__(self, key: tuple[Number, Number, Number]) -> int:
        stream, queue, thread = key
        first = next((value for value in (stream, queue, thread) if value is not None), None)
        number = whole(first)
        if number is None or not 0 <= number < _FIRST_MADE_UP_STREAM:
            number = _FIRST_MADE_UP_STREAM + len(self)
        self[key] = number
        return number


class _Launching(dict[str | None, int]):
    """Whether a runtime call launches: 0 no, 1 a kernel, 2 a CUDA graph."""

    def __missing__(self, name: str | None) -> int:
        low = (name or "").lower()
        self[name] = kind = ("launch" in low) + ("graphlaunch" in low)
        return kind


class Columns:
    """Columns as they grow.

    Attributes:
        host: what launched, and from where.
        shapes: (name, grid, block, shared memory, registers) as the file has them.
        processes: devices as the file names them.
        marks, gpu_marks: (start_ns, end_ns, step) of step annotations.
        dropped: reason to count.
        others: events of no use but their context, by category.
    """

    def __init__(self) -> None:
        self.host = Host()
        self.shapes: Vocabulary[Any] = Vocabulary()
        self.processes: Vocabulary[str] = Vocabulary()
        self.marks: list[tuple[int, int, int]] = []
        self.gpu_marks: list[tuple[int, int, int]] = []
        self.dropped: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self._kernels: list[Int64s] = []
        self._streams = _Streams()
        self._launching = _Launching()
        copies, sets = "memory copy (not a kernel)", "memory set (not a kernel)"
        self._takers: dict[str, Callable[[list[Event]], None] | str] = {
            "kernel": self._add_kernels,
            "cpu_op": self._add_ops,
            "operator": self._add_ops,
            "python_function": self._add_modules,
            "user_annotation": self._add_annotations,
            "gpu_user_annotation": self._add_gpu_marks,
            **dict.fromkeys(("gpu_memcpy", "memcpy"), copies),
            **dict.fromkeys(("gpu_memset", "memset"), sets),
        }
        for api in ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"):
            self._takers[api] = self._add_launches

    def add(self, batch: Iterable[Event]) -> None:
        """Take a batch of events; categories are matched without regard to case."""
        groups: defaultdict[str | None, list[Event]] = defaultdict(list)
        for event in batch:
            groups[event.cat].append(event)
        for category, events in groups.items():
            taker = self._takers.get((category or "").lower())
            if isinstance(taker, str):
                self.dropped[taker] += len(events)
                continue
            if taker != self._add_kernels:
                self.others[category or "uncategorised"] += len(events)
            if taker is not None:
                taker(events)

    def kernels(self) -> pd.DataFrame:
        """All kernels so far, in the order of the file, as int64 columns."""
        empty = np.zeros((len(_KERNEL_COLUMNS), 0), dtype=np.int64)
        table = np.concatenate([empty, *self._kernels], axis=1)
        self._kernels = [table]
        return pd.DataFrame(dict(zip(_KERNEL_COLUMNS, table, strict=True)))

    def _add_kernels(self, events: list[Event]) -> None:
        phases = Counter(event.ph for event in events)
        if set(phases) != {"X"}:
            for phase, count in phases.items():
                if phase != "X":
                    reason = f"kernel event of phase {phase!r}, not a complete event"
                    self.dropped[reason] += count
            events = [event for event in events if event.ph == "X"]
        start = us_texts_to_ns(map(_TS, events))
        duration = us_texts_to_ns(map(_DUR, events))
        bad = (start <= WIDE) | (duration <= WIDE)
        if bad.any():
            for row in np.flatnonzero(bad):
                self.dropped[_BAD_TIMES[min(start[row], duration[row])]] += 1
            events = [events[row] for row in np.flatnonzero(~bad)]
            start, duration = start[~bad], duration[~bad]
        if not events:
            return
        args = [_or_none(event) for event in events]
        node = _keys([one.graph_node for one in args])
        process = [_device(device, pid) for device, pid in map(_DEVICE, events)]
        self._kernels.append(
            np.stack(
                [
                    _numbers(self.processes, process),
                    _numbers(self._streams, map(_STREAM, events)),
                    start,
                    duration,
                    _numbers(self.shapes, map(_SHAPE, events)),
                    _keys([one.correlation for one in args]),
                    _externals(args),
                    np.where(node == UNKNOWN, 0, node),
                ]
            )
        )

    def _add_ops(self, events: list[Event]) -> None:
        events = [e for e in events if e.args is not None and e.name is not None]
        if not events:
            return
        args = list(map(_ARGS, events))
        host = self.host
        names = _numbers(host.op_names, map(_NAME, events))
        dims = [bytes(one.dims) or bytes(one.dims_old) for one in args]
        flops = [one.flops for one in args]
        table = np.stack(
            [
                _externals(args),
                names,
                _numbers(host.dims, dims),
                _numbers(host.types, [bytes(one.types) for one in args]),
                _counts(flops) if any(flops) else np.full(len(args), UNKNOWN),
            ]
        )
        host.ops.append(table[:, table[0] != UNKNOWN])
        self._add_autograd(events, [one.sequence for one in args])

    def _add_autograd(self, events: list[Event], sequences: list[Number]) -> None:
        """Windows of the backward pass, and starts of the forward operators it goes back to."""
        backward = [row for row, e in enumerate(events) if (e.name or "").startswith(_BACKWARD)]
        if backward:
            numbers = _keys([sequences[row] for row in backward])
            self._add_scopes(
                self.host.phases, [events[row] for row in backward], "backward", numbers
            )
        forward = [
            row
            for row, sequence in enumerate(sequences)
            if type(sequence) is int
            and sequence >= 0
            and "Backward" not in (events[row].name or "")
        ]
        if forward:
            picked = [events[row] for row in forward]
            start = us_texts_to_ns(map(_TS, picked))
            thread = _numbers(self.host.threads, map(_TID, picked))
            keys = _keys([sequences[row] for row in forward])
            self.host.forward.append(np.stack([keys, thread, start])[:, start > WIDE])

    def _add_launches(self, events: list[Event]) -> None:
        kind = _numbers(self._launching, map(_NAME, events))
        rows = [row for row in np.flatnonzero(kind) if events[row].args is not None]
        if not rows:
            return
        events = [events[row] for row in rows]
        args = list(map(_ARGS, events))
        start = us_texts_to_ns(map(_TS, events))
        table = np.stack(
            [
                _keys([one.correlation for one in args]),
                start,
                _numbers(self.host.threads, map(_TID, events)),
                _externals(args),
                kind[rows] == 2,
            ]
        )
        self.host.launches.append(table[:, start > WIDE])

    def _add_modules(self, events: list[Event]) -> None:
        picked = [e for e in events if e.name is not None and e.name.startswith(_MODULE)]
        self._add_scopes(self.host.modules, picked)

    def _add_annotations(self, events: list[Event]) -> None:
        self._add_marks(events, self.marks)
        picked = [e for e in events if (e.name or "").startswith("Optimizer.")]
        self._add_scopes(self.host.phases, picked, "optimizer")
        # A recorder's module ranges, opened by hooks: cheaper than the profiler's Python tracer.
        self._add_modules(events)

    def _add_gpu_marks(self, events: list[Event]) -> None:
        self._add_marks(events, self.gpu_marks)

    def _add_marks(self, events: list[Event], marks: list[tuple[int, int, int]]) -> None:
        steps = [(e, match) for e in events if (match := _STEP.match(e.name or ""))]
        start = us_texts_to_ns([e.ts for e, _ in steps])
        duration = us_texts_to_ns([e.dur for e, _ in steps])
        for (_, match), begin, length in zip(steps, start.tolist(), duration.tolist(), strict=True):
            if begin > WIDE and length > WIDE:
                marks.append((begin, begin + length, int(match[1])))

    def _add_scopes(
        self,
        scopes: list[Int64s],
        events: list[Event],
        name: str | None = None,
        sequences: Int64s | None = None,
    ) -> None:
        """Windows on host threads, named ``name`` or as the module that the event names."""
        if not events:
            return
        start, duration = us_texts_to_ns(map(_TS, events)), us_texts_to_ns(map(_DUR, events))
        names = [(e.name or "")[len(_MODULE) :] for e in events] if name is None else None
        words = self.host.scope_names
        table = np.stack(
            [
                _numbers(self.host.threads, map(_TID, events)),
                start,
                start + duration,
                np.full(len(events), words[name or ""])
                if names is None
                else _numbers(words, names),
                np.full(len(events), UNKNOWN) if sequences is None else sequences,
            ]
        )
        scopes.append(table[:, (start > WIDE) & (duration > WIDE)])


def _device(device: Number, process: Number) -> str:
    name = process if device is None else device
    return "0" if name is None else str(name)


def _or_none(event: Event) -> Any:
    """The event's args, empty ones where it has none, so that columns can be read by name."""
    if event.args is None:
        event.args = _NO_ARGS
    return event.args


def _numbers(numbering: dict[Any, int], words: Iterable[Any]) -> Int64s:
    return np.fromiter(map(numbering.__getitem__, words), dtype=np.int64)
