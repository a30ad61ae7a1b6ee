"""Whether a clock lock that returned success holds.

NVML's setters return success for locks the GPU then does not keep: under the power cap or when
hot the firmware takes the core clock below the lock, some memory clocks hold only beside low core
clocks, and an idle GPU drops its clocks whatever the lock. The driver refreshes its reported clock
about every 100 ms, so one matching look proves nothing: the clock must match for longer than that.
What is checked here is the driver's report; sensing the clock with a kernel of known length is the
stronger test, and needs a workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_

from ...data.errors import InputError, LockNotHeldError
from ...data.units import ClockPair
from .protocol import Gpu, Reading, ThrottleReason

__all__ = ["LockCheck", "LockVerdict", "judge_reading", "verify_lock"]

_LEAST_LOOKS = 5  # on a stalled host two looks far apart say nothing of the time between


class LockVerdict(Enum):
    """What became of a lock."""

    HELD = "held"
    POWER_CAPPED = "below the lock under the power cap"
    THERMAL = "below the lock for heat"
    NOT_HELD = "not held"
    IDLE = "cannot be told on an idle GPU"
    UNKNOWN = "the driver reports no clock"


@dataclass(frozen=True)
class LockCheck:
    """A verdict with what it rests on.

    Attributes:
        requested: the pair asked for.
        verdict: what became of it.
        core_mhz: last reported SM clock.
        mem_mhz: last reported memory clock.
        throttle_reasons: every reason bit seen while the clock was off the lock; None if unknown.
        looks: how many readings were taken.
        waited_ns: how long it took.
    """

    requested: ClockPair
    verdict: LockVerdict
    core_mhz: int | None
    mem_mhz: int | None
    throttle_reasons: int | None
    looks: int
    waited_ns: int

    @property
    def held(self) -> bool:
        """True only for a lock seen to hold."""
        return self.verdict is LockVerdict.HELD

    def __str__(self) -> str:
        """One line: asked, reported, why."""
        reasons = "unknown" if self.throttle_reasons is None else hex(self.throttle_reasons)
        return (
            f"lock {self.requested}: {self.verdict.value}; the driver reports "
            f"{_mhz(self.core_mhz)} core, {_mhz(self.mem_mhz)} memory after "
            f"{self.waited_ns / 1e6:.0f} ms (reasons {reasons})"
        )

    def require(self) -> None:
        """Refuse a lock that was seen not to hold; one that cannot be told passes.

        Raises:
            LockNotHeldError: the clock is off the lock.
        """
        if self.verdict in {LockVerdict.NOT_HELD, LockVerdict.POWER_CAPPED, LockVerdict.THERMAL}:
            raise LockNotHeldError(
                f"{self}; the lock call returned success. Choose a pair the GPU sustains, or "
                "let it cool or raise its power limit"
            )


def verify_lock(
    gpu: Gpu,
    pair: ClockPair,
    *,
    timeout_ns: int = 1_000_000_000,
    hold_ns: int = 120_000_000,
    poll_ns: int = 5_000_000,
    tolerance_mhz: int = 8,
) -> LockCheck:
    """Watch the reported clocks until they have matched a lock for long enough, or time is up.

    Args:
        gpu: the GPU, already locked.
        pair: what was requested; a None clock is not checked.
        timeout_ns: give up after this long, or at the next break if the clocks match by then.
        hold_ns: how long the clocks must match without a break; longer than the driver's own
            refresh (100 ms on an H200), or a stale value would pass.
        poll_ns: time between looks.
        tolerance_mhz: reported clocks may be off by this much (half a usual step of 15 MHz).

    Raises:
        InputError: the governor pair, which locks nothing.
        DeviceError: the GPU cannot be read.
    """
    if pair.is_governor:
        raise InputError("a lock to verify must name a clock; the governor pair locks nothing")
    start_ns = gpu.now_ns()
    matching_since_ns: int | None = None
    off_lock: list[Reading] = []
    looks = matching_looks = 0
    while True:
        reading = gpu.read(energy=False)
        looks += 1
        now_ns = gpu.now_ns()
        if not _matches(reading, pair, tolerance_mhz):
            matching_since_ns = None
            off_lock.append(reading)
            if now_ns - start_ns >= timeout_ns:
                break
        elif matching_since_ns is None:
            matching_since_ns = reading.at_ns
            matching_looks = 1
        else:
            matching_looks += 1
            if now_ns - matching_since_ns >= hold_ns and matching_looks >= _LEAST_LOOKS:
                break
        gpu.sleep_ns(poll_ns)
    held = matching_since_ns is not None
    seen = _union(off_lock)
    return LockCheck(
        requested=pair,
        verdict=LockVerdict.HELD if held else _why(reading, pair, seen or 0, tolerance_mhz),
        core_mhz=reading.core_mhz,
        mem_mhz=reading.mem_mhz,
        throttle_reasons=seen,
        looks=looks,
        waited_ns=now_ns - start_ns,
    )


def judge_reading(reading: Reading, pair: ClockPair, *, tolerance_mhz: int = 8) -> LockVerdict:
    """The verdict on one reading, for a caller that looks in its own time (the clock keeper)."""
    if _matches(reading, pair, tolerance_mhz):
        return LockVerdict.HELD
    return _why(reading, pair, reading.throttle_reasons or 0, tolerance_mhz)


def _union(readings: list[Reading]) -> int | None:
    known = [r.throttle_reasons for r in readings if r.throttle_reasons is not None]
    return reduce(or_, known) if known else None


def _matches(reading: Reading, pair: ClockPair, tolerance_mhz: int) -> bool:
    return _near(reading.core_mhz, pair.core_mhz, tolerance_mhz) and _near(
        reading.mem_mhz, pair.mem_mhz, tolerance_mhz
    )


def _near(reported: int | None, wanted: int | None, tolerance_mhz: int) -> bool:
    if wanted is None:
        return True
    return reported is not None and abs(reported - wanted) <= tolerance_mhz


def _why(reading: Reading, pair: ClockPair, reasons: int, tolerance_mhz: int) -> LockVerdict:
    """The verdict on clocks that did not match, from a reading that was off the lock."""
    unknown_core = pair.core_mhz is not None and reading.core_mhz is None
    unknown_mem = pair.mem_mhz is not None and reading.mem_mhz is None
    if unknown_core or unknown_mem:
        return LockVerdict.UNKNOWN
    if (reading.throttle_reasons or 0) & ThrottleReason.GPU_IDLE:
        return LockVerdict.IDLE
    core_low = (
        pair.core_mhz is not None
        and reading.core_mhz is not None
        and reading.core_mhz < pair.core_mhz - tolerance_mhz
    )
    # Caps take the core clock down; they never raise it, and they leave the memory clock.
    if core_low and _near(reading.mem_mhz, pair.mem_mhz, tolerance_mhz):
        if reasons & ThrottleReason.THERMAL:
            return LockVerdict.THERMAL
        if reasons & ThrottleReason.POWER:
            return LockVerdict.POWER_CAPPED
    return LockVerdict.NOT_HELD


def _mhz(clock: int | None) -> str:
    return "unknown" if clock is None else f"{clock} MHz"
