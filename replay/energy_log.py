"""Mean power over a block, from readings taken beside it while the GPU works.

A thread reads the GPU's energy counter while steps run. The counter moves in steps of about 100 ms;
each step seen between two readings is known in time to within their distance. Mean power is the
energy between the first and the last step within the block over the time between them, so it covers
whole counter periods and no idle time. Where there is no counter, power readings are averaged.

Left out: what happens between the block's start and the counter's first step; a block several
periods long makes it small, and it is the same for every arm.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ..data.errors import DeviceError
from ..tracer.gpu.protocol import Capability, Gpu, Reading

__all__ = ["EnergyLog", "MeanPower", "mean_power"]

_MJ_PER_W_NS = 1e-6


@dataclass(frozen=True)
class MeanPower:
    """Power over a span.

    Attributes:
        power_w: the mean.
        error_w: bound on its error from not knowing the counter's steps in time; None unknown.
    """

    power_w: float
    error_w: float | None


def mean_power(readings: Sequence[Reading], start_ns: int, end_ns: int) -> MeanPower | None:
    """Mean power between two moments; None if the readings cannot tell.

    Args:
        readings: in order of time.
        start_ns: the block's start, on the readings' clock.
        end_ns: its end.
    """
    inside = [reading for reading in readings if start_ns <= reading.at_ns <= end_ns]
    steps: list[tuple[float, float, int]] = []  # (when, within, counter)
    for before, after in itertools.pairwise(inside):
        if before.energy_mj is None or after.energy_mj is None:
            continue
        if after.energy_mj != before.energy_mj:
            half_ns = (after.at_ns - before.at_ns) / 2
            steps.append((before.at_ns + half_ns, half_ns, after.energy_mj))
    if len(steps) >= 2:
        (first_ns, first_half_ns, first_mj), (last_ns, last_half_ns, last_mj) = steps[0], steps[-1]
        span_ns, energy_mj = last_ns - first_ns, last_mj - first_mj
        if energy_mj > 0:
            power_w = energy_mj / (span_ns * _MJ_PER_W_NS)
            return MeanPower(power_w, power_w * (first_half_ns + last_half_ns) / span_ns)
    watts = [reading.power_w for reading in inside if reading.power_w is not None]
    if watts and not any(reading.energy_mj is not None for reading in inside):
        return MeanPower(sum(watts) / len(watts), None)
    return None


class EnergyLog:
    """Reads a GPU in a thread from entering to leaving. Use as a context manager.

    Args:
        gpu: a real GPU.
        period_ns: time between readings, well under the counter's 100 ms.
        keep: readings kept; older ones are dropped.
    """

    def __init__(self, gpu: Gpu, *, period_ns: int = 10_000_000, keep: int = 100_000) -> None:
        self._gpu, self._period_ns, self._keep = gpu, period_ns, keep
        self._has_counter = gpu.capabilities().energy_counter is Capability.YES
        self._readings: list[Reading] = []
        self._failure: DeviceError | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="clockwright-energy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, start_ns: int, end_ns: int) -> tuple[Reading, ...]:
        """Readings taken between two moments.

        Raises:
            DeviceError: the GPU could not be read.
        """
        if self._failure is not None:
            raise self._failure
        with self._lock:
            return tuple(r for r in self._readings if start_ns <= r.at_ns <= end_ns)

    def _run(self) -> None:
        while not self._stop.wait(self._period_ns / 1e9):
            try:
                reading = self._gpu.read(energy=self._has_counter)
            except DeviceError as error:
                self._failure = error  # raised by the next `between`, in the caller's thread
                return
            with self._lock:
                self._readings.append(reading)
                del self._readings[: -self._keep]
