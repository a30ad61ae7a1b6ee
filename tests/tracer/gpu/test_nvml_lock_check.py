"""A lock that returned success is not believed until the reported clock has stayed on it."""

from __future__ import annotations

import pytest

from clockwright.data.errors import InputError, LockNotHeldError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu import Reading
from clockwright.tracer.gpu.lock_check import LockCheck, LockVerdict, judge_reading, verify_lock
from tests.fake_nvml.driver import NOT_SUPPORTED, FakeNvml, Moment
from tests.fake_nvml.stepped import SteppedGpu

PAIR = ClockPair(1500, 2201)
MS = 1_000_000


def _lock_and_check(fake: FakeNvml, pair: ClockPair = PAIR, timeout_ms: int = 100) -> LockCheck:
    with SteppedGpu(fake, allow_set=True) as gpu:
        gpu.lock(pair)
        return verify_lock(gpu, pair, timeout_ns=timeout_ms * MS, hold_ns=30 * MS, poll_ns=MS)


@pytest.mark.parametrize("pair", [PAIR, ClockPair(1500, None), ClockPair(None, 2201)])
def test_a_lock_that_holds_is_held(fake_nvml: FakeNvml, pair: ClockPair) -> None:
    check = _lock_and_check(fake_nvml, pair)
    assert check.verdict is LockVerdict.HELD
    assert check.held
    assert (check.looks, check.waited_ns) == (31, 30 * MS)
    check.require()


def test_a_late_lock_is_waited_for(fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu().set(settle_ns=60 * MS)
    check = _lock_and_check(fake_nvml)
    assert check.held
    assert check.waited_ns == 90 * MS  # settling and then the hold
    assert _lock_and_check(fake_nvml, timeout_ms=50).verdict is LockVerdict.NOT_HELD


def test_a_lock_is_not_believed_for_two_looks_far_apart(fake_nvml: FakeNvml) -> None:
    with SteppedGpu(fake_nvml, allow_set=True) as gpu:
        gpu.lock(PAIR)
        check = verify_lock(gpu, PAIR, hold_ns=30 * MS, poll_ns=200 * MS)
    assert check.held
    assert check.looks == 5


@pytest.mark.parametrize(
    ("reasons", "verdict"),
    [
        (0x4, LockVerdict.POWER_CAPPED),
        (0x80, LockVerdict.POWER_CAPPED),
        (0x20, LockVerdict.THERMAL),
        (0x44, LockVerdict.THERMAL),
        (0x1, LockVerdict.IDLE),
        (0x0, LockVerdict.NOT_HELD),
        (0x2, LockVerdict.NOT_HELD),
    ],
)
def test_a_clock_below_the_lock_is_explained_by_the_reasons(
    fake_nvml: FakeNvml, reasons: int, verdict: LockVerdict
) -> None:
    fake_nvml.gpu().set_moments([Moment(reasons=reasons, core_cap_mhz=1335)])
    check = _lock_and_check(fake_nvml)
    assert (check.verdict, check.core_mhz, check.mem_mhz) == (verdict, 1335, 2201)
    assert check.throttle_reasons == reasons
    if verdict is LockVerdict.IDLE:
        check.require()  # nothing was learnt, so nothing is refused
    else:
        with pytest.raises(LockNotHeldError, match=r"1335 MHz core.*lock call returned success"):
            check.require()


@pytest.mark.parametrize("clock", ["core_lock_holds", "mem_lock_holds"])
def test_an_ignored_lock_is_not_held_whatever_the_power_cap_says(
    fake_nvml: FakeNvml, clock: str
) -> None:
    """A cap takes the core clock down; it explains neither a higher clock nor the memory's."""
    fake_nvml.gpu().set(**{clock: 0})
    fake_nvml.gpu().set_moments([Moment(reasons=0x4)])
    check = _lock_and_check(fake_nvml)
    assert check.verdict is LockVerdict.NOT_HELD
    assert (check.core_mhz, check.mem_mhz) in {(1980, 2201), (1500, 3201)}


def test_a_clock_that_only_passes_the_lock_is_not_held(fake_nvml: FakeNvml) -> None:
    """The clock is on the lock for 20 ms of every 40: never for the 30 ms asked for."""
    moments = [
        Moment(after_ns=i * 20 * MS, core_cap_mhz=0 if i % 2 else 1335, reasons=0x4)
        for i in range(60)
    ]
    fake_nvml.gpu().set_moments(moments)
    check = _lock_and_check(fake_nvml, timeout_ms=200)
    assert check.verdict is LockVerdict.POWER_CAPPED
    assert check.waited_ns >= 200 * MS


def test_no_reported_clock_is_unknown(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlDeviceGetClockInfo", NOT_SUPPORTED)
    check = _lock_and_check(fake_nvml)
    assert check.verdict is LockVerdict.UNKNOWN
    assert "unknown core, unknown memory" in str(check)
    check.require()


def test_the_governor_is_no_lock(fake_nvml: FakeNvml) -> None:
    with SteppedGpu(fake_nvml) as gpu, pytest.raises(InputError, match="locks nothing"):
        verify_lock(gpu, GOVERNOR)


@pytest.mark.parametrize(
    ("reading", "verdict"),
    [
        (Reading(0, 1508, 2193, throttle_reasons=0x4), LockVerdict.HELD),
        (Reading(0, 1491, 2201, throttle_reasons=0x4), LockVerdict.POWER_CAPPED),
        (Reading(0, 1491, 2201), LockVerdict.NOT_HELD),
        (Reading(0, 1509, 2201, throttle_reasons=0x4), LockVerdict.NOT_HELD),
        (Reading(0, 1335, 3201, throttle_reasons=0x4), LockVerdict.NOT_HELD),
        (Reading(0, 345, 2201, throttle_reasons=0x1), LockVerdict.IDLE),
        (Reading(0, 1500, None), LockVerdict.UNKNOWN),
    ],
)
def test_one_reading_is_judged_within_half_a_step(reading: Reading, verdict: LockVerdict) -> None:
    assert judge_reading(reading, PAIR) is verdict
