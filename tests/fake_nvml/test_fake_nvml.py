"""The fake driver keeps its word: what other tests rest on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pynvml
import pytest

from tests.fake_nvml.driver import GPU_IS_LOST, NO_PERMISSION, FakeNvml, Moment

LOCKER = """
import os, sys, time, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
while True:
    for mhz in (1200, 1500):
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
"""


def _handle():
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def test_a_lock_set_by_another_process_outlives_its_kill(fake_nvml: FakeNvml) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", LOCKER], stdout=subprocess.PIPE, env=os.environ | fake_nvml.env
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        while len(fake_nvml.setters()) < 20:
            time.sleep(0.001)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    log = fake_nvml.setters()
    assert {entry.pid for entry in log} == {child.pid}
    assert fake_nvml.gpu().core_lock == (log[-1].low, log[-1].high)
    pynvml.nvmlDeviceResetGpuLockedClocks(_handle())  # the flock is free again
    assert fake_nvml.gpu().core_lock is None
    assert fake_nvml.setters()[-1].pid == os.getpid()


def test_a_forked_child_sees_and_sets_the_same_state(fake_nvml: FakeNvml) -> None:
    handle = _handle()
    child = os.fork()
    if child == 0:
        pynvml.nvmlDeviceSetMemoryLockedClocks(handle, 2201, 2201)
        os._exit(0)
    os.waitpid(child, 0)
    assert fake_nvml.gpu().mem_lock == (2201, 2201)
    assert fake_nvml.gpu().raw.mem_lock.pid == child


def test_energy_moves_in_steps_and_resets(fake_nvml: FakeNvml) -> None:
    handle, gpu = _handle(), fake_nvml.gpu()
    gpu.set(energy_base_mj=1_000, energy_reset_ns=500_000_000)
    gpu.set_moments([Moment(power_mw=200_000), Moment(after_ns=300_000_000, power_mw=100_000)])

    def energy_mj(at_ms: int) -> int:
        fake_nvml.set_time_ns(at_ms * 1_000_000)
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    # 200 mW per us: 20 J each 100 ms, then 10 J; the counter starts over at 500 ms.
    seen = [energy_mj(ms) for ms in (0, 99, 100, 350, 499, 500, 601)]
    assert seen == [1_000, 1_000, 21_000, 61_000, 71_000, 0, 10_000]


@pytest.mark.parametrize("effect_first", [0, 1])
def test_a_process_killed_in_a_slow_lock_has_set_it_or_not(
    fake_nvml: FakeNvml, effect_first: int
) -> None:
    gpu = fake_nvml.gpu()
    gpu.set(lock_call_ns=60_000_000_000, effect_first=effect_first)
    child = subprocess.Popen(
        [sys.executable, "-c", LOCKER], stdout=subprocess.DEVNULL, env=os.environ | fake_nvml.env
    )
    try:
        while gpu.raw.lock_calls == 0:
            time.sleep(0.001)
    finally:
        child.kill()
        child.wait()
    assert gpu.core_lock == ((1200, 1200) if effect_first else None)


def test_scripted_errors_rights_and_settling(fake_nvml: FakeNvml) -> None:
    handle, gpu = _handle(), fake_nvml.gpu()
    fake_nvml.fail("nvmlDeviceGetPowerUsage", GPU_IS_LOST, skip=1, times=1)
    seen = []
    for _ in range(3):
        try:
            seen.append(pynvml.nvmlDeviceGetPowerUsage(handle))
        except pynvml.NVMLError as error:
            seen.append(-error.value)
    assert seen == [100_000, -GPU_IS_LOST, 100_000]

    fake_nvml.allow_setters("nobody")
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, 1200, 1200)
    assert fake_nvml.setters()[-1].code == NO_PERMISSION
    assert gpu.core_lock is None

    fake_nvml.allow_setters("everyone")
    gpu.set(settle_ns=1_000_000)
    fake_nvml.set_time_ns(0)
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, 1200, 1200)
    seen = []
    for at_ns in (999_999, 1_000_000):
        fake_nvml.set_time_ns(at_ns)
        seen.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    assert seen == [1980, 1200]
