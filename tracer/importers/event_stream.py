"""The events of a Chrome trace, in batches, from a file of any size in bounded memory.

The text is cut into chunks of whole events, each decoded in one pass by msgspec. A cut is first
guessed (``}, {"ph":`` near the chunk's end) and proved by decoding: a prefix of an array that
decodes as a whole array ends between two events. Where the guess fails (objects nested in
``args``), an exact scan finds the cut. Text that is not JSON is taken apart event by event and
mended by `json_repair`, counted, or refused with its byte.

Both forms of the format are read: an object with ``traceEvents``, and a bare array, whose closing
bracket the format allows to be missing after a whole event.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ...data.errors import FormatError
from . import json_repair
from .kineto_events import Event, decode_batch, decode_one
from .source import Source

__all__ = ["EventStream"]

CHUNK_BYTES = 1 << 20
_HEADER_LIMIT = 64 << 20
_EVENT_LIMIT = 64 << 20
_GUESSES = 4
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(
    rb'\}(\s*,\s*)\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp|tts|cname)"\s*:'
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_CLOSE = re.compile(rb'\}\s*\]\s*(?:\}\s*$|$|,\s*")')
_BLANK = b" \t\r\n"


class _Scan(NamedTuple):
    """What an exact scan from an event's start found."""

    end: int
    """Just after the last whole event; 0 if there is none."""
    closed: int | None
    """Offset of the bracket that ends the array, if it was met."""


class EventStream:
    """Iterate over batches of `Event`; then `metadata` and `repaired` are complete.

    Attributes:
        metadata: the fields beside ``traceEvents`` (empty for the array form).
        repaired: how often what was mended in the text.
        unclosed: True if an array without its closing bracket was accepted.
    """

    def __init__(self, source: Source, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.metadata: dict[str, Any] = {}
        self.repaired: Counter[str] = Counter()
        self.unclosed = False
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._buffer = bytearray()
        self._base = 0
        """Offset in the file of the buffer's first byte."""
        self._array_form = False
        self._ended = False

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield the events, some thousand at a time.

        Raises:
            FormatError: not a Chrome trace, cut off, or damaged beyond mending.
        """
        self._read_header()
        while not self._ended:
            self._fill(len(self._buffer) + self._chunk_bytes)
            batch = self._take()
            if batch:
                yield batch
        if not self._array_form:
            self._read_trailer()

    def _fill(self, size: int) -> bool:
        """Read until the buffer holds ``size`` bytes; False if the file ended before."""
        while len(self._buffer) < size:
            data = self._source.read(size - len(self._buffer))
            if not data:
                return False
            self._buffer += data
        return True

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._base += count

    def _read_header(self) -> None:
        self._fill(1 << 16)
        self._base = self._source.offset - len(self._buffer)
        blank = len(self._buffer) - len(self._buffer.lstrip(_BLANK))
        self._drop(blank)
        first = bytes(self._buffer[:1])
        if first == b"[":
            self._array_form = True
            self._drop(1)
            return
        if first != b"{":
            what = "the file is empty" if not first else f"found {first!r}"
            raise FormatError(
                f"{self._source.where(self._base)}: expected the JSON of a trace ({{ or [), {what}"
            )
        while (match := _START.search(self._buffer)) is None:
            size = len(self._buffer)
            whole = self._fill(size * 2)
            if size > _HEADER_LIMIT or (not whole and len(self._buffer) == size):
                raise FormatError(
                    f"{self._source.path}: no traceEvents array in the file; "
                    "expected what torch.profiler's export_chrome_trace writes"
                )
        self._add_metadata(bytes(self._buffer[1 : match.start()]))
        self._drop(match.end())

    def _read_trailer(self) -> None:
        self._fill(_HEADER_LIMIT)
        text = bytes(self._buffer).strip(_BLANK)
        if not text.endswith(b"}"):
            raise self._cut("the object is not closed")
        self._add_metadata(text[:-1])

    def _add_metadata(self, text: bytes) -> None:
        """Add ``"key": value, ...``; unreadable metadata costs the names, never the kernels."""
        text = text.strip(b" \t\r\n,")
        try:
            fields = msgspec.json.decode(b"{" + text + b"}")
        except (msgspec.DecodeError, RecursionError):
            try:
                fixed, fixes = json_repair.repair(b"{" + text + b"}")
                fields = msgspec.json.decode(fixed)
            except (msgspec.DecodeError, RecursionError):
                self.repaired["unreadable metadata left out"] += 1
                return
            self.repaired.update(fixes)
        self.metadata.update(fields)

    def _take(self) -> list[Event]:
        """Decode and remove the whole events at the buffer's start."""
        for end, skip in self._guesses():
            try:
                batch = decode_batch(self._array(end))
            except (msgspec.DecodeError, RecursionError):
                continue
            self._drop(skip)
            return batch
        scan = self._scan()
        scanned = self._decode_scanned(scan)
        return self._recover() if scanned is None else scanned

    def _array(self, end: int) -> bytes:
        """The buffer up to ``end`` as a whole JSON array."""
        with memoryview(self._buffer)[:end] as events:
            return b"".join((b"[", events, b"]"))

    def _guesses(self) -> list[tuple[int, int]]:
        """Likely cuts, last first: (end of the events before, start of the event after)."""
        window = max(0, len(self._buffer) - (1 << 14))
        found = [m.span(1) for m in _BOUNDARY.finditer(self._buffer, window)]
        return found[: -_GUESSES - 1 : -1]

    def _scan(self) -> _Scan:
        """Count brackets outside strings to the last whole event or the array's end."""
        depth = end = 0
        for match in _TOKEN.finditer(self._buffer):
            token = self._buffer[match.start()]
            if token in b"{[":
                depth += 1
            elif token in b"}]":
                depth -= 1
                if depth == 0:
                    end = match.end()
                elif depth < 0:
                    return _Scan(end, match.start())
        return _Scan(end, None)

    def _decode_scanned(self, scan: _Scan) -> list[Event] | None:
        """Decode what an exact scan bounded; None if the text there is not JSON."""
        at_end = not self._fill(len(self._buffer) + 1)
        if scan.closed is None and not at_end and scan.end == 0:
            if len(self._buffer) > _EVENT_LIMIT:
                return None
            return []  # one event longer than the chunk: read on
        end = scan.end if scan.closed is None else scan.closed
        try:
            batch = decode_batch(self._array(end))
        except (msgspec.DecodeError, RecursionError):
            return None
        rest = bytes(self._buffer[end:]).strip(_BLANK)
        if scan.closed is not None:
            self._drop(scan.closed + 1)
            self._ended = True
        elif not at_end:
            comma = self._buffer.find(b",", end)
            if comma < 0:
                return None if rest else []
            self._drop(comma + 1)
        elif self._array_form and rest in {b"", b","}:
            self._drop(len(self._buffer))
            self._ended = self.unclosed = True
        else:
            raise self._cut("the traceEvents array is not closed")
        return batch

    def _cut(self, what: str) -> FormatError:
        end = self._base + len(self._buffer)
        return FormatError(
            f"{self._source.where(end)}: the file is cut off here, {what}; "
            "copy it again or record anew"
        )

    def _recover(self) -> list[Event]:
        """Take malformed text apart event by event, mending what can be mended."""
        at_end = not self._fill(len(self._buffer) + 1)
        pieces, consumed, closed = self._pieces(at_end)
        if not pieces and not at_end and len(self._buffer) <= _EVENT_LIMIT:
            return []
        batch: list[Event] = []
        place = 0
        while place < len(pieces):
            event, used = self._mend(pieces, place)
            batch.append(event)
            place += used
        self._drop(consumed)
        self._ended = closed
        return batch

    def _pieces(self, at_end: bool) -> tuple[list[tuple[int, bytes]], int, bool]:
        """Split at likely event boundaries: ((offset, text), ...), bytes used, array closed."""
        starts = [0]
        pieces = []
        for match in _BOUNDARY.finditer(self._buffer):
            pieces.append((starts[-1], bytes(self._buffer[starts[-1] : match.start(1)])))
            starts.append(match.end(1))
        if not at_end:
            return pieces, starts[-1], False
        # The array may end in this last stretch, with metadata after it.
        close = _CLOSE.search(self._buffer, starts[-1])
        if close is None:
            if self._buffer[starts[-1] :].strip(_BLANK):
                raise self._cut("in the middle of an event")
            return pieces, len(self._buffer), self._array_form
        pieces.append((starts[-1], bytes(self._buffer[starts[-1] : close.start() + 1])))
        return pieces, self._buffer.index(b"]", close.start()) + 1, True

    def _mend(self, pieces: list[tuple[int, bytes]], place: int) -> tuple[Event, int]:
        """Decode the event at ``place``, and say how many pieces it took.

        A boundary within an event (objects in its ``args``) is undone by joining. Only a single
        piece is mended: across a boundary, mending could make one event of two.
        """
        offset, first = pieces[place]
        joins = [first]
        for _, text in pieces[place + 1 : place + 4]:
            joins.append(joins[-1] + b"," + text)
        errors: list[Exception] = []
        for used, text in enumerate(joins, 1):
            try:
                return decode_one(text), used
            except (msgspec.DecodeError, RecursionError) as error:
                errors.append(error)
        try:
            fixed, fixes = json_repair.repair(first)
            event = decode_one(fixed)
        except (msgspec.DecodeError, RecursionError) as error:
            errors.append(error)
        else:
            self.repaired.update(fixes)
            return event, 1
        at = self._base + offset + len(first) - len(first.lstrip())
        raise FormatError(
            f"{self._source.where(at)}: the event that starts here is not JSON and cannot be "
            f"mended ({errors[0]}, from there); correct the file or remove the event"
        )
