"""From a kernel back to what launched it: launch call, operator, shapes, module, phase, layer.

A kernel names its launch by correlation id and its operator by External id. Modules, backward
functions and optimizer calls are known as windows on host threads; the innermost window around
the launch, on the launch's thread, holds it. A backward kernel takes the module of the forward
operator with the same autograd sequence number. Kernels of a CUDA graph all share the launch of
the graph, whose operator says nothing of them: they keep no operator, module or phase.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...data.tables import PHASES
from .recording import UNKNOWN, Int64s, Vocabulary

__all__ = ["Host", "innermost", "link"]

_TYPES = {
    "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "c10::half": "float16",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
    "signed char": "int8",
    "unsigned char": "uint8",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "bool": "bool",
}
_QUOTED = re.compile(rb'"([^"]*)"')
_INSTANCE = re.compile(r"(.+)_(\d+)$")
_FORWARD, _OTHER = PHASES.index("forward"), PHASES.index("other")


class Host:
    """What the host did, as blocks of int64 columns, a block a batch.

    Attributes:
        launches: correlation, start_ns, thread, external id, 1 if a graph launch.
        ops: external id, name, dims, types, flops.
        forward: sequence number, thread, start_ns of operators that autograd recorded.
        modules: thread, start_ns, end_ns, name, sequence number.
        phases: likewise.
    """

    def __init__(self) -> None:
        self.threads: Vocabulary[Any] = Vocabulary()
        self.op_names: Vocabulary[str] = Vocabulary()
        self.dims: Vocabulary[bytes] = Vocabulary()
        self.types: Vocabulary[bytes] = Vocabulary()
        self.scope_names: Vocabulary[str] = Vocabulary()
        self.launches: list[Int64s] = []
        self.ops: list[Int64s] = []
        self.forward: list[Int64s] = []
        self.modules: list[Int64s] = []
        self.phases: list[Int64s] = []


def _rows(blocks: list[Int64s], width: int) -> Int64s:
    """The blocks as one table of rows."""
    return np.concatenate([np.zeros((width, 0), dtype=np.int64), *blocks], axis=1).T


def _find(keys: Int64s, wanted: Int64s) -> Int64s:
    """Row of the last ``keys`` entry equal to each ``wanted``; -1 where none is."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted, side="right") - 1
    row = order[np.maximum(place, 0)]
    return np.where((keys[row] == wanted) & (wanted != UNKNOWN), row, -1)


def _nest(scopes: Int64s) -> tuple[Int64s, Int64s]:
    """Sort one thread's windows outer first; (order, parent in that order, -1 at the top)."""
    order = np.lexsort((-scopes[:, 2], scopes[:, 1]))
    ends = scopes[order, 2].tolist()
    starts = scopes[order, 1].tolist()
    parent = np.full(len(order), -1, dtype=np.int64)
    stack: list[int] = []
    for row, start in enumerate(starts):
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        if stack:
            parent[row] = stack[-1]
        stack.append(row)
    return order, parent


def innermost(scopes: Int64s, threads: Int64s, times_ns: Int64s) -> tuple[Int64s, Int64s]:
    """For each (thread, time) the innermost window around it.

    Args:
        scopes: (S, >=3) rows of thread, start_ns, end_ns.
        threads: (N,) thread of each point.
        times_ns: (N,) time of each point.

    Returns:
        (N,) rows of ``scopes``, -1 where no window is around the point; and (S,) the row of each
        window's parent, -1 for an outermost one.
    """
    found = np.full(len(times_ns), -1, dtype=np.int64)
    parents = np.full(len(scopes), -1, dtype=np.int64)
    for thread in np.unique(scopes[:, 0]):
        rows = np.flatnonzero(scopes[:, 0] == thread)
        points = np.flatnonzero(threads == thread)
        order, parent = _nest(scopes[rows])
        rows = rows[order]
        parents[rows] = np.where(parent >= 0, rows[parent], -1)
        times = times_ns[points]
        row = np.searchsorted(scopes[rows, 1], times, side="right") - 1
        ends = scopes[rows, 2]
        while (outside := (row >= 0) & (ends[row] <= times)).any():
            row[outside] = parent[row[outside]]
        found[points] = np.where(row >= 0, rows[row], -1)
    return found, parents


def _module_paths(
    modules: Int64s, parents: Int64s, names: list[str]
) -> tuple[Int64s, Vocabulary[str]]:
    """Number of each module window's dotted path, outermost module first."""
    paths: Vocabulary[str] = Vocabulary()
    numbers = np.full(len(modules), -1, dtype=np.int64)
    texts: dict[int, str] = {}
    for row in np.lexsort((-modules[:, 2], modules[:, 1])).tolist():
        name = names[int(modules[row, 3])]
        outer = texts.get(int(parents[row]))
        texts[row] = name if outer is None else f"{outer}.{name}"
        numbers[row] = paths[texts[row]]
    return numbers, paths


def _layers(paths: list[str]) -> Int64s:
    """Layer number of each path; -1 where it belongs to no layer.

    The layers are the instances of the class that repeats most often under one parent (the
    profiler numbers instances: ``Block_0``, ``Block_1``).
    """
    groups: dict[tuple[str, str], set[int]] = {}
    split = [path.split(".") for path in paths]
    for parts in split:
        for depth, part in enumerate(parts):
            if match := _INSTANCE.match(part):
                key = (".".join(parts[:depth]), match[1])
                groups.setdefault(key, set()).add(int(match[2]))
    layers = np.full(len(paths), -1, dtype=np.int64)
    if not groups:
        return layers
    best = max(groups, key=lambda key: (len(groups[key]), -key[0].count(".")))
    if len(groups[best]) < 2:
        return layers
    number = {instance: row for row, instance in enumerate(sorted(groups[best]))}
    depth = best[0].count(".") + 1 if best[0] else 0
    for row, parts in enumerate(split):
        if len(parts) > depth and ".".join(parts[:depth]) == best[0]:
            match = _INSTANCE.match(parts[depth])
            if match and match[1] == best[1]:
                layers[row] = number[int(match[2])]
    return layers


def _dtype(types: bytes) -> str:
    """The first tensor type among an operator's inputs; '' if there is none that we know."""
    for word in _QUOTED.findall(types):
        name = _TYPES.get(word.decode("utf-8", "replace").lower())
        if name:
            return name
    return ""


def _phases(
    scopes: Int64s, inside: Int64s, launch_ns: Int64s, names: list[str], known: npt.NDArray[Any]
) -> Int64s:
    """Phase of each kernel from the window around its launch, or the window before it."""
    phase = np.full(len(launch_ns), _OTHER, dtype=np.int64)
    if not len(scopes):
        return phase
    kinds = np.array([PHASES.index(n) if n in PHASES else _OTHER for n in names], dtype=np.int64)
    kind = kinds[scopes[:, 3]]
    order = np.argsort(scopes[:, 1], kind="stable")
    before = np.searchsorted(scopes[order, 1], launch_ns, side="right") - 1
    last = np.where(before >= 0, kind[order[np.maximum(before, 0)]], -1)
    # After a backward window and outside any, it is clipping or reducing: neither pass.
    forward = known & (last != PHASES.index("backward"))
    phase[forward] = _FORWARD
    return np.where((inside >= 0) & known, kind[np.maximum(inside, 0)], phase)


def link(kernels: pd.DataFrame, host: Host) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Add ``launch_ns``, ``op``, ``dims``, ``dtype``, ``flops``, ``module``, ``layer``, ``phase``.

    Args:
        kernels: with ``correlation``, ``external`` and ``node``.
        host: what the host did.

    Returns:
        The kernels with those columns, and the words they number (``ops``, ``dims``,
        ``dtypes``, ``modules``).
    """
    launches, ops = _rows(host.launches, 5), _rows(host.ops, 5)
    modules, phases = _rows(host.modules, 5), _rows(host.phases, 5)
    forward = _rows(host.forward, 3)
    names = host.scope_names.words()
    row = _find(launches[:, 0], kernels["correlation"].to_numpy())
    launched = row >= 0
    launch = launches[row] if len(launches) else np.full((len(kernels), 5), UNKNOWN)
    launch_ns = np.where(launched, launch[:, 1], UNKNOWN)
    thread = np.where(launched, launch[:, 2], -1)
    in_graph = (kernels["node"].to_numpy() != 0) | (launched & (launch[:, 4] == 1))
    external = kernels["external"].to_numpy()
    external = np.where((external == UNKNOWN) & launched, launch[:, 3], external)
    external = np.where(in_graph | (external == 0), UNKNOWN, external)
    op = _find(ops[:, 0], external)
    linked = op >= 0
    found = ops[op] if len(ops) else np.full((len(kernels), 5), -1)

    inside, _ = innermost(phases, thread, launch_ns)
    phase = _phases(phases, inside, launch_ns, names, launched & ~in_graph)
    module = _module_of(modules, thread, launch_ns, names)
    sequence = np.where(inside >= 0, phases[inside, 4], UNKNOWN) if len(phases) else None
    if sequence is not None and len(forward) and len(modules):
        source = _find(forward[:, 0], sequence)
        origin = _module_of(modules, forward[source, 1], forward[source, 2], names)[0]
        better = (source >= 0) & (module[0] < 0)
        module = (np.where(better, origin, module[0]), module[1])
    paths = module[1].words()
    layers = _layers(paths)
    number = np.where(in_graph, -1, module[0])

    dtypes: Vocabulary[str] = Vocabulary()
    types = np.array([dtypes[_dtype(t)] for t in host.types.words()] + [-1], dtype=np.int64)
    alone = kernels.groupby(external)["shape"].transform("size").to_numpy() == 1
    out = kernels.assign(
        launch_ns=launch_ns,
        op=np.where(linked, found[:, 1], -1),
        dims=np.where(linked, found[:, 2], -1),
        dtype=np.where(linked, types[found[:, 3]], -1),
        # An operator's count is a kernel's only if it launched that kernel alone.
        flops=np.where(linked & alone, found[:, 4], UNKNOWN),
        module=number,
        layer=np.where(number >= 0, layers[number], -1) if len(layers) else -1,
        phase=phase,
    ).drop(columns="external")
    texts = [text.decode("utf-8", "replace") for text in host.dims.words()]
    words = {
        "ops": host.op_names.words(),
        "dims": [" ".join(text.split()) for text in texts],
        "dtypes": dtypes.words(),
        "modules": paths,
    }
    return out, words


def _module_of(
    modules: Int64s, threads: Int64s, times_ns: Int64s, names: list[str]
) -> tuple[Int64s, Vocabulary[str]]:
    row, parents = innermost(modules, threads, times_ns)
    numbers, paths = _module_paths(modules, parents, names)
    return (np.where(row >= 0, numbers[row], -1) if len(numbers) else row), paths
