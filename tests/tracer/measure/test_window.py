"""Power out of a counter that steps and of readings, in the time of a GPU that is made up."""

import threading

import numpy as np
import pytest

from clockwright.data.errors import DeviceError
from clockwright.tracer.gpu.energy import EnergyMethod
from clockwright.tracer.gpu.protocol import Capabilities, Capability, GpuInfo, Reading
from clockwright.tracer.measure.window import ReadingLog

MS = 1_000_000
END_NS = 2_000 * MS


class MadeUpGpu:
    """Draws ``power_w(seconds)``; a look takes 2 ms of its time; the counter steps each 100 ms."""

    info = GpuInfo(name="made up", uuid="GPU-0")

    def __init__(self, power_w, *, counter=True, reset_ns=None, fails_ns=None, step_ms=100, **said):
        self.at_ns, self.ended = 0, threading.Event()
        self._power_w, self._counter = power_w, counter
        self._reset_ns, self._fails_ns, self._step_ns = reset_ns, fails_ns, step_ms * MS
        self._said = said

    def capabilities(self):
        return Capabilities(
            energy_counter=Capability.YES if self._counter else Capability.NOT_SUPPORTED
        )

    def now_ns(self):
        return self.at_ns

    def _energy_mj(self):
        stepped_ns = self.at_ns // self._step_ns * self._step_ns
        seconds = np.linspace(0, stepped_ns * 1e-9, 2001)
        energy = 5_000_000 + np.trapezoid([self._power_w(s) for s in seconds], seconds) * 1e3
        return int(energy) if self._reset_ns is None or self.at_ns < self._reset_ns else 7

    def read(self, *, energy=True):
        if self.at_ns >= END_NS:
            self.ended.set()
        else:
            self.at_ns += 2 * MS
        if self._fails_ns is not None and self.at_ns > self._fails_ns:
            self.ended.set()
            raise DeviceError("the GPU has fallen off the bus")
        said = {name: value(self.at_ns * 1e-9) for name, value in self._said.items()}
        return Reading(
            self.at_ns,
            power_w=self._power_w(self.at_ns * 1e-9),
            energy_mj=self._energy_mj() if energy else None,
            **said,
        )


def logged(gpu):
    with ReadingLog(gpu, period_ns=1) as log:
        assert gpu.ended.wait(30)
    return log


def test_the_counters_steps_give_the_mean_power():
    window = logged(MadeUpGpu(lambda s: 650.0)).window(300 * MS, 1_900 * MS)
    assert window.power_w == pytest.approx(650.0, rel=3e-3)  # a step is seen 2 ms late at most
    assert window.method is EnergyMethod.COUNTER
    assert window.steps in (15, 16, 17)
    assert window.duration_ns == pytest.approx(100 * MS * (window.steps - 1), abs=4 * MS)


def test_only_the_window_counts():
    log = logged(MadeUpGpu(lambda s: 200.0 if s < 1 else 600.0))
    assert log.window(0, 900 * MS).power_w == pytest.approx(200.0, rel=0.01)
    assert log.window(1_050 * MS, 2_000 * MS).power_w == pytest.approx(600.0, rel=0.01)


def test_power_that_swings_has_a_larger_error():
    steady = logged(MadeUpGpu(lambda s: 600.0)).window(0, END_NS)
    swinging = logged(MadeUpGpu(lambda s: 600.0 + 100 * np.sin(9 * s))).window(0, END_NS)
    assert swinging.power_error_w > 3 * steady.power_error_w


def test_clocks_heat_and_reasons_of_the_window_are_told():
    gpu = MadeUpGpu(
        lambda s: 600.0,
        core_mhz=lambda s: 1800 if s < 1 else 1500,
        mem_mhz=lambda s: 3201,
        temperature_c=lambda s: 50.0 + 4.0 * s,
        throttle_reasons=lambda s: 0x4 if s > 1.5 else (0x8 if s > 1.2 else 0x1),
    )
    window = logged(gpu).window(1_000 * MS, 2_000 * MS)
    assert window.core_mhz == pytest.approx(1500.0, abs=2)
    assert window.mem_mhz == 3201
    assert window.temperature_c == pytest.approx(56.0, abs=0.1)
    assert window.temperature_slope_c_per_s == pytest.approx(4.0, rel=1e-3)
    assert window.throttle_reasons == 0x4 | 0x8 | 0x1


def test_what_the_driver_does_not_say_is_unknown():
    window = logged(MadeUpGpu(lambda s: 600.0)).window(0, END_NS)
    assert window.core_mhz is window.mem_mhz is window.temperature_c is None
    assert window.temperature_slope_c_per_s is window.throttle_reasons is None


def test_without_a_counter_power_is_integrated_and_labelled():
    log = logged(MadeUpGpu(lambda s: 400.0 + 100 * s, counter=False))
    window = log.window(500 * MS, 1_500 * MS)
    assert window.power_w == pytest.approx(500.0, rel=2e-3)
    assert window.method is EnergyMethod.POWER_INTEGRATION


def test_a_window_too_short_for_the_counter_is_refused():
    log = logged(MadeUpGpu(lambda s: 600.0))
    with pytest.raises(DeviceError, match=r"2 energy steps in 0\.23 s"):
        log.window(450 * MS, 680 * MS)


def test_a_counter_that_fell_back_is_refused_where_it_did():
    log = logged(MadeUpGpu(lambda s: 600.0, reset_ns=1_000 * MS))
    with pytest.raises(DeviceError, match="energy counter fell back"):
        log.window(500 * MS, 1_500 * MS)
    assert log.window(0, 950 * MS).power_w == pytest.approx(600.0, rel=0.01)


def test_a_gpu_that_cannot_be_read_any_more_is_told_by_the_window():
    log = logged(MadeUpGpu(lambda s: 600.0, fails_ns=1_000 * MS))
    with pytest.raises(DeviceError, match="fallen off the bus"):
        log.window(0, 900 * MS)
