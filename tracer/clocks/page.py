"""The shared page between a training stream and the keeper: one declared structure.

The trainer makes a sealed memory file, registers it with CUDA, and lets its stream write
``sequence`` (``cuStreamWriteValue32``); the keeper maps the same file and looks. Three parties
write, each to a cache line of its own: the header once by the maker, ``sequence``, ``step`` and
``stop`` by the trainer, the rest by the keeper, which trusts nothing it reads beyond those three
numbers. The seals keep the file's size: a shorter file would kill a keeper that looks at it.

Left out: more than one writer of ``sequence``, and any record of a number overwritten before the
keeper looked (compare the events with the numbers written to find those).

Sources: memfd_create(2), fcntl(2) F_ADD_SEALS; cuStreamWriteValue32 in the CUDA driver API.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from ctypes import c_char, c_int64, c_uint8, c_uint32, c_uint64

from ...data.errors import FormatError, KeeperError, VersionError
from ...data.units import ClockPair
from .events import ClockEvent, Outcome

__all__ = ["MAGIC", "VERSION", "EventSlot", "PageHeader", "TriggerPage"]

MAGIC = b"CWCLOCKS"
VERSION = 1
_RING_OFFSET = 4096
_LEAST_SLOTS, _MOST_SLOTS = 1, 1 << 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class PageHeader(ctypes.LittleEndianStructure):
    """The first 192 bytes, in three cache-line groups.

    ``sequence`` 0 means that nothing is asked for; any other value names a row of the lease's
    table and is acted on when it changes. While ``stop`` is not 0 the keeper holds the baseline.
    """

    _fields_ = (
        ("magic", c_char * 8),
        ("version", c_uint32),
        ("ring_offset", c_uint32),
        ("ring_slots", c_uint32),
        ("_pad0", c_uint8 * 44),
        ("sequence", c_uint32),
        ("step", c_uint32),
        ("stop", c_uint32),
        ("_pad1", c_uint8 * 52),
        ("armed", c_uint32),
        ("fault", c_uint32),
        ("looks", c_uint64),
        ("events", c_uint64),
        ("_pad2", c_uint8 * 40),
    )


class EventSlot(ctypes.LittleEndianStructure):
    """One `ClockEvent` in the ring; clocks in MHz, 0 for a clock that is not locked."""

    _fields_ = (
        ("sequence", c_uint32),
        ("step", c_uint32),
        ("outcome", c_uint32),
        ("core_mhz", c_uint32),
        ("mem_mhz", c_uint32),
        ("named", c_uint32),
        ("seen_ns", c_int64),
        ("call_ns", c_int64),
        ("done_ns", c_int64),
    )


def _size_bytes(slots: int) -> int:
    size = _RING_OFFSET + slots * ctypes.sizeof(EventSlot)
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class TriggerPage:
    """A mapping of the page. Use as a context manager, or call `close`.

    Attributes:
        fd: the memory file, to be handed to the keeper.
        size_bytes: length of the file, a whole number of memory pages.
        slots: events the ring holds before the oldest is overwritten.
    """

    def __init__(self, fd: int, slots: int) -> None:
        self.fd, self.slots, self.size_bytes = fd, slots, _size_bytes(slots)
        self._map = mmap.mmap(fd, self.size_bytes)
        self._header: PageHeader | None = PageHeader.from_buffer(self._map)
        self._ring: ctypes.Array[EventSlot] | None = (EventSlot * slots).from_buffer(
            self._map, _RING_OFFSET
        )

    @classmethod
    def create(cls, slots: int = 4096) -> TriggerPage:
        """Make a new page in a sealed memory file.

        Raises:
            KeeperError: the system has no sealed memory files.
        """
        slots = min(max(slots, _LEAST_SLOTS), _MOST_SLOTS)
        try:
            fd = os.memfd_create("clockwright-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise KeeperError(f"cannot make the shared page: {error.strerror}") from error
        try:
            os.ftruncate(fd, _size_bytes(slots))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            page = cls(fd, slots)
        except OSError as error:
            os.close(fd)
            raise KeeperError(f"cannot make the shared page: {error.strerror}") from error
        header = page._fields
        header.version, header.ring_offset, header.ring_slots = VERSION, _RING_OFFSET, slots
        header.magic = MAGIC
        return page

    @classmethod
    def from_fd(cls, fd: int) -> TriggerPage:
        """Map a page that another process made; takes ``fd`` over, and closes it on failure.

        Raises:
            FormatError: not such a page, or its size is not sealed.
            VersionError: a layout of another release.
        """
        try:
            return cls._from_fd(fd)
        except OSError as error:
            os.close(fd)
            raise FormatError(f"the shared page cannot be mapped: {error.strerror}") from error
        except FormatError:
            os.close(fd)
            raise

    @classmethod
    def _from_fd(cls, fd: int) -> TriggerPage:
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        if seals & _SEALS != _SEALS:
            raise FormatError(
                "the shared page must be a memory file sealed against resizing, as "
                "TriggerPage.create makes it: a file cut short would kill the keeper"
            )
        size_bytes = os.fstat(fd).st_size
        if size_bytes < _size_bytes(_LEAST_SLOTS):
            raise FormatError(f"the shared page is {size_bytes} bytes, too short for its header")
        with mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ) as view:
            header = PageHeader.from_buffer_copy(view[: ctypes.sizeof(PageHeader)])
        if header.magic != MAGIC:
            raise FormatError("the shared page does not begin as clockwright's pages do")
        if header.version != VERSION:
            raise VersionError(
                f"the shared page has layout {header.version}, this keeper reads {VERSION}: use "
                "the same release of clockwright on both sides"
            )
        slots = header.ring_slots
        if not _LEAST_SLOTS <= slots <= _MOST_SLOTS or _size_bytes(slots) != size_bytes:
            raise FormatError(f"the shared page of {size_bytes} bytes names {slots} event slots")
        return cls(fd, slots)

    def __enter__(self) -> TriggerPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap and close the file; the other side's mapping stays."""
        if self._header is not None:
            self._header = self._ring = None
            self._map.close()
            os.close(self.fd)

    @property
    def _fields(self) -> PageHeader:
        if self._header is None:
            raise KeeperError("the shared page is closed")
        return self._header

    @property
    def address(self) -> int:
        """Where this process has it mapped (page-aligned), for registering with CUDA."""
        return ctypes.addressof(self._fields)

    @property
    def sequence_address(self) -> int:
        """Where a stream is to write the sequence number (uint32)."""
        return self.address + PageHeader.sequence.offset

    @property
    def step_address(self) -> int:
        """Where a stream may write the step counter (uint32)."""
        return self.address + PageHeader.step.offset

    @property
    def sequence(self) -> int:
        """The number asked for last; 0 for none."""
        return int(self._fields.sequence)

    @sequence.setter
    def sequence(self, value: int) -> None:
        self._fields.sequence = value

    @property
    def step(self) -> int:
        """The trainer's step counter (modulo 2^32)."""
        return int(self._fields.step)

    @step.setter
    def step(self, value: int) -> None:
        self._fields.step = value

    @property
    def stopped(self) -> bool:
        """True while the trainer asks for the baseline."""
        return bool(self._fields.stop)

    def stop(self) -> None:
        """Ask for the baseline until `resume`; numbers written meanwhile are ignored."""
        self._fields.stop = 1

    def resume(self) -> None:
        """Let numbers count again; what was written before is forgotten."""
        self._fields.sequence = 0
        self._fields.stop = 0

    @property
    def armed(self) -> bool:
        """True while a keeper looks at the page."""
        return bool(self._fields.armed)

    @armed.setter
    def armed(self, value: bool) -> None:
        self._fields.armed = int(value)

    @property
    def fault(self) -> bool:
        """True after the keeper gave up and went back to the baseline; ask it for the error."""
        return bool(self._fields.fault)

    @fault.setter
    def fault(self, value: bool) -> None:
        self._fields.fault = int(value)

    @property
    def looks(self) -> int:
        """How often the keeper has looked, in steps of a thousand or so: it grows if it lives."""
        return int(self._fields.looks)

    @looks.setter
    def looks(self, value: int) -> None:
        self._fields.looks = value

    @property
    def event_count(self) -> int:
        """Events ever written to the ring."""
        return int(self._fields.events)

    def write_event(self, event: ClockEvent, count: int) -> None:
        """Keeper's side: write event number ``count`` (from 0), then say that it is there."""
        ring = self._ring
        if ring is None:
            raise KeeperError("the shared page is closed")
        pair = event.pair
        ring[count % self.slots] = EventSlot(
            event.sequence,
            event.step,
            int(event.outcome),
            0 if pair is None else pair.core_mhz or 0,
            0 if pair is None else pair.mem_mhz or 0,
            int(pair is not None),
            event.seen_ns,
            event.call_ns,
            event.done_ns,
        )
        self._fields.events = count + 1

    def events(self, since: int = 0) -> tuple[ClockEvent, ...]:
        """Events from number ``since`` on that the ring still holds, oldest first."""
        ring, count = self._ring, self.event_count
        if ring is None:
            raise KeeperError("the shared page is closed")
        first = max(since, count - self.slots, 0)
        slots = [EventSlot.from_buffer_copy(ring[i % self.slots]) for i in range(first, count)]
        # The keeper may have gone on meanwhile: what it may have overwritten does not count. The
        # slot it writes now is one more than it has announced.
        valid_from = max(first, self.event_count + 1 - self.slots)
        return tuple(_event(slot) for slot in slots[valid_from - first :])


def _event(slot: EventSlot) -> ClockEvent:
    pair = ClockPair(slot.core_mhz or None, slot.mem_mhz or None) if slot.named else None
    return ClockEvent(
        sequence=slot.sequence,
        step=slot.step,
        seen_ns=slot.seen_ns,
        call_ns=slot.call_ns,
        done_ns=slot.done_ns,
        pair=pair,
        outcome=Outcome(slot.outcome),
    )
