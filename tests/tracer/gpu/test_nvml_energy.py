"""Energy by the stepping counter, or by integrated power where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from clockwright.data.errors import DeviceError, InputError, NotSupportedError
from clockwright.tracer.gpu.energy import (
    CounterMeter,
    EnergyMark,
    EnergyMethod,
    PowerMeter,
    open_energy_meter,
)
from clockwright.tracer.gpu.nvml import NvmlGpu
from tests.fake_nvml.driver import GPU_IS_LOST, NOT_SUPPORTED, FakeNvml, Moment

MS = 1_000_000
COUNTER = "nvmlDeviceGetTotalEnergyConsumption"


@pytest.fixture
def gpu(fake_nvml: FakeNvml) -> Iterator[NvmlGpu]:
    fake_nvml.gpu().set(energy_period_ns=20 * MS)
    fake_nvml.gpu().set_moments([Moment(power_mw=200_000)])
    with NvmlGpu(fake_nvml.gpu().uuid) as opened:
        yield opened


def test_counter_marks_lie_on_steps_within_their_stated_error(
    fake_nvml: FakeNvml, gpu: NvmlGpu
) -> None:
    epoch_ns = fake_nvml.state.epoch_ns
    with open_energy_meter(gpu) as meter:
        start, end = meter.mark(), meter.mark()
        time.sleep(0.05)
        later = meter.mark()
    for mark in (start, end, later):
        steps = round((mark.energy_mj - 5_000_000) / 4_000)  # 200 W for 20 ms
        assert mark.energy_mj == 5_000_000 + 4_000 * steps
        step_ns = epoch_ns + steps * 20 * MS
        assert abs(mark.at_ns - step_ns) <= mark.at_error_ns
    span = meter.span(start, later)
    assert span.method is EnergyMethod.COUNTER
    assert abs(span.energy_mj - 200 * span.duration_ns * 1e-6) <= span.error_mj
    assert span.power_w == pytest.approx(span.energy_mj / span.duration_ns * 1e6)


def test_a_counter_that_went_back_is_refused(fake_nvml: FakeNvml, gpu: NvmlGpu) -> None:
    meter = CounterMeter(gpu)
    start = meter.mark()
    now_ns = time.monotonic_ns() - fake_nvml.state.epoch_ns
    fake_nvml.gpu().set(energy_reset_ns=now_ns)
    end = meter.mark()
    with pytest.raises(DeviceError, match="went back from 50"):
        meter.span(start, end)


def test_a_counter_that_stands_still_is_reported(fake_nvml: FakeNvml, gpu: NvmlGpu) -> None:
    fake_nvml.gpu().set_moments([Moment(power_mw=0)])
    with pytest.raises(DeviceError, match="stood at 5000000 mJ"):
        CounterMeter(gpu, timeout_ns=60 * MS).mark()


def test_without_a_counter_power_is_integrated_and_labelled(
    fake_nvml: FakeNvml, gpu: NvmlGpu
) -> None:
    fake_nvml.fail(COUNTER, NOT_SUPPORTED)
    with open_energy_meter(gpu) as meter:
        start = meter.mark()
        time.sleep(0.06)
        end = meter.mark()
    span = meter.span(start, end)
    assert isinstance(meter, PowerMeter)
    assert span.method is EnergyMethod.POWER_INTEGRATION
    assert span.energy_mj == pytest.approx(200 * span.duration_ns * 1e-6)  # constant power
    assert span.error_mj == pytest.approx(0, abs=1e-6)


def test_integrated_power_follows_a_step_within_its_stated_error(
    fake_nvml: FakeNvml, gpu: NvmlGpu
) -> None:
    fake_nvml.fail(COUNTER, NOT_SUPPORTED)
    with PowerMeter(gpu, period_ns=5 * MS) as meter:
        start = meter.mark()
        change_ns = gpu.now_ns() + 60 * MS
        after_ns = change_ns - fake_nvml.state.epoch_ns
        fake_nvml.gpu().set_moments([Moment(power_mw=200_000), Moment(after_ns, power_mw=600_000)])
        time.sleep(0.15)
        end = meter.mark()
    span = meter.span(start, end)
    truth_mj = (200 * (change_ns - start.at_ns) + 600 * (end.at_ns - change_ns)) * 1e-6
    assert abs(span.energy_mj - truth_mj) <= span.error_mj
    assert 200 * span.duration_ns * 1e-6 < span.energy_mj < 600 * span.duration_ns * 1e-6


def test_a_gpu_lost_while_sampling_is_reported_at_the_next_mark(
    fake_nvml: FakeNvml, gpu: NvmlGpu
) -> None:
    with PowerMeter(gpu, period_ns=MS) as meter:
        meter.mark()
        fake_nvml.fail("nvmlDeviceGetPowerUsage", GPU_IS_LOST)
        meter._thread.join(timeout=10)
        assert not meter._thread.is_alive()
        fake_nvml.heal()  # what was missed is still missed
        with pytest.raises(DeviceError, match="fallen off the bus"):
            meter.mark()


def test_neither_counter_nor_power_is_refused(fake_nvml: FakeNvml, gpu: NvmlGpu) -> None:
    fake_nvml.fail(COUNTER, NOT_SUPPORTED)
    fake_nvml.fail("nvmlDeviceGetPowerUsage", NOT_SUPPORTED)
    with pytest.raises(NotSupportedError, match="neither energy nor power"):
        open_energy_meter(gpu)
    with pytest.raises(NotSupportedError, match="no energy counter"):
        CounterMeter(gpu).mark()


def test_a_span_runs_forward_and_a_closed_meter_measures_nothing(gpu: NvmlGpu) -> None:
    mark = EnergyMark(100, 0, 5.0)
    with pytest.raises(InputError, match="not after"):
        CounterMeter(gpu).span(mark, mark)
    meter = PowerMeter(gpu)
    meter.close()
    meter.close()
    with pytest.raises(InputError, match="closed"):
        meter.mark()
