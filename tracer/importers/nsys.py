"""Read Nsight Systems SQLite exports (``nsys export --type sqlite``) as a `Recording`.

Schema: https://docs.nvidia.com/nsight-systems/ (SQLite Export Schema Reference). Tables and
columns come and go between versions, so each is looked up before it is used: only
``CUPTI_ACTIVITY_KIND_KERNEL`` with start, end and stream is needed. Times are integer ns already.
Processes (``globalPid``) and devices are kept apart. Operators come from the NVTX ranges that
``torch.autograd.profiler.emit_nvtx`` pushes, steps from NVTX ranges named after steps.

Left out: whole-graph records (``--cuda-graph-trace=graph``), which name no kernel, are counted as
dropped.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...data.errors import FormatError, InputError
from ...data.tables import PHASES
from .links import innermost
from .recording import UNKNOWN, Int64s, LaunchShape, Marks, Recording, Vocabulary, amount, screen

__all__ = ["read_nsys"]

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_OTHERS = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": "memory copy (not a kernel)",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memory set (not a kernel)",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "whole CUDA graph (record with --cuda-graph-trace=node)",
}
_STEP = re.compile(
    r"(?:ProfilerStep\s*#|(?:training |train_)?(?:step|iter|iteration|batch)[\s_#:=-]*)"
    r"(\d{1,18})\b",
    re.IGNORECASE,
)
_OP = re.compile(r"([\w:.]+)(?:, (?:op_id|seq) = |, sizes = |$)")
_SIZES = re.compile(r"sizes = (\[.*\])")
_PUSH_POP, _START_END = 59, 60
_THREAD_MASK = ~0xFFFFFF


def read_nsys(path: Path) -> Recording:
    """Read one export.

    The recording may hold no kernel: what then is up to the caller.

    Raises:
        InputError: no such file.
        FormatError: not a database, damaged, or of a schema without the columns needed.
    """
    path = Path(path)
    with _connect(path) as database:
        tables = _Tables(database, path)
        return _Reader(tables).read()


@contextmanager
def _connect(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    # Immutable: reading must leave no journal beside somebody's recording.
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        yield database
    except sqlite3.DatabaseError as error:
        raise FormatError(
            f"{path}: not a whole SQLite database ({error}); export it again with "
            "nsys export --type sqlite"
        ) from error
    finally:
        database.close()


class _Tables:
    """The tables and columns that this export has."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._database = database
        names = [
            str(row[0])
            for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        self.columns: dict[str, set[str]] = {
            name: {str(row[1]) for row in database.execute(f"PRAGMA table_info({_quoted(name)})")}
            for name in names
        }

    def __contains__(self, table: str) -> bool:
        return table in self.columns

    def count(self, table: str) -> int:
        """Rows of a table; 0 if it is not there."""
        if table not in self:
            return 0
        return int(self._database.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])

    def rows(self, table: str, columns: list[str], order: str = "") -> list[tuple[Any, ...]]:
        """Rows with the columns named, None for one that the table lacks."""
        have = self.columns.get(table)
        if have is None:
            return []
        picked = [_quoted(column) if column in have else "NULL" for column in columns]
        clause = f" ORDER BY {_quoted(order)}" if order in have else ""
        query = f"SELECT {', '.join(picked)} FROM {_quoted(table)}{clause}"
        return self._database.execute(query).fetchall()

    def need(self, table: str, columns: set[str]) -> None:
        """Refuse a table that lacks a column we cannot do without."""
        lacking = columns - self.columns[table]
        if lacking:
            raise FormatError(
                f"{self.path}: table {table} has no column {', '.join(sorted(lacking))}; "
                "export it again with a current nsys export --type sqlite"
            )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Reader:
    def __init__(self, tables: _Tables) -> None:
        self.tables = tables
        self.dropped: Counter[str] = Counter()
        self.strings: dict[int, str] = dict(tables.rows("StringIds", ["id", "value"]))
        self.shapes: Vocabulary[LaunchShape] = Vocabulary()
        self.processes: Vocabulary[tuple[int, int]] = Vocabulary()
        self.ops: Vocabulary[str] = Vocabulary()
        self.dims: Vocabulary[str] = Vocabulary()

    def read(self) -> Recording:
        for table, reason in _OTHERS.items():
            if count := self.tables.count(table):
                self.dropped[reason] += count
        others = Counter(
            {
                table: count
                for table in (_RUNTIME, "NVTX_EVENTS")
                if (count := self.tables.count(table))
            }
        )
        kernels = screen(self._kernels(), self.dropped)
        kernels, marks = self._link(kernels)
        return Recording(
            kernels=kernels,
            shapes=self.shapes.words(),
            ops=self.ops.words(),
            dims=self.dims.words(),
            dtypes=[],
            modules=[],
            processes=[self._device(*key) for key in self.processes.words()],
            marks=marks,
            gpus=self._gpus(),
            dropped=self.dropped,
            other_events=others,
        )

    def _device(self, pid: int, device: int) -> str:
        several = len({key[0] for key in self.processes.words()}) > 1
        return f"{device}-pid{(pid >> 24) & 0xFFFFFF}" if several else str(device)

    def _gpus(self) -> dict[str, str]:
        rows = self.tables.rows("TARGET_INFO_GPU", ["id", "name"])
        names = {str(number): str(name) for number, name in rows if name}
        devices = {self._device(*key): str(key[1]) for key in self.processes.words()}
        return {device: names[number] for device, number in devices.items() if number in names}

    def _name(self, *numbers: Any) -> str:
        for number in numbers:
            if isinstance(number, str):
                return number
            if number is not None and (name := self.strings.get(number)):
                return name
        return "unknown"

    def _kernels(self) -> pd.DataFrame:
        rows: list[tuple[int, ...]] = []
        if _KERNEL in self.tables:
            self.tables.need(_KERNEL, {"start", "end", "streamId"})
        extents = [f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"]
        wanted = ["start", "end", "streamId", "deviceId", "globalPid", "correlationId"]
        wanted += ["graphNodeId", "demangledName", "shortName", "mangledName"]
        wanted += ["registersPerThread", "staticSharedMemory", "dynamicSharedMemory", *extents]
        for row in self.tables.rows(_KERNEL, wanted, order="start"):
            start, end, stream, device, pid, correlation, node, *rest = row
            if start is None or end is None:
                self.dropped["kernel without a start or a duration"] += 1
                continue
            names, registers, fixed, dynamic, extent = rest[:3], rest[3], rest[4], rest[5], rest[6:]
            shape = LaunchShape(
                self._name(*names),
                _extent(extent[:3]),
                _extent(extent[3:]),
                None
                if fixed is None and dynamic is None
                else amount((fixed or 0) + (dynamic or 0)),
                amount(registers or None),  # exports write 0 for unknown
            )
            rows.append(
                (
                    self.processes[(pid or 0, device or 0)],
                    stream if stream is not None and 0 <= stream < 1 << 31 else 0,
                    start,
                    end - start,
                    self.shapes[shape],
                    UNKNOWN if correlation is None else correlation,
                    node or 0,
                    pid or 0,
                )
            )
        columns = ["process", "stream", "start_ns", "duration_ns", "shape", "correlation"]
        table = np.array(rows, dtype=np.int64).reshape(-1, 8)
        return pd.DataFrame({name: table[:, i] for i, name in enumerate([*columns, "node", "pid"])})

    def _link(self, kernels: pd.DataFrame) -> tuple[pd.DataFrame, dict[int | None, Marks]]:
        launch, thread = self._launches(kernels)
        ranges, texts, pids = self._ranges()
        steps = [m and int(m[1]) for m in map(_STEP.match, texts)]
        stepping = np.array([step is not None for step in steps], dtype=bool)
        number = self._operators(
            ranges[~stepping] if len(ranges) else ranges,
            thread,
            launch,
            [text for text, step in zip(texts, steps, strict=True) if step is None],
        )
        in_graph = kernels["node"].to_numpy() != 0
        count = len(kernels)
        linked = kernels.drop(columns="pid").assign(
            launch_ns=launch,
            op=np.where(in_graph, -1, number[0]),
            dims=np.where(in_graph, -1, number[1]),
            dtype=np.full(count, -1),
            module=np.full(count, -1),
            layer=np.full(count, -1),
            phase=np.full(count, PHASES.index("other")),
            flops=np.full(count, UNKNOWN),
        )
        marks: dict[int | None, Marks] = {}
        for process, (pid, _) in enumerate(self.processes.words()):
            windows = [
                (int(ranges[row, 1]), int(ranges[row, 2]), step)
                for row, step in enumerate(steps)
                if step is not None and pids[row] in {pid, 0}
            ]
            marks[process] = Marks(np.array(sorted(windows), dtype=np.int64).reshape(-1, 3))
        return linked, marks

    def _launches(self, kernels: pd.DataFrame) -> tuple[Int64s, Int64s]:
        """Start and thread of each kernel's launch, by correlation within its process."""
        rows = self.tables.rows(_RUNTIME, ["correlationId", "start", "globalTid"])
        found = {
            ((thread or 0) & _THREAD_MASK, correlation): (start, thread or 0)
            for correlation, start, thread in rows
            if correlation is not None and start is not None
        }
        unknown = (UNKNOWN, -1)
        pairs = [
            found.get((pid, correlation), unknown)
            for pid, correlation in zip(
                kernels["pid"].tolist(), kernels["correlation"].tolist(), strict=True
            )
        ]
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def _ranges(self) -> tuple[Int64s, list[str], list[int]]:
        """NVTX ranges as (thread, start_ns, end_ns), with their texts and processes."""
        wanted = ["globalTid", "start", "end", "text", "textId", "eventType"]
        rows, texts, pids = [], [], []
        for thread, start, end, text, number, kind in self.tables.rows("NVTX_EVENTS", wanted):
            if start is None or end is None or kind not in {None, _PUSH_POP, _START_END}:
                continue
            rows.append((thread or 0, start, end))
            texts.append(text if isinstance(text, str) else self.strings.get(number, ""))
            pids.append((thread or 0) & _THREAD_MASK)
        return np.array(rows, dtype=np.int64).reshape(-1, 3), texts, pids

    def _operators(
        self, ranges: Int64s, thread: Int64s, launch: Int64s, texts: list[str]
    ) -> tuple[Int64s, Int64s]:
        """Operator and shapes of each kernel, from the innermost range around its launch."""
        numbers = np.full((len(texts) + 1, 2), -1, dtype=np.int64)
        for place, text in enumerate(texts):
            name, sizes = _OP.match(text), _SIZES.search(text)
            if name is not None and "::" in name[1]:
                numbers[place, 0] = self.ops[name[1]]
                numbers[place, 1] = self.dims[sizes[1]] if sizes else -1
        known = numbers[:-1, 0] >= 0
        row, _ = innermost(ranges[known], thread, launch)
        picked = np.flatnonzero(known)
        row = np.where(row >= 0, picked[row] if len(picked) else -1, -1)
        return numbers[row, 0], numbers[row, 1]


def _extent(parts: list[Any]) -> str | None:
    return None if any(part is None for part in parts) else ",".join(map(str, parts))
