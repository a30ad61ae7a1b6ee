"""Whether the clocks that were set are the clocks the driver reports, while they are being set.

The driver's reported clock lags by its refresh (about 100 ms) and by the switch itself, so a
reading is held against every pair in force during the last `settle_ns`: it contradicts the locks
only if it fits none of them, and only a contradiction seen twice counts. A clock kept low by the
power cap, by heat or by idleness is no contradiction; the verdict says so.

Left out: a lock that fails only for shorter than the driver's refresh; sensing with a kernel of
known length (in ``measure``) sees those.
"""

from __future__ import annotations

from collections import deque

from ...data.units import GOVERNOR, ClockPair
from ..gpu.lock_check import LockVerdict, judge_reading
from ..gpu.protocol import Reading

__all__ = ["HoldMonitor"]

_EXPLAINED = {
    LockVerdict.POWER_CAPPED,
    LockVerdict.THERMAL,
    LockVerdict.IDLE,
    LockVerdict.UNKNOWN,
}
_STRIKES = 2


class HoldMonitor:
    """Judges readings against the pairs in force.

    Attributes:
        verdict: on the last reading that could be judged; None before.
        judged: True once a reading newer than the last set has been judged.
    """

    def __init__(self, settle_ns: int) -> None:
        self._settle_ns = settle_ns
        self._past: deque[tuple[int, ClockPair]] = deque()  # (when it was replaced, pair)
        self._pair, self._since_ns = GOVERNOR, 0
        self._strikes = 0
        self._last_look_ns: int | None = None
        self.verdict: LockVerdict | None = None
        self.judged = True

    def note_set(self, pair: ClockPair, at_ns: int) -> None:
        """A set of ``pair`` returned at ``at_ns``."""
        if pair != self._pair:
            self._past.append((at_ns, self._pair))
        self._pair, self._since_ns = pair, at_ns
        self._strikes, self.judged = 0, pair.is_governor
        if pair.is_governor:
            self.verdict = None

    def due(self, now_ns: int) -> bool:
        """True if a reading now would tell something: settled, or among many short holds."""
        if self._pair.is_governor:
            return False
        if self._last_look_ns is not None and now_ns - self._last_look_ns < self._settle_ns // 3:
            return False
        self._forget_past(now_ns)
        return not any(pair.is_governor for _, pair in self._past)

    def look(self, reading: Reading, now_ns: int) -> bool:
        """Judge a reading taken when `due`; True if the locks are seen not to hold."""
        self._last_look_ns = now_ns
        self._forget_past(now_ns)
        verdicts = [judge_reading(reading, self._pair)]
        verdicts += [judge_reading(reading, pair) for _, pair in self._past]
        settled = now_ns - self._since_ns >= self._settle_ns
        fitting = [v for v in verdicts if v is LockVerdict.HELD or v in _EXPLAINED]
        if fitting:
            self._strikes = 0
            self.verdict = LockVerdict.HELD if LockVerdict.HELD in fitting else fitting[0]
            self.judged = self.judged or settled
            return False
        self._strikes += 1
        if self._strikes < _STRIKES:
            return False
        self.verdict, self.judged = LockVerdict.NOT_HELD, True
        return True

    def _forget_past(self, now_ns: int) -> None:
        while self._past and self._past[0][0] < now_ns - self._settle_ns:
            self._past.popleft()
