from __future__ import annotations

import ctypes
import fcntl
import os

import pytest

from clockwright.data.errors import FormatError, VersionError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks.events import ClockEvent, Outcome
from clockwright.tracer.clocks.page import MAGIC, VERSION, EventSlot, PageHeader, TriggerPage

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


PAIR = ClockPair(1410, 3201)


def event(sequence: int, pair: ClockPair | None = PAIR) -> ClockEvent:
    return ClockEvent(sequence, sequence // 2, 10, 20, 2**62 + sequence, pair, Outcome.SET)


def memory_file(content: bytes, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def header(**fields: int | bytes) -> bytes:
    made = PageHeader(magic=MAGIC, version=VERSION, ring_offset=4096, ring_slots=1)
    for name, value in fields.items():
        setattr(made, name, value)
    return bytes(made).ljust(8192, b"\0")


def test_the_layout_is_fixed_and_each_writer_has_a_cache_line_of_its_own() -> None:
    assert ctypes.sizeof(PageHeader) == 192
    assert (PageHeader.sequence.offset, PageHeader.step.offset) == (64, 68)
    assert (PageHeader.stop.offset, PageHeader.armed.offset) == (72, 128)
    assert ctypes.sizeof(EventSlot) == 48


def test_two_mappings_of_a_page_see_each_other() -> None:
    with TriggerPage.create() as ours, TriggerPage.from_fd(os.dup(ours.fd)) as theirs:
        ours.sequence, ours.step = 2**32 - 1, 7
        assert (theirs.sequence, theirs.step) == (2**32 - 1, 7)
        word = ctypes.c_uint32.from_address(ours.sequence_address)
        word.value = 5
        assert theirs.sequence == 5
        theirs.write_event(event(5), 0)
        assert ours.events() == (event(5),)
        assert ours.address % os.sysconf("SC_PAGESIZE") == 0


def test_resume_forgets_what_was_written_before() -> None:
    with TriggerPage.create() as page:
        page.sequence = 3
        page.stop()
        assert page.stopped
        page.resume()
        assert (page.stopped, page.sequence) == (False, 0)


def test_the_ring_keeps_the_newest_events_in_order() -> None:
    with TriggerPage.create(slots=8) as page:
        for number in range(20):
            page.write_event(event(number), number)
        # One slot less than the ring: the oldest may be being overwritten.
        assert [e.sequence for e in page.events()] == list(range(13, 20))
        assert [e.sequence for e in page.events(since=18)] == [18, 19]
        assert page.events(since=20) == ()


@pytest.mark.parametrize("pair", [None, GOVERNOR, ClockPair(1410, None), ClockPair(None, 3201)])
def test_the_ring_keeps_pairs_apart_from_no_pair(pair: ClockPair | None) -> None:
    with TriggerPage.create() as page:
        page.write_event(event(1, pair), 0)
        assert page.events()[0].pair == pair


@pytest.mark.parametrize(
    ("content", "seals", "kind", "message"),
    [
        (header(), 0, FormatError, "sealed"),
        (header(), fcntl.F_SEAL_SHRINK, FormatError, "sealed"),
        (b"short", SEALS, FormatError, "too short"),
        (header(magic=b"OTHERPAG"), SEALS, FormatError, "does not begin"),
        (header(version=VERSION + 1), SEALS, VersionError, "same release"),
        (header(ring_slots=0), SEALS, FormatError, "0 event slots"),
        (header(ring_slots=2**32 - 1), SEALS, FormatError, "event slots"),
    ],
)
def test_a_page_that_could_harm_the_keeper_is_refused(
    content: bytes, seals: int, kind: type[Exception], message: str
) -> None:
    fd = memory_file(content, seals)
    with pytest.raises(kind, match=message):
        TriggerPage.from_fd(fd)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_plain_file_is_refused(tmp_path: object) -> None:
    fd = os.open(f"{tmp_path}/page", os.O_RDWR | os.O_CREAT)
    with pytest.raises(FormatError, match="sealed"):
        TriggerPage.from_fd(fd)
