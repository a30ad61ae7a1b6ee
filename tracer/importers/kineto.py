"""Read torch.profiler's Kineto traces (Chrome JSON) as a `Recording`.

Categories are matched without regard to case, since old files write ``Kernel`` and ``Operator``.
ROCm traces lack registers and often grids; a signature then rests on what is there. Copies and
sets of memory are not kernels and have no clock response worth a schedule: they are counted as
dropped, and their time stays in the timeline as the gap that it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .event_stream import EventStream
from .kineto_columns import Columns, whole
from .links import link
from .recording import Int64s, LaunchShape, Marks, Recording, amount, screen
from .source import open_source

__all__ = ["read_kineto"]


def read_kineto(path: Path) -> Recording:
    """Read one Kineto trace, plain or gzip, as an object or an array.

    The recording may hold no kernel: what then is up to the caller.

    Raises:
        InputError: no such file.
        FormatError: not a Chrome trace, cut off, or damaged beyond mending.
    """
    columns = Columns()
    with open_source(path) as source:
        stream = EventStream(source)
        for batch in stream:
            columns.add(batch)
    recording = _recording(columns)
    recording.repaired += stream.repaired
    if stream.unclosed:
        recording.notes.append("the event array is not closed: the recording ended early")
    _describe(recording, stream.metadata)
    return recording


def _describe(recording: Recording, metadata: dict[str, Any]) -> None:
    devices = metadata.get("deviceProperties")
    recording.gpus = {
        str(device.get("id")): str(device["name"])
        for device in (devices if isinstance(devices, list) else [])
        if isinstance(device, dict) and device.get("name")
    }
    distributed = metadata.get("distributedInfo")
    if isinstance(distributed, dict) and isinstance(distributed.get("rank"), int):
        recording.rank = distributed["rank"]
        recording.facts["world_size"] = distributed.get("world_size")
    base = metadata.get("baseTimeNanoseconds")
    if isinstance(base, int):
        recording.facts["base_time_ns"] = base
    for key in ("traceName", "cuda_driver_version", "host_name"):
        if isinstance(metadata.get(key), int | str):
            recording.facts[key] = metadata[key]


def _recording(columns: Columns) -> Recording:
    kernels = screen(columns.kernels(), columns.dropped)
    linked, words = link(kernels, columns.host)
    shapes = [
        LaunchShape(
            name or "unknown",
            _extent(grid),
            _extent(block),
            amount(whole(shared)),
            amount(whole(registers)),
        )
        for name, grid, block, shared, registers in columns.shapes.words()
    ]
    return Recording(
        kernels=linked,
        shapes=shapes,
        processes=columns.processes.words(),
        marks={None: Marks(_marks(columns.marks), _marks(columns.gpu_marks))},
        dropped=columns.dropped,
        other_events=columns.others,
        **words,
    )


def _extent(value: tuple[int, ...] | None) -> str | None:
    return ",".join(map(str, value)) if value else None


def _marks(windows: list[tuple[int, int, int]]) -> Int64s:
    return np.array(sorted(windows), dtype=np.int64).reshape(-1, 3)
