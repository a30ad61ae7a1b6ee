"""What must hold on whatever real NVIDIA GPU this machine has. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clockwright.data.errors import DeviceError, NotSupportedError, ReadOnlyError
from clockwright.tracer.gpu import Capability, open_gpu
from clockwright.tracer.gpu.energy import CounterMeter
from clockwright.tracer.gpu.nvml import NvmlGpu

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlGpu]:
    monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", "1")
    try:
        opened = open_gpu("nvml:0", allow_set=True)
    except NotSupportedError:
        raise
    except DeviceError as error:
        pytest.skip(f"no NVIDIA GPU here: {error}")
    assert isinstance(opened, NvmlGpu)
    yield opened
    opened.close()


def test_it_says_who_it_is_and_what_it_lists(gpu: NvmlGpu) -> None:
    assert gpu.info.uuid.startswith("GPU-")
    assert gpu.info.name
    assert not gpu.info.simulated
    pairs = gpu.pairs()
    assert pairs, gpu.notes
    assert list(pairs) == sorted(pairs, key=lambda p: (p.mem_mhz, p.core_mhz), reverse=True)
    assert len(set(pairs)) == len(pairs)


def test_readings_are_in_their_units(gpu: NvmlGpu) -> None:
    reading = gpu.read()
    assert reading.core_mhz is None or 0 < reading.core_mhz <= max(
        pair.core_mhz or 0 for pair in gpu.pairs()
    )
    assert reading.power_w is None or 1 < reading.power_w < 3_000
    assert reading.temperature_c is None or 0 < reading.temperature_c < 120


def test_the_energy_counter_steps_and_agrees_with_power(gpu: NvmlGpu) -> None:
    if gpu.capabilities().energy_counter is not Capability.YES:
        pytest.skip("this GPU has no energy counter")
    meter = CounterMeter(gpu)
    start = meter.mark()
    for _ in range(5):
        end = meter.mark()
    span = meter.span(start, end)
    assert span.energy_mj > 0
    assert 1 < span.power_w < 3_000


def test_read_only_holds_here_too(gpu: NvmlGpu) -> None:
    with pytest.raises(ReadOnlyError):
        gpu.lock(gpu.pairs()[0])
    assert gpu.capabilities().lock_core is Capability.READ_ONLY
