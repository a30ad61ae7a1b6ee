"""What the driver said while something ran: energy, power, clock, temperature, reasons, over time.

A thread looks at the GPU every few milliseconds from `open` to `close`; the windows of interest are
cut out afterwards, so that the measured work never waits for a reading. The energy counter moves in
steps (every 100 ms on an H200): its value is exact only at a step, so a window's mean power is the
slope of a line through the steps inside it. Without a counter, power readings are integrated, and
every window says so.

Left out: energy of other processes, which neither way can tell apart.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Self

import numpy as np

from ...data.errors import DeviceError
from ..gpu.energy import EnergyMethod
from ..gpu.protocol import Capability, Gpu, Reading

__all__ = ["ReadingLog", "Window"]

_LEAST_STEPS = 3


@dataclass(frozen=True)
class Window:
    """What was read between two moments.

    Attributes:
        power_w: mean power.
        power_error_w: standard error of it, from the scatter of the steps about their line.
        method: counter or power integration.
        core_mhz: mean of the reported SM clock; None if the driver reports none.
        mem_mhz: the reported memory clock, most often.
        temperature_c: mean; None if not reported.
        temperature_slope_c_per_s: change over the window.
        throttle_reasons: union of the bits seen; None if not reported.
        steps: counter steps (or power readings) behind the slope.
        duration_ns: from first to last of them.
    """

    power_w: float
    power_error_w: float
    method: EnergyMethod
    core_mhz: float | None
    mem_mhz: int | None
    temperature_c: float | None
    temperature_slope_c_per_s: float | None
    throttle_reasons: int | None
    steps: int
    duration_ns: int


class ReadingLog:
    """Samples a GPU in a thread. Use as a context manager.

    Args:
        gpu: a real GPU, read through an object of its own.
        period_ns: pause between looks.
    """

    def __init__(self, gpu: Gpu, *, period_ns: int = 2_000_000) -> None:
        self._gpu, self._period_ns = gpu, period_ns
        self._counter = gpu.capabilities().energy_counter is Capability.YES
        self.method = EnergyMethod.COUNTER if self._counter else EnergyMethod.POWER_INTEGRATION
        self._looks: list[Reading] = []
        self._steps: list[tuple[float, float]] = []  # (moment ns, energy mJ)
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="reading-log", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop looking; what was read stays."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        before_ns: int | None = None
        old_mj: float | None = None
        try:
            while not self._stop.wait(self._period_ns / 1e9):
                begin_ns = self._gpu.now_ns()
                reading = self._gpu.read(energy=self._counter)
                self._looks.append(reading)
                if self._counter:
                    energy_mj = None if reading.energy_mj is None else float(reading.energy_mj)
                    if None not in (energy_mj, old_mj) and energy_mj != old_mj:
                        assert before_ns is not None and energy_mj is not None
                        # It stepped after the last look that saw the old value had begun.
                        self._steps.append(((before_ns + self._gpu.now_ns()) / 2, energy_mj))
                    before_ns, old_mj = begin_ns, energy_mj
                elif reading.power_w is not None:
                    self._integrate(reading)
        except DeviceError as error:
            self._failure = error

    def _integrate(self, reading: Reading) -> None:
        assert reading.power_w is not None
        if not self._steps:
            self._steps.append((float(reading.at_ns), 0.0))
        else:
            at_ns, energy_mj = self._steps[-1]
            last_w = next(r.power_w for r in reversed(self._looks[:-1]) if r.power_w is not None)
            mean_w = (last_w + reading.power_w) / 2
            self._steps.append(
                (float(reading.at_ns), energy_mj + mean_w * (reading.at_ns - at_ns) * 1e-6)
            )

    def window(self, from_ns: int, to_ns: int) -> Window:
        """What was read between two moments of the GPU's clock.

        Raises:
            DeviceError: the GPU could not be read, or its energy did not move in the window, or
                the counter fell back.
        """
        if self._failure is not None:
            raise self._failure
        steps = [step for step in list(self._steps) if from_ns <= step[0] <= to_ns]
        if len(steps) < _LEAST_STEPS:
            raise DeviceError(
                f"{self._gpu.info.name}: {len(steps)} energy steps in "
                f"{(to_ns - from_ns) / 1e9:.2f} s; expected about one every 0.1 s"
            )
        at = np.array([step[0] for step in steps])
        energy = np.array([step[1] for step in steps])
        if (np.diff(energy) < 0).any():
            raise DeviceError(
                f"{self._gpu.info.name}: the energy counter fell back while it was read (driver "
                "reloaded, or the counter was reset); measure again"
            )
        x = (at - at.mean()) * 1e-9
        slope_w, level = np.polyfit(x, energy * 1e-3, 1)
        rest = energy * 1e-3 - (slope_w * x + level)
        error_w = float(np.sqrt((rest**2).sum() / max(len(x) - 2, 1) / (x**2).sum()))
        looks = [look for look in list(self._looks) if from_ns <= look.at_ns <= to_ns]
        mem = [look.mem_mhz for look in looks if look.mem_mhz is not None]
        reasons = [r.throttle_reasons for r in looks if r.throttle_reasons is not None]
        heat = [(r.at_ns, r.temperature_c) for r in looks if r.temperature_c is not None]
        slope = None
        if len(heat) > 1 and heat[-1][0] > heat[0][0]:
            times = np.array([h[0] for h in heat]) * 1e-9
            slope = float(np.polyfit(times - times.mean(), [h[1] for h in heat], 1)[0])
        return Window(
            power_w=float(slope_w),
            power_error_w=error_w,
            method=self.method,
            core_mhz=self.core_mhz(from_ns, to_ns),
            mem_mhz=int(np.median(mem)) if mem else None,
            temperature_c=float(np.mean([h[1] for h in heat])) if heat else None,
            temperature_slope_c_per_s=slope,
            throttle_reasons=reduce(or_, reasons) if reasons else None,
            steps=len(steps),
            duration_ns=int(at[-1] - at[0]),
        )

    def core_mhz(self, from_ns: int, to_ns: int) -> float | None:
        """Mean of the SM clocks reported between two moments; None if there are none."""
        looks = list(self._looks)
        core = [r.core_mhz for r in looks if from_ns <= r.at_ns <= to_ns and r.core_mhz is not None]
        return float(np.mean(core)) if core else None
