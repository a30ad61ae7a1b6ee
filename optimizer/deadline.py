"""A wall-clock limit handed down through a solve."""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """Counts down from ``limit_s`` seconds."""

    def __init__(self, limit_s: float) -> None:
        self._start = time.monotonic()
        self._limit_s = limit_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._limit_s - self.elapsed_s)

    @property
    def passed(self) -> bool:
        """True once the limit has struck."""
        return self.left_s <= 0.0

    def share(self, fraction: float) -> Deadline:
        """A limit within this one, at a fraction of the time that is left."""
        return Deadline(self.left_s * fraction)
