from __future__ import annotations

import pytest

from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks.holding import HoldMonitor
from clockwright.tracer.gpu.lock_check import LockVerdict
from clockwright.tracer.gpu.protocol import Reading, ThrottleReason

MS = 1_000_000
HIGH, LOW = ClockPair(1800, 3201), ClockPair(1200, 3201)


def reading(core_mhz: int | None, mem_mhz: int | None = 3201, reasons: int = 0) -> Reading:
    return Reading(at_ns=0, core_mhz=core_mhz, mem_mhz=mem_mhz, throttle_reasons=reasons)


def test_nothing_is_judged_before_the_driver_had_time_to_report() -> None:
    monitor = HoldMonitor(300 * MS)
    assert not monitor.due(0)
    monitor.note_set(HIGH, 0)
    assert not monitor.due(299 * MS)
    assert monitor.due(301 * MS)


def test_a_lock_that_reads_back_is_held() -> None:
    monitor = HoldMonitor(300 * MS)
    monitor.note_set(HIGH, 0)
    assert monitor.due(301 * MS)
    assert not monitor.look(reading(1800), 301 * MS)
    assert (monitor.judged, monitor.verdict) == (True, LockVerdict.HELD)


def test_one_odd_reading_is_forgiven_and_two_are_not() -> None:
    monitor = HoldMonitor(300 * MS)
    monitor.note_set(LOW, 0)
    assert not monitor.look(reading(1980), 301 * MS)
    assert not monitor.judged
    assert not monitor.due(350 * MS)
    assert monitor.due(402 * MS)
    assert monitor.look(reading(1980), 402 * MS)
    assert monitor.verdict is LockVerdict.NOT_HELD


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (reading(1500, reasons=ThrottleReason.SW_POWER_CAP), LockVerdict.POWER_CAPPED),
        (reading(1500, reasons=ThrottleReason.SW_THERMAL), LockVerdict.THERMAL),
        (reading(345, reasons=ThrottleReason.GPU_IDLE), LockVerdict.IDLE),
        (reading(None), LockVerdict.UNKNOWN),
    ],
)
def test_a_clock_kept_low_for_a_reason_is_told_and_no_fault(
    found: Reading, verdict: LockVerdict
) -> None:
    monitor = HoldMonitor(300 * MS)
    monitor.note_set(HIGH, 0)
    for turn in range(4):
        assert not monitor.look(found, (301 + 100 * turn) * MS)
    assert monitor.verdict is verdict


def test_while_switching_fast_a_reading_may_fit_any_recent_pair() -> None:
    monitor = HoldMonitor(300 * MS)
    for turn in range(20):
        monitor.note_set((HIGH, LOW)[turn % 2], turn * 50 * MS)
    assert monitor.due(960 * MS)
    assert not monitor.look(reading(1800), 960 * MS)
    assert not monitor.look(reading(1200), 1060 * MS)
    assert not monitor.look(reading(1980), 1160 * MS)
    assert monitor.look(reading(1980), 1260 * MS)


def test_a_pair_of_long_ago_excuses_nothing() -> None:
    monitor = HoldMonitor(300 * MS)
    monitor.note_set(HIGH, 0)
    monitor.note_set(LOW, 1000 * MS)
    assert monitor.due(1400 * MS)
    monitor.look(reading(1800), 1400 * MS)
    assert monitor.look(reading(1800), 1500 * MS)


def test_under_the_governor_any_clock_is_right() -> None:
    monitor = HoldMonitor(300 * MS)
    monitor.note_set(HIGH, 0)
    monitor.note_set(GOVERNOR, 1)
    assert monitor.judged
    assert not monitor.due(10_000 * MS)
