"""Private keepers: their options, dry and read-only modes, and more than one on a host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clockwright.data.errors import (
    DeviceBusyError,
    InputError,
    KeeperError,
    NoDeviceError,
    ReadOnlyError,
)
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks import KeeperClient, Outcome, TriggerPage
from clockwright.tracer.gpu.protocol import ThrottleReason
from tests.fake_nvml.driver import GPU_IS_LOST, FakeGpu, FakeNvml, Moment
from tests.tracer.clocks.processes import wait_until

HIGH, LOW = ClockPair(1410, 3201), ClockPair(1200, 2201)
TABLE = {1: HIGH, 2: LOW, 9: GOVERNOR}


def lease(client: KeeperClient, gpu: FakeGpu) -> KeeperClient:
    client.acquire(gpu.uuid, TABLE)
    return client


def test_more_switches_a_second_than_allowed_are_refused_and_the_error_says_why(
    gpu: FakeGpu, state: Path
) -> None:
    with KeeperClient.start() as client:
        lease(client, gpu)
        for turn in range(50):
            client.lock((HIGH, LOW)[turn % 2])
        with pytest.raises(KeeperError, match=r"more than 50 .* 3 to 6 ms .* --max-switches"):
            client.lock(HIGH)
        assert gpu.core_lock == (1200, 1200)
        outcomes = [event.outcome for event in client.events()]
        assert outcomes == [Outcome.SET] * 50 + [Outcome.REFUSED]
        client.release()
        assert gpu.is_pristine


def test_two_owners_of_one_gpu_are_refused_by_the_owners_pid(
    gpu: FakeGpu, state: Path, fake_nvml: FakeNvml
) -> None:
    fake_nvml.set_count(2)
    client = KeeperClient.start()
    lease(client, gpu).lock(HIGH)
    with pytest.raises(DeviceBusyError, match=rf"held by process {os.getpid()} "):
        client.acquire(gpu.uuid, TABLE)
    with KeeperClient.start() as other:
        with pytest.raises(
            DeviceBusyError, match=rf"{os.getpid()}, through clock keeper {client.keeper_pid}"
        ):
            other.acquire(gpu.uuid, TABLE)
        other.acquire(fake_nvml.gpu(1).uuid, TABLE)
        other.lock(LOW)
        assert (gpu.core_lock, fake_nvml.gpu(1).core_lock) == ((1410, 1410), (1200, 1200))
    client.close()


def test_what_cannot_be_given_back_is_told_and_stays_in_the_journal(
    gpu: FakeGpu, fake_nvml: FakeNvml, state: Path
) -> None:
    client = KeeperClient.start()
    lease(client, gpu).lock(HIGH)
    fake_nvml.fail("nvmlDeviceResetGpuLockedClocks", GPU_IS_LOST)
    with pytest.raises(KeeperError, match=r"clocks of GPU.* could not be given back"):
        client.end()
    assert len(list(state.glob("*.json"))) == 1
    with pytest.raises(KeeperError, match="nothing more is set on it until that is repaired"):
        client.acquire(gpu.uuid, TABLE)
    fake_nvml.heal()
    client.acquire(gpu.uuid, TABLE)
    assert gpu.is_pristine
    client.close()


def test_a_host_run_at_locked_clocks_is_given_back_to_them(gpu: FakeGpu, state: Path) -> None:
    gpu.set_moments([Moment(reasons=ThrottleReason.APPLICATIONS_CLOCKS)])
    with KeeperClient.start(options=["--standing-pair", "1500/fixed"]) as client:
        lease(client, gpu).lock(HIGH)
        assert client.warnings == []
        client.release()
        assert (gpu.core_lock, gpu.mem_lock) == ((1500, 1500), None)
        client.lock(LOW)
    assert (gpu.core_lock, gpu.mem_lock) == ((1500, 1500), None)


def test_an_unknown_gpu_and_a_gpu_not_served_are_refused(gpu: FakeGpu, state: Path) -> None:
    with KeeperClient.start(options=["--gpu", "GPU-other"]) as client:
        with pytest.raises(InputError, match="serves GPU-other"):
            client.acquire(gpu.uuid, TABLE)
        with pytest.raises((NoDeviceError, InputError)):
            client.acquire("GPU-other", TABLE)


def test_read_only_forbids_leases_and_leaves_dry_mode(
    gpu: FakeGpu, fake_nvml: FakeNvml, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KeeperClient.start() as client:
        monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", "1")
        with pytest.raises(ReadOnlyError, match="CLOCKWRIGHT_READ_ONLY"):
            client.acquire(gpu.uuid, TABLE)
    with KeeperClient.start() as client:  # this keeper itself is read-only
        monkeypatch.delenv("CLOCKWRIGHT_READ_ONLY")
        with pytest.raises(ReadOnlyError, match="clock keeper: it sets nothing"):
            client.acquire(gpu.uuid, TABLE)
    monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", "1")
    with KeeperClient.start(dry=True) as client:
        client.acquire(gpu.uuid, TABLE)
        assert client.lock(HIGH).outcome is Outcome.DRY
    assert fake_nvml.setters() == []


def test_dry_mode_does_everything_but_set(gpu: FakeGpu, fake_nvml: FakeNvml, state: Path) -> None:
    fake_nvml.allow_setters("nobody")
    with KeeperClient.start(dry=True) as client, TriggerPage.create() as page:
        lease(client, gpu).lock(HIGH)
        assert client.confirm() is None
        client.set_power_limit_w(400.0)
        client.arm(page)
        for number in (1, 2):
            page.sequence = number
            wait_until(lambda n=number: page.event_count == n, "the number is seen")
        client.disarm()
        with pytest.raises(InputError):
            client.lock(ClockPair(1980, 3201))
        events = client.events()
    assert [event.outcome.name for event in events] == ["DRY", "DRY", "SAME", "DRY"]
    assert events[1].power_limit_w == 400.0
    assert all(event.seen_ns <= event.done_ns for event in events)
    assert fake_nvml.setters() == []
    assert not state.exists()


def test_simulated_gpus_have_no_keeper_process() -> None:
    with pytest.raises(InputError, match="LocalKeeper"):
        KeeperClient.start("sim:rtx3080ti")


def test_too_many_switches_through_the_page_are_a_fault_and_restore(
    gpu: FakeGpu, state: Path
) -> None:
    with (
        KeeperClient.start(options=["--max-switches", "10"]) as client,
        TriggerPage.create() as page,
    ):
        client.acquire(gpu.uuid, TABLE, heartbeat_s=3.0)
        client.arm(page)
        for turn in range(11):
            page.sequence = 1 + turn % 2
            wait_until(lambda n=turn: page.event_count > n or page.fault, "the number is seen")
        wait_until(lambda: page.fault and gpu.is_pristine, "the fault restores")
        with pytest.raises(KeeperError, match="more than 10 clock switches in one second"):
            client.confirm()
