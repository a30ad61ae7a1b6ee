"""Energy between two moments: from the driver's counter, or integrated from power readings.

The counter is cumulative and moves in steps (every 100 ms on an H200, where a read takes 3 ms), so
its value is exact only at a step. `CounterMeter.mark` therefore waits for the next step and says
when it came and how well that is known. Where the GPU has no counter, `PowerMeter` samples the
power reading in a thread and integrates it by trapezoids; that reading is itself an average or a
stale value of up to 100 ms, which is why its spans carry a wide stated error and another label.

Neither subtracts idle power, and neither can tell one process's energy from another's.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Self

from ...data.errors import DeviceError, InputError, NotSupportedError
from .protocol import Capability, Gpu

__all__ = [
    "CounterMeter",
    "EnergyMark",
    "EnergyMeter",
    "EnergyMethod",
    "EnergySpan",
    "PowerMeter",
    "open_energy_meter",
]

_MJ_PER_W_NS = 1e-6
_POWER_UPDATE_NS = 100_000_000


class EnergyMethod(Enum):
    """Where an energy comes from."""

    COUNTER = "counter"
    POWER_INTEGRATION = "power-integration"


@dataclass(frozen=True)
class EnergyMark:
    """A moment at which the cumulative energy is known.

    Attributes:
        at_ns: when, on the GPU's `now_ns` clock.
        at_error_ns: the moment lies within this much of ``at_ns``.
        energy_mj: energy since some fixed earlier moment.
        power_w: power at the mark, where it was sampled.
    """

    at_ns: int
    at_error_ns: int
    energy_mj: float
    power_w: float | None = None


@dataclass(frozen=True)
class EnergySpan:
    """Energy between two marks.

    Attributes:
        energy_mj: the energy.
        duration_ns: the time between the marks.
        error_mj: bound on the error from not knowing the marks' moments (counter) or from stale
            power readings at both ends (power integration).
        method: counter or power integration.
    """

    energy_mj: float
    duration_ns: int
    error_mj: float
    method: EnergyMethod

    @property
    def power_w(self) -> float:
        """Mean power over the span."""
        return self.energy_mj / (self.duration_ns * _MJ_PER_W_NS)


class EnergyMeter(ABC):
    """Marks moments and gives the energy between them; use as a context manager."""

    method: EnergyMethod

    @abstractmethod
    def mark(self) -> EnergyMark:
        """Mark a moment at or shortly after now.

        Raises:
            DeviceError: the GPU cannot be read, or its energy does not move.
        """

    def span(self, start: EnergyMark, end: EnergyMark) -> EnergySpan:
        """The energy from one mark to a later one.

        Raises:
            InputError: ``end`` is not after ``start``.
            DeviceError: the counter went back between them.
        """
        if end.at_ns <= start.at_ns:
            raise InputError(f"energy span ends at {end.at_ns} ns, not after {start.at_ns} ns")
        energy_mj = end.energy_mj - start.energy_mj
        if energy_mj < 0:
            raise DeviceError(
                f"the energy counter went back from {start.energy_mj:.0f} to {end.energy_mj:.0f} "
                "mJ (driver reloaded, or the counter was reset); measure again"
            )
        duration_ns = end.at_ns - start.at_ns
        return EnergySpan(energy_mj, duration_ns, self._error_mj(start, end), self.method)

    @abstractmethod
    def _error_mj(self, start: EnergyMark, end: EnergyMark) -> float: ...

    @abstractmethod
    def close(self) -> None:
        """Stop measuring."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CounterMeter(EnergyMeter):
    """Energy by the driver's cumulative counter, marked at its steps.

    Args:
        gpu: a GPU whose readings carry ``energy_mj``.
        poll_ns: pause between looks for a step; a look itself takes milliseconds on some drivers.
        timeout_ns: the counter must step within this.
    """

    method = EnergyMethod.COUNTER

    def __init__(
        self, gpu: Gpu, *, poll_ns: int = 1_000_000, timeout_ns: int = 2_000_000_000
    ) -> None:
        self._gpu, self._poll_ns, self._timeout_ns = gpu, poll_ns, timeout_ns

    def mark(self) -> EnergyMark:
        """Wait for the counter's next step and mark it.

        Raises:
            NotSupportedError: the GPU has no counter.
            DeviceError: it did not step in time.
        """
        gpu = self._gpu
        start_ns = before_ns = gpu.now_ns()
        old_mj = self._read_mj()
        while True:
            gpu.sleep_ns(self._poll_ns)
            look_ns = gpu.now_ns()
            new_mj = self._read_mj()
            after_ns = gpu.now_ns()
            if new_mj != old_mj:
                # The step came after the last look that still saw the old value had begun.
                half_ns = (after_ns - before_ns + 1) // 2
                return EnergyMark(before_ns + half_ns, half_ns, float(new_mj))
            if after_ns - start_ns > self._timeout_ns:
                raise DeviceError(
                    f"the energy counter of {gpu.info.name} stood at {old_mj} mJ for "
                    f"{(after_ns - start_ns) / 1e9:.1f} s; expected a step about every 0.1 s"
                )
            before_ns = look_ns

    def _read_mj(self) -> int:
        energy_mj = self._gpu.read(energy=True).energy_mj
        if energy_mj is None:
            raise NotSupportedError(
                f"{self._gpu.info.name} has no energy counter; integrate power readings instead"
            )
        return energy_mj

    def _error_mj(self, start: EnergyMark, end: EnergyMark) -> float:
        power_w = (end.energy_mj - start.energy_mj) / (end.at_ns - start.at_ns) / _MJ_PER_W_NS
        return power_w * (start.at_error_ns + end.at_error_ns) * _MJ_PER_W_NS

    def close(self) -> None:
        """Nothing to stop."""


class PowerMeter(EnergyMeter):
    """Energy by integrating power readings, sampled in a thread from construction to `close`.

    Args:
        gpu: a real GPU whose readings carry ``power_w``.
        period_ns: time between samples; well under the 100 ms in which drivers refresh them.

    Raises:
        NotSupportedError: the GPU reports no power, or is simulated (its time does not run by
            itself, so a thread cannot sample it).
    """

    method = EnergyMethod.POWER_INTEGRATION

    def __init__(self, gpu: Gpu, *, period_ns: int = 20_000_000) -> None:
        if gpu.info.simulated:
            raise NotSupportedError("power is not integrated on a simulated GPU; it has a counter")
        self._gpu, self._period_ns = gpu, period_ns
        self._lock = threading.Lock()
        self._failure: DeviceError | None = None
        self._energy_mj = 0.0
        self._at_ns, self._power_w = self._sample()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power-meter", daemon=True)
        self._thread.start()

    def _sample(self) -> tuple[int, float]:
        reading = self._gpu.read(energy=False)
        if reading.power_w is None:
            raise NotSupportedError(
                f"{self._gpu.info.name} reports neither energy nor power, so no energy can be "
                "measured on it"
            )
        return reading.at_ns, reading.power_w

    def _advance(self) -> None:
        """Take one sample and add its trapezoid; the lock is held."""
        at_ns, power_w = self._sample()
        self._energy_mj += (power_w + self._power_w) / 2 * (at_ns - self._at_ns) * _MJ_PER_W_NS
        self._at_ns, self._power_w = at_ns, power_w

    def _run(self) -> None:
        while not self._stop.wait(self._period_ns / 1e9):
            try:
                with self._lock:
                    self._advance()
            except DeviceError as error:
                self._failure = error  # raised by the next mark, in the caller's thread
                return

    def mark(self) -> EnergyMark:
        """Sample now and mark it.

        Raises:
            DeviceError: sampling failed, now or since the last mark.
        """
        if self._failure is not None:
            raise self._failure
        if self._stop.is_set():
            raise InputError("this power meter is closed; open another to measure on")
        with self._lock:
            self._advance()
            return EnergyMark(self._at_ns, 0, self._energy_mj, self._power_w)

    def _error_mj(self, start: EnergyMark, end: EnergyMark) -> float:
        # Each end's reading may be one refresh old: what power did in that time is misplaced.
        mean_w = (end.energy_mj - start.energy_mj) / (end.at_ns - start.at_ns) / _MJ_PER_W_NS
        off_w = sum(abs(m.power_w - mean_w) for m in (start, end) if m.power_w is not None)
        return off_w * _POWER_UPDATE_NS * _MJ_PER_W_NS

    def close(self) -> None:
        """Stop the sampling thread; safe to call twice."""
        self._stop.set()
        self._thread.join()


def open_energy_meter(gpu: Gpu) -> EnergyMeter:
    """The best meter the GPU has: its counter, else integrated power.

    Raises:
        NotSupportedError: it reports neither.
    """
    if gpu.capabilities().energy_counter is Capability.YES:
        return CounterMeter(gpu)
    return PowerMeter(gpu)
