"""Mean power over a block comes from the counter's own steps within it."""

from __future__ import annotations

import time

import pytest

from clockwright.data.errors import DeviceError
from clockwright.replay.energy_log import EnergyLog, mean_power
from clockwright.tracer.gpu.protocol import Capabilities, Capability, Reading

MS = 1_000_000


def _readings(power_w: float, every_ms: int = 10, until_ms: int = 1000, step_ms: int = 100):
    """A counter that moves every ``step_ms``, read every ``every_ms``."""
    return [
        Reading(
            at_ns=at * MS,
            energy_mj=round(power_w * (at // step_ms) * step_ms),
            power_w=power_w,
        )
        for at in range(0, until_ms + 1, every_ms)
    ]


def test_the_mean_covers_whole_counter_periods_within_the_block():
    power = mean_power(_readings(300.0), 33 * MS, 777 * MS)
    assert power is not None
    assert power.power_w == pytest.approx(300.0)
    assert power.error_w == pytest.approx(300.0 * 10 / 600)


def test_what_the_gpu_drew_before_and_after_the_block_does_not_count():
    before = _readings(100.0, until_ms=500)
    after = [
        Reading(at_ns=r.at_ns + 500 * MS, energy_mj=r.energy_mj + 50_000)
        for r in _readings(400.0)[1:]
    ]
    power = mean_power([*before, *after], 510 * MS, 1450 * MS)
    assert power is not None
    assert power.power_w == pytest.approx(400.0)


def test_too_few_steps_tell_nothing():
    assert mean_power(_readings(300.0), 120 * MS, 290 * MS) is None
    assert mean_power([], 0, 1000 * MS) is None


def test_a_counter_that_went_back_tells_nothing():
    readings = [Reading(at_ns=at * 100 * MS, energy_mj=1000 - 100 * at) for at in range(5)]
    assert mean_power(readings, 0, 1000 * MS) is None


def test_without_a_counter_power_readings_are_averaged_with_no_stated_error():
    readings = [Reading(at_ns=at * MS, power_w=200.0 + at) for at in range(101)]
    power = mean_power(readings, 0, 100 * MS)
    assert power is not None
    assert power.power_w == pytest.approx(250.0)
    assert power.error_w is None


class _Gpu:
    def __init__(self, fails: bool = False) -> None:
        self.fails, self.energy_asked = fails, None

    def capabilities(self) -> Capabilities:
        return Capabilities(energy_counter=Capability.YES)

    def read(self, *, energy: bool = True) -> Reading:
        if self.fails:
            raise DeviceError("the GPU is gone")
        self.energy_asked = energy
        return Reading(at_ns=time.monotonic_ns(), energy_mj=1)


def _wait(condition) -> None:
    until_s = time.monotonic() + 10
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.005)
    assert condition()


def test_readings_are_taken_beside_the_work_and_kept_within_bounds():
    gpu = _Gpu()
    start_ns = time.monotonic_ns()
    with EnergyLog(gpu, period_ns=MS, keep=5) as log:
        _wait(lambda: len(log.between(start_ns, time.monotonic_ns())) == 5)
        assert gpu.energy_asked is True
        assert log.between(0, start_ns) == ()


def test_a_gpu_that_cannot_be_read_is_told_in_the_callers_thread():
    with EnergyLog(_Gpu(fails=True), period_ns=MS) as log:

        def told() -> bool:
            try:
                log.between(0, 1)
            except DeviceError as error:
                return "gone" in str(error)
            return False

        _wait(told)
