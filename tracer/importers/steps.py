"""Cut a recording's kernels into steps: by the recorder's marks, else by the sequence's repeats.

Marked steps (``ProfilerStep#N``, NVTX ranges) hold the kernels that were launched within them;
a kernel whose launch is unknown goes by the GPU's own window, or with the kernel before it on its
stream. Without marks, the steps are the stretches between two launches of one kernel, for that
kernel whose stretches are alike over most of the recording: a step may hold an extra kernel now
and then, and the recording may begin and end within one.

A step's identity is the launch signatures in order, stream by stream, since kernels on different
streams overtake each other from step to step. Kernels of one CUDA graph launch are ordered by
their graph node for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .recording import UNKNOWN, Int64s, Marks

__all__ = ["Steps", "find_repeats", "find_steps", "step_order"]

_CANDIDATES = 48
"""Anchors tried, the rarest kernels first: a step's own marks are rare within it."""
_COMPARED = 64
_LEAST_ALIKE = 0.8
_LONGEST = 1.2
"""A last step longer than this many usual steps holds something else at its end."""


@dataclass(frozen=True)
class Steps:
    """The steps of one process.

    Attributes:
        step: (N,) step of each kernel, from 0 in order of time; -1 outside every step.
        count: number of steps that hold a kernel.
        how: ``marks``, ``repeats`` or ``whole`` (one step: the whole recording).
    """

    step: Int64s
    count: int
    how: str


def find_steps(kernels: pd.DataFrame, signature: Int64s, marks: Marks) -> Steps:
    """Cut kernels, sorted by start, into steps.

    Args:
        kernels: with ``start_ns``, ``launch_ns``, ``stream``.
        signature: (N,) number of each kernel's launch signature.
        marks: what the recorder says; empty windows if nothing.
    """
    if len(marks.host) or len(marks.gpu):
        step = _marked(kernels, marks)
        if (step >= 0).any():
            found = np.unique(step[step >= 0])
            step = np.where(step >= 0, np.searchsorted(found, step), -1)
            return Steps(step, len(found), "marks")
    repeats = find_repeats(signature)
    if repeats is not None and not _cuts_a_graph(kernels, repeats[0]):
        starts, end = repeats
        step = np.searchsorted(starts, np.arange(len(signature)), side="right") - 1
        step[end:] = -1
        return Steps(step, len(starts), "repeats")
    return Steps(np.zeros(len(signature), dtype=np.int64), 1, "whole")


def _cuts_a_graph(kernels: pd.DataFrame, starts: Int64s) -> bool:
    """Whether a step would begin within a CUDA graph launch, which belongs to one step whole."""
    graph = np.where(kernels["node"] != 0, kernels["correlation"], UNKNOWN)
    inner = starts[starts > 0]
    return bool(((graph[inner] == graph[inner - 1]) & (graph[inner] != UNKNOWN)).any())


def _window(windows: Int64s, times_ns: Int64s) -> Int64s:
    """Step number of the window around each time; -1 where there is none."""
    if not len(windows):
        return np.full(len(times_ns), -1, dtype=np.int64)
    row = np.searchsorted(windows[:, 0], times_ns, side="right") - 1
    inside = (row >= 0) & (times_ns < windows[np.maximum(row, 0), 1])
    return np.where(inside, windows[np.maximum(row, 0), 2], -1)


def _marked(kernels: pd.DataFrame, marks: Marks) -> Int64s:
    start, launch = kernels["start_ns"].to_numpy(), kernels["launch_ns"].to_numpy()
    launched = launch != UNKNOWN
    step = np.where(launched, _window(marks.host, launch), -1)
    if len(marks.gpu):
        return np.where(launched & (step >= 0), step, _window(marks.gpu, start))
    if launched.any():
        # No launch in the recording: with the kernel before it on its stream.
        filled = pd.Series(np.where(launched, step, UNKNOWN)).replace(UNKNOWN, np.nan)
        carried = filled.groupby(kernels["stream"].to_numpy()).ffill().fillna(-1)
        return np.asarray(carried, dtype=np.int64)
    return _window(marks.host, start)


def find_repeats(signature: Int64s) -> tuple[Int64s, int] | None:
    """Find the steps of an unmarked sequence.

    A kernel that is launched m times is tried as the anchor of m steps: the sequence must hold
    nearly what m times one stretch between two anchors holds. Repeats with foreign kernels at both
    ends of the recording are not taken for steps: layers within a single pass look just so.

    Args:
        signature: (N,) signature numbers in order of start.

    Returns:
        The first kernel of each step, and the end of the last; None if nothing repeats so.
    """
    numbers, sequence, counts = np.unique(signature, return_inverse=True, return_counts=True)
    rare = np.argsort(counts, kind="stable")
    candidates = rare[counts[rare] >= 2][:_CANDIDATES]
    best: tuple[float, int, Int64s, int] | None = None
    for candidate in candidates:
        places = np.flatnonzero(sequence == candidate)
        anchor = _usual_stretch(sequence, places)
        stretch = sequence[places[anchor] : places[anchor + 1]]
        if len(np.unique(stretch)) < 2:  # one kernel over and over is a loop, not a step
            continue
        expected = len(places) * np.bincount(stretch, minlength=len(numbers))
        shared = np.minimum(counts, expected).sum()
        alike = float(shared) / max(len(sequence), int(expected.sum()))
        if best is None or (alike, len(places)) > best[:2]:
            best = (alike, len(places), places, anchor)
    if best is None or best[0] < _LEAST_ALIKE:
        return None
    return _bounds(sequence, best[2], best[3])


def _usual_stretch(sequence: Int64s, places: Int64s) -> int:
    """Which stretch between two anchors stands for all: the commonest, else one of usual length."""
    lengths = np.diff(places)
    seen: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(lengths == int(np.median(lengths)))[:_COMPARED].tolist():
        seen.setdefault(sequence[places[row] : places[row + 1]].tobytes(), []).append(row)
    if seen:
        return max(seen.values(), key=len)[0]
    return int(np.abs(lengths - len(sequence) / len(places)).argmin())


def _bounds(sequence: Int64s, places: Int64s, anchor: int) -> tuple[Int64s, int] | None:
    """Starts of the steps around their anchors, and the end of the last whole one."""
    here, after = int(places[anchor]), int(places[anchor + 1])
    length = after - here
    back = 0
    while back < min(length - 1, int(places[0])) and (
        sequence[here - back - 1] == sequence[after - back - 1]
    ):
        back += 1
    starts = places - back
    left = len(sequence) - int(starts[-1])
    if left < length:  # the recording ends within a step
        end = int(starts[-1])
        starts = starts[:-1]
        step = sequence[here - back : here - back + left]
        clean_end = bool(np.array_equal(sequence[end:], step))
    else:
        clean_end = left <= length * _LONGEST
        end = len(sequence) if clean_end else int(starts[-1]) + length
    if not len(starts) or (starts[0] > 0 and not clean_end):
        return None
    return starts, end


def step_order(kernels: pd.DataFrame) -> Int64s:
    """Order of kernels, sorted by start, in which steps are compared.

    By step, then stream in order of first appearance within the recording, then start; kernels of
    a CUDA graph launch stand at the launch's first start, by node.
    """
    stream = pd.factorize(kernels["stream"])[0]
    node = kernels["node"].to_numpy()
    place = np.arange(len(kernels))
    in_graph = node != 0
    if in_graph.any():
        group = kernels["correlation"].to_numpy()
        first = pd.Series(place).groupby(group).transform("min").to_numpy()
        place = np.where(in_graph, first, place)
        stream = np.where(in_graph, -1, stream)
    return np.lexsort((node, place, stream, kernels["step"].to_numpy()))
