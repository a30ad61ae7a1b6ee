"""Each operator of a step as a CUDA graph that runs it many times, and what those graphs launch.

A graph holds some hundred calls at most, over several copies of the arguments that together exceed
the L2 cache, with the results kept apart as long as they fit in it too: a loop over one buffer
would measure the cache. Graphs share one memory pool, since nobody reads their results.

Left out: operators that read back to the host, which no graph can hold; operators that update
their arguments in place run on ever older values, which changes data but no kernel.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..importers.kineto import read_kineto
from ..importers.recording import Marks
from ..importers.steps import find_steps
from .cuda import between_ns, mark
from .op_capture import CapturedOp, clone_arguments, tensor_bytes
from .timeline import marked_step, profile_to

__all__ = ["LaunchKey", "OpLoop", "build_loops", "identify"]

LaunchKey = tuple[Any, ...]
"""name, grid, block, shared bytes, registers, operator, shapes."""

_TARGET_NS = 700_000
_MOST_CALLS = 64
_MOST_COPIES = 12
_EAGER_CALLS = 2


@dataclass
class OpLoop:
    """One operator's graph.

    Attributes:
        op: the operator.
        calls: calls in one replay.
        graph: the ``torch.cuda.CUDAGraph``; None where it could not be captured.
        replay_ns: one replay alone, roughly.
        kernels: launches of one call with their mean duration (ns) in the replayed graph.
        gap_ns: mean time between two kernels of the graph.
        problem: why it has no graph, or None.
    """

    op: CapturedOp
    calls: int = 0
    graph: Any = None
    replay_ns: float = 0.0
    kernels: list[tuple[LaunchKey, float]] = field(default_factory=list)
    gap_ns: float = 0.0
    problem: str | None = None


def _elapsed_ns(run: Any, repeats: int) -> float:
    begin = mark()
    for _ in range(repeats):
        run()
    end = mark()
    end.synchronize()
    return between_ns(begin, end) / repeats


def build_loops(ops: list[CapturedOp], l2_bytes: int) -> list[OpLoop]:
    """Capture a graph for each operator; one that fails says why and the rest go on."""
    import torch

    loops = []
    pool = torch.cuda.graph_pool_handle()
    with torch.no_grad():
        for op in ops:
            loop = OpLoop(op)
            try:
                _capture(loop, l2_bytes, pool)
            except torch.OutOfMemoryError:
                loop.graph, loop.problem = None, "out of memory"
                torch.cuda.empty_cache()
            except (RuntimeError, TypeError, ValueError) as error:
                loop.graph, loop.problem = None, str(error).splitlines()[0]
            loops.append(loop)
    return loops


def _capture(loop: OpLoop, l2_bytes: int, pool: Any) -> None:
    import torch

    op = loop.op
    op.run()
    eager_ns = _elapsed_ns(op.run, 3)
    copies = int(np.clip(-(-2 * l2_bytes // max(op.bytes, 1)), 1, _MOST_COPIES))
    sets = [(op.args, op.kwargs)]
    sets += [(clone_arguments(op.args), clone_arguments(op.kwargs)) for _ in range(copies - 1)]
    loop.calls = int(np.clip(_TARGET_NS / max(eager_ns, 1), min(copies, 4), _MOST_CALLS))
    graph = torch.cuda.CUDAGraph()
    kept: deque[Any] = deque()
    kept_bytes = 0
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool):
        for call in range(loop.calls):
            args, kwargs = sets[call % copies]
            result = op.function(*args, **kwargs)
            size = tensor_bytes(result)
            kept.append((result, size))
            kept_bytes += size
            while len(kept) > 1 and kept_bytes - kept[0][1] > 2 * l2_bytes:
                kept_bytes -= kept.popleft()[1]
        kept.clear()
        del result
    loop.graph = graph
    loop.op.args, loop.op.kwargs = sets[0]
    loop.__dict__["_sets"] = sets  # the graph reads them: they must live as long as it does
    graph.replay()
    loop.replay_ns = _elapsed_ns(graph.replay, 3)


def identify(loops: list[OpLoop], path: Path) -> None:
    """Profile each operator, called and as its graph, and note which kernels it launches.

    Called, a kernel bears its operator and shapes and can be matched with the step's; in the
    graph it has the durations and gaps that the loop's energy belongs to. A loop without kernels
    loses its graph.
    """
    import torch

    torch.cuda.synchronize()

    def body() -> None:
        with torch.no_grad():
            loops[0].op.run()
            for number, loop in enumerate(loops):
                if loop.graph is None:
                    continue
                with marked_step(2 * number):
                    for _ in range(_EAGER_CALLS):
                        loop.op.run()
                    torch.cuda.synchronize()
                with marked_step(2 * number + 1):
                    loop.graph.replay()
                    torch.cuda.synchronize()

    profile_to(path, body)
    recording = read_kineto(path)
    kernels = recording.kernels.sort_values("start_ns", kind="stable").reset_index(drop=True)
    marks = recording.marks.get(None, Marks())
    alike = kernels.groupby(["shape", "op", "dims"], sort=False).ngroup()
    signature = np.asarray(alike, dtype=np.int64)
    step = find_steps(kernels, signature, marks).step
    found = np.full(len(kernels), -1, dtype=np.int64)
    for index, rows in kernels.groupby(step):
        if int(str(index)) >= 0:
            at = int(rows["launch_ns"].iloc[0])
            place = int(np.searchsorted(marks.host[:, 0], at, side="right")) - 1
            found[rows.index.to_numpy()] = marks.host[max(place, 0), 2]
    for number, loop in enumerate(loops):
        eager = kernels[found == 2 * number]
        graph = kernels[found == 2 * number + 1]
        if loop.graph is None:
            continue
        if eager.empty or graph.empty or len(eager) % _EAGER_CALLS:
            loop.graph, loop.problem = None, "launches no kernel, or not the same each call"
            continue
        _describe(loop, recording, eager, graph)


def _describe(loop: OpLoop, recording: Any, eager: Any, graph: Any) -> None:
    one = eager.iloc[: len(eager) // _EAGER_CALLS]
    duration = graph["duration_ns"].to_numpy().astype(float)
    per_call = len(graph) / loop.calls
    if per_call != len(one):
        # The graph merges or splits nothing as a rule; where it does, use the called kernels.
        mean: npt.NDArray[np.float64] = one["duration_ns"].to_numpy().astype(float)
    else:
        mean = duration.reshape(loop.calls, len(one)).mean(axis=0)
    start = graph["start_ns"].to_numpy().astype(float)
    gaps = start[1:] - (start[:-1] + duration[:-1])
    loop.gap_ns = float(np.median(gaps)) if len(gaps) else 0.0
    for (_, row), mean_ns in zip(one.iterrows(), mean, strict=True):
        shape = recording.shapes[int(row["shape"])]
        op = recording.ops[int(row["op"])] if row["op"] >= 0 else None
        dims = recording.dims[int(row["dims"])] if row["dims"] >= 0 else None
        key = (*shape, op, dims)
        loop.kernels.append((key, float(mean_ns)))
