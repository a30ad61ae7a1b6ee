"""Kernels that overlap on several streams, laid out as one sequence that a clock schedule can hold.

One clock serves the whole GPU, so pairs are chosen along one *chain* of kernels that do not
overlap: those of the busiest stream, and wherever it idles, kernels of other streams that fit into
the hole. The step is cut at the starts of the chain's kernels. A kernel beside the chain is spread
over the slices it spans, in proportion to its time there, so that one long copy or collective does
not tie a whole phase to one pair.

Order is taken from the recording: a kernel that started after another had ended waits for it
(more order than the program has, never less), and then a fixed host delay. Three times follow:

* a slice takes as long as its longest path of whole kernels and parts, and the step the sum of its
  slices (first of `Layout.slice_times`). Streams run on across cuts, so the step is hardly ever
  longer than that, and often shorter: the slack of kernels off the critical path.
* a slice takes what its chain kernel takes (second of `Layout.slice_times`). The step is never
  shorter than that, which is what a lower bound may rest on.
* the step played kernel by kernel, each at the pair in force as time goes on
  (`Layout.makespan_ns`). This one is held against the budget.

Left out: how kernels that share the GPU slow each other (their recorded times stand), order that
the recording did not show, and energy that moves between the parts of a kernel whose share of time
in a slice changes with the clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Layout", "Piece", "lay_out"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
_END, _START = 0, 1


@dataclass(frozen=True)
class Piece:
    """Part of a kernel within a slice: timeline row, share of it, where it starts and ends.

    ``begin`` and ``end`` are ns in the recording; ``starts`` and ``ends`` tell whether the kernel
    itself starts and ends there or is cut.
    """

    kernel: int
    share: float
    begin: int
    end: int
    starts: bool
    ends: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """A step as slices along its chain.

    Attributes:
        start: (N,) int64 ns, start of each timeline row.
        end: (N,) int64 ns, its end (at least 1 ns later where rows overlap).
        chain: (K,) int64, the timeline row of each slice's chain kernel, ascending.
        gap_ns: (K,) float64, time before each slice with no kernel running.
        pieces: slice to its pieces, only where the chain kernel is not alone.
    """

    start: Ints
    end: Ints
    chain: Ints
    gap_ns: Array
    pieces: dict[int, tuple[Piece, ...]]

    @property
    def serial(self) -> bool:
        """True if no two kernels overlap."""
        return not self.pieces

    def first_rows(self) -> Ints:
        """(K,) int64, the first timeline row of each slice; rows are launched in this order."""
        first = self.chain.copy()
        first[0] = 0
        return first

    def slice_times(self, index: int, times: Callable[[int], Array]) -> tuple[Array, Array]:
        """(F,) ns of a slice with pieces: its longest path, and its chain kernel with host delays.

        Args:
            index: the slice.
            times: a timeline row's (F,) ns at each pair.
        """
        begin, stop = self._window(index)
        pieces = self.pieces[index]
        events = sorted(
            [(piece.begin, _START, number) for number, piece in enumerate(pieces)]
            + [(piece.end, _END, number) for number, piece in enumerate(pieces) if piece.ends]
        )
        reached: Array = np.zeros_like(times(pieces[0].kernel))
        chain = reached
        finish: list[Array] = [reached] * len(pieces)
        latest = begin
        for time, kind, number in events:
            piece = pieces[number]
            if kind == _END:
                reached = np.maximum(reached, finish[number])
                latest = time
                continue
            delay = time - latest if piece.starts else 0
            finish[number] = reached + delay + piece.share * times(piece.kernel)
            if piece.kernel == self.chain[index]:
                chain = delay + times(piece.kernel)
        cut = [finish[number] for number, piece in enumerate(pieces) if not piece.ends]
        if cut:
            reached = np.maximum(reached + (stop - latest), np.max(cut, axis=0))
            chain = chain + (stop - latest)
        return reached, chain

    def makespan_ns(
        self,
        durations: Callable[[int, int], float],
        choice: Sequence[int],
        stalls: Sequence[float],
    ) -> float:
        """Play the step: the time from its first kernel to the end of its last.

        Args:
            durations: ns of a timeline row at a pair.
            choice: (K,) the pair from the start of each slice's chain kernel on.
            stalls: (K,) ns for which everything stops at that start.
        """
        order = np.argsort(self.start, kind="stable")
        ends = np.argsort(self.end, kind="stable")
        ended = np.searchsorted(self.end[ends], self.start, side="right")
        origin = int(self.start.min())
        place = {int(row): k for k, row in enumerate(self.chain)}
        clock = _Clock(durations, int(choice[0]))
        starts = np.zeros(len(order))
        began = np.zeros(len(order), dtype=np.int64)
        reached, done = 0.0, 0
        for row in order.tolist():
            while done < ended[row]:
                kernel = int(ends[done])
                reached = max(reached, clock.finish(kernel, starts[kernel], int(began[kernel])))
                done += 1
            before = int(self.end[ends[ended[row] - 1]]) if ended[row] else origin
            starts[row] = reached + (int(self.start[row]) - before)
            k = place.get(row)
            if k is not None:
                clock.change(starts[row], float(stalls[k]), int(choice[k]))
            began[row] = clock.last
        while done < len(ends):
            kernel = int(ends[done])
            reached = max(reached, clock.finish(kernel, starts[kernel], int(began[kernel])))
            done += 1
        return reached

    def _window(self, index: int) -> tuple[int, int]:
        begin = int(self.start.min()) if index == 0 else int(self.start[self.chain[index]])
        last = index + 1 == len(self.chain)
        stop = int(self.end.max()) if last else int(self.start[self.chain[index + 1]])
        return begin, stop


class _Clock:
    """Pairs in force over the played time, and how far a kernel gets under them."""

    def __init__(self, durations: Callable[[int, int], float], pair: int) -> None:
        self._durations = durations
        self._at = [0.0]  # since when
        self._until = [0.0]  # end of the stall at its beginning
        self._pair = [pair]

    @property
    def last(self) -> int:
        return len(self._at) - 1

    def change(self, at_ns: float, stall_ns: float, pair: int) -> None:
        self._at.append(at_ns)
        self._until.append(at_ns + stall_ns)
        self._pair.append(pair)

    def finish(self, kernel: int, start_ns: float, since: int) -> float:
        """When a kernel ends that started in the stretch ``since``."""
        left = 1.0
        number = since
        while True:
            begin = max(start_ns, self._until[number])
            takes = self._durations(kernel, self._pair[number]) * left
            stop = self._at[number + 1] if number < self.last else np.inf
            if begin + takes <= stop:
                return begin + takes
            if takes > 0 and stop > begin:
                left *= 1.0 - (stop - begin) / takes
            number += 1


def lay_out(start_ns: Ints, duration_ns: Ints, stream: Ints) -> Layout:
    """Find the chain of a timeline and cut the step along it.

    Args:
        start_ns: (N,) start of each row.
        duration_ns: (N,) its duration in the recording.
        stream: (N,) its stream.
    """
    end = start_ns + duration_ns
    if np.all(start_ns[1:] >= end[:-1]):
        gaps = np.concatenate([[0], start_ns[1:] - end[:-1]]).astype(np.float64)
        return Layout(start_ns, end, np.arange(len(start_ns), dtype=np.int64), gaps, {})
    # Order among kernels that overlap is read from their ends: none may be its own predecessor.
    end = start_ns + np.maximum(duration_ns, 1)
    chain = _chain(start_ns, end, stream)
    members = _members(start_ns, end, chain)
    gaps, pieces = np.zeros(len(chain)), {}
    bounds = start_ns[chain]
    for index in range(len(chain)):
        begin = int(start_ns.min()) if index == 0 else int(bounds[index])
        stop = int(end.max()) if index + 1 == len(chain) else int(bounds[index + 1])
        parts = [
            _piece(row, int(start_ns[row]), int(end[row]), begin, stop) for row in members[index]
        ]
        if index + 1 < len(chain) and all(part.ends for part in parts):
            gaps[index + 1] = stop - max(part.end for part in parts)
        if len(parts) > 1:
            pieces[index] = tuple(parts)
    return Layout(start_ns, end, chain, gaps, pieces)


def _piece(row: int, start: int, end: int, begin: int, stop: int) -> Piece:
    first, last = max(start, begin), min(end, stop)
    return Piece(row, (last - first) / (end - start), first, last, start >= begin, end <= stop)


def _members(start: Ints, end: Ints, chain: Ints) -> list[list[int]]:
    """Timeline rows that run within each slice."""
    bounds = start[chain]
    first = np.maximum(np.searchsorted(bounds, start, side="right") - 1, 0)
    last = np.maximum(np.searchsorted(bounds, end, side="left") - 1, first)
    members: list[list[int]] = [[] for _ in chain]
    for row in range(len(start)):
        for index in range(int(first[row]), int(last[row]) + 1):
            members[index].append(row)
    return members


def _chain(start: Ints, end: Ints, stream: Ints) -> Ints:
    """Rows that do not overlap, in time and launch order: busiest stream first, holes filled."""
    busy = {int(s): int((end - start)[stream == s].sum()) for s in np.unique(stream)}
    taken: list[tuple[int, int, int]] = []  # (start, end, row)
    for name in sorted(busy, key=lambda s: (-busy[s], s)):
        taken = _fill(taken, np.flatnonzero(stream == name), start, end)
    return np.array([row for _, _, row in taken], dtype=np.int64)


def _fill(
    taken: list[tuple[int, int, int]], rows: Ints, start: Ints, end: Ints
) -> list[tuple[int, int, int]]:
    """Add the rows that fit between those taken, without overlap and in launch order."""
    rows = rows[np.argsort(start[rows], kind="stable")]
    merged: list[tuple[int, int, int]] = []
    place = 0
    for row in rows.tolist():
        while place < len(taken) and taken[place][0] < start[row]:
            merged.append(taken[place])
            place += 1
        after = merged[-1] if merged else None
        before = taken[place] if place < len(taken) else None
        if after is not None and (after[1] > start[row] or after[2] > row):
            continue
        if before is not None and (end[row] > before[0] or row > before[2]):
            continue
        merged.append((int(start[row]), int(end[row]), row))
    return merged + taken[place:]
