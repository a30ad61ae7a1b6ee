"""The shared page: numbers written there are set by another process, and seen soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clockwright.data.errors import InputError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks import KeeperClient, Outcome, TriggerPage
from tests.fake_nvml.driver import UNKNOWN_ERROR, FakeGpu, FakeNvml
from tests.tracer.clocks.conftest import Host
from tests.tracer.clocks.processes import wait_for_error, wait_until

HIGH, LOW = ClockPair(1410, 3201), ClockPair(1200, 2201)
TABLE = {1: HIGH, 2: LOW, 9: GOVERNOR}


@pytest.fixture
def fake_nvml(host: Host) -> FakeNvml:
    return host.driver


@pytest.fixture
def gpu(host: Host) -> FakeGpu:
    return host.gpu


@pytest.fixture
def state(host: Host) -> Path:
    return host.state


def write(page: TriggerPage, number: int, step: int = 0) -> None:
    """Write a number and wait until it has been acted on."""
    count = page.event_count
    page.step, page.sequence = step, number
    wait_until(lambda: page.event_count > count or page.fault, "the number is seen")


def test_each_number_written_sets_its_pair_and_is_recorded(
    client: KeeperClient, gpu: FakeGpu
) -> None:
    client.acquire(gpu.uuid, TABLE)
    with TriggerPage.create() as page:
        client.arm(page)
        assert page.armed
        for step, number in enumerate([1, 2, 1, 9]):
            write(page, number, step)
            expected = TABLE[number]
            lock = None if expected.core_mhz is None else (expected.core_mhz,) * 2
            assert gpu.core_lock == lock
        events = client.events()
        assert page.events() == events
        client.disarm()
        assert not page.armed
    assert [(e.step, e.sequence, e.outcome) for e in events] == [
        (0, 1, Outcome.SET),
        (1, 2, Outcome.SET),
        (2, 1, Outcome.SET),
        (3, 9, Outcome.SET),
    ]


def test_disarm_goes_back_to_the_baseline_and_later_numbers_do_nothing(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    client.acquire(gpu.uuid, TABLE)
    with TriggerPage.create() as page:
        client.arm(page)
        write(page, 1)
        client.disarm()
        assert gpu.is_pristine
        before = len(fake_nvml.setters())
        page.sequence = 2
        time.sleep(0.05)
        assert len(fake_nvml.setters()) == before
        client.arm(page)  # what stands there now counts again
        wait_until(lambda: gpu.core_lock == (1200, 1200), "armed again")


def test_the_stop_flag_holds_the_baseline_until_resume(client: KeeperClient, gpu: FakeGpu) -> None:
    client.acquire(gpu.uuid, TABLE)
    with TriggerPage.create() as page:
        client.arm(page)
        write(page, 1)
        page.stop()
        wait_until(lambda: gpu.is_pristine, "the baseline")
        page.sequence = 2
        time.sleep(0.03)
        assert gpu.is_pristine
        page.resume()
        page.sequence = 1
        wait_until(lambda: gpu.core_lock == (1410, 1410), "the same number counts again")


def test_a_number_the_table_does_not_name_is_a_fault_and_restores(
    client: KeeperClient, gpu: FakeGpu
) -> None:
    client.acquire(gpu.uuid, TABLE, heartbeat_s=3.0)
    with TriggerPage.create() as page:
        client.arm(page)
        write(page, 1)
        write(page, 77)
        wait_until(lambda: page.fault and not page.armed, "the fault is told")
        assert gpu.is_pristine
        page.sequence = 2
        time.sleep(0.15)
        assert gpu.is_pristine
        assert "sequence number 77 is not in the table" in wait_for_error(client.check, InputError)
        client.arm(page)
        wait_until(lambda: gpu.core_lock == (1200, 1200), "armed again")
        assert not page.fault


def test_a_driver_failure_while_following_is_a_fault_and_restores(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    client.acquire(gpu.uuid, TABLE)
    with TriggerPage.create() as page:
        client.arm(page)
        write(page, 1)
        fake_nvml.fail("nvmlDeviceSetGpuLockedClocks", UNKNOWN_ERROR)
        write(page, 2)
        wait_until(lambda: page.fault and gpu.is_pristine, "the fault restores")


def test_polling_goes_on_while_the_owner_holds_its_interpreter(
    client: KeeperClient, gpu: FakeGpu
) -> None:
    """Both numbers are written within one long call of the owner's, as a stream would."""
    import ctypes

    client.acquire(gpu.uuid, TABLE)
    with TriggerPage.create() as page:
        client.arm(page)
        pause = ctypes.PyDLL(None).usleep  # PyDLL keeps the interpreter lock
        page.sequence = 1
        pause(100_000)
        page.sequence = 2
        pause(100_000)
        assert [event.sequence for event in page.events()] == [1, 2]
