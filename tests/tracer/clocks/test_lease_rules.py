"""What a lease lets through and how it fails, through a private keeper and the real binding."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from clockwright.data.errors import (
    DeviceBusyError,
    DeviceError,
    FormatError,
    InputError,
    KeeperError,
    LockNotHeldError,
    NoDeviceError,
    NotSupportedError,
    ReadOnlyError,
    RightsError,
)
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks import KeeperClient, Outcome, TriggerPage, numbered
from clockwright.tracer.gpu.protocol import ThrottleReason
from tests.fake_nvml.driver import GPU_IS_LOST, UNKNOWN_ERROR, FakeGpu, FakeNvml, Moment
from tests.tracer.clocks.processes import wait_for_error, wait_until

HIGH, LOW = ClockPair(1410, 3201), ClockPair(1200, 2201)
TABLE = {1: HIGH, 2: LOW, 9: GOVERNOR}


def lease(client: KeeperClient, gpu: FakeGpu) -> KeeperClient:
    client.acquire(gpu.uuid, TABLE)
    return client


def test_a_granted_pair_is_set_read_back_and_given_back(
    client: KeeperClient, gpu: FakeGpu, state: Path
) -> None:
    event = lease(client, gpu).lock(HIGH)
    assert (event.pair, event.outcome) == (HIGH, Outcome.SET)
    assert event.seen_ns <= event.call_ns <= event.done_ns <= time.monotonic_ns()
    assert (gpu.core_lock, gpu.mem_lock) == ((1410, 1410), (3201, 3201))
    assert client.confirm() == "held"
    client.release()
    assert gpu.is_pristine
    client.lock(LOW)
    client.end()
    assert gpu.is_pristine
    assert list(state.glob("*.json")) == []


def test_only_the_keeper_sets(client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml) -> None:
    lease(client, gpu).lock(HIGH)
    client.release()
    assert {call.pid for call in fake_nvml.setters()} == {client.keeper_pid}


def test_the_same_pair_again_costs_no_driver_call(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    lease(client, gpu).lock(HIGH)
    before = len(fake_nvml.setters())
    assert client.lock(HIGH).outcome is Outcome.SAME
    assert len(fake_nvml.setters()) == before


@pytest.mark.parametrize(
    ("second", "core", "memory"),
    [
        (ClockPair(1200, None), (1200, 1200), None),
        (ClockPair(None, 2201), None, (2201, 2201)),
        (GOVERNOR, None, None),
    ],
)
def test_a_clock_the_next_pair_leaves_alone_does_not_stay_locked(
    second: ClockPair,
    core: tuple[int, int] | None,
    memory: tuple[int, int] | None,
    client: KeeperClient,
    gpu: FakeGpu,
) -> None:
    client.acquire(gpu.uuid, numbered([HIGH, second]))
    client.lock(HIGH)
    client.lock(second)
    assert (gpu.core_lock, gpu.mem_lock) == (core, memory)


def test_a_lease_that_sets_nothing_calls_no_setter(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    with TriggerPage.create() as page:
        lease(client, gpu).arm(page)
        client.lock(GOVERNOR)
        client.release()
        client.disarm()
        client.end()
    assert fake_nvml.setters() == []


def test_a_pair_outside_the_granted_table_is_refused(client: KeeperClient, gpu: FakeGpu) -> None:
    lease(client, gpu).lock(HIGH)
    with pytest.raises(InputError, match="1980/3201 is not in the table granted"):
        client.lock(ClockPair(1980, 3201))
    assert gpu.core_lock == (1410, 1410)


@pytest.mark.parametrize("pair", [ClockPair(1411, 3201), ClockPair(1410, 5), ClockPair(7, None)])
def test_a_table_with_a_pair_the_gpu_does_not_list_is_refused(
    pair: ClockPair, client: KeeperClient, gpu: FakeGpu, state: Path
) -> None:
    with pytest.raises(InputError, match=f"does not list the pair {pair} that sequence number 4"):
        client.acquire(gpu.uuid, {1: HIGH, 4: pair})
    assert list(state.glob("*.json")) == []


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
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    fake_nvml.set_count(2)
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


def test_one_owner_may_hold_several_gpus(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    fake_nvml.set_count(2)
    second = fake_nvml.gpu(1)
    client.acquire(gpu.uuid, TABLE)
    client.acquire(second.uuid, TABLE)
    with pytest.raises(InputError, match="holds 2 leases"):
        client.lock(HIGH)
    client.lock(HIGH, gpu.uuid)
    client.lock(LOW, second.uuid)
    client.end(gpu.uuid)
    assert (gpu.core_lock, second.core_lock) == (None, (1200, 1200))
    assert list(client.status()["leases"]) == [second.uuid]


@pytest.mark.parametrize("clock", ["core", "mem"])
def test_a_lock_that_returns_success_and_does_not_hold_is_found_and_given_back(
    clock: str, client: KeeperClient, gpu: FakeGpu, state: Path
) -> None:
    gpu.set(**{f"{clock}_lock_holds": 0})
    lease(client, gpu).lock(LOW)
    with pytest.raises(
        LockNotHeldError, match="1200/2201 returned success, but the driver reports"
    ):
        client.confirm()
    assert gpu.is_pristine
    gpu.set(**{f"{clock}_lock_holds": 1})
    client.lock(LOW)
    assert client.confirm() == "held"


def test_a_lock_that_stops_holding_later_is_found_by_the_keeper_itself(
    client: KeeperClient, gpu: FakeGpu
) -> None:
    client.acquire(gpu.uuid, TABLE, heartbeat_s=3.0)
    client.lock(LOW)
    assert client.confirm() == "held"
    gpu.set(core_lock_holds=0)
    wait_until(lambda: gpu.is_pristine, "the keeper notices", 3.0)
    wait_for_error(client.check, LockNotHeldError)
    client.check()  # told once


def test_a_lock_under_the_power_cap_is_told_and_stands(client: KeeperClient, gpu: FakeGpu) -> None:
    gpu.set_moments([Moment(reasons=ThrottleReason.SW_POWER_CAP, core_cap_mhz=900)])
    lease(client, gpu).lock(HIGH)
    assert client.confirm() == "power_capped"
    assert gpu.core_lock == (1410, 1410)


def test_without_rights_the_error_says_what_is_missing_and_nothing_is_left(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml, state: Path
) -> None:
    fake_nvml.allow_setters("nobody")
    with pytest.raises(RightsError, match="CAP_SYS_ADMIN"):
        lease(client, gpu).lock(HIGH)
    with pytest.raises(RightsError, match="CAP_SYS_ADMIN"):
        client.set_power_limit_w(400.0)
    assert gpu.is_pristine
    client.end()
    assert list(state.glob("*.json")) == []


def test_a_half_done_lock_is_undone(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    fake_nvml.fail("nvmlDeviceSetGpuLockedClocks", UNKNOWN_ERROR, skip=1)
    lease(client, gpu).lock(HIGH)
    with pytest.raises(DeviceError):
        client.lock(LOW)
    assert gpu.is_pristine
    assert client.events()[-1].outcome is Outcome.FAILED


def test_a_driver_that_fails_for_a_while_is_asked_again(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    lease(client, gpu).lock(HIGH)
    fake_nvml.fail("nvmlDeviceResetGpuLockedClocks", UNKNOWN_ERROR, times=2)
    client.end()
    assert gpu.is_pristine


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


def test_the_power_cap_goes_back_to_what_it_was(
    client: KeeperClient, gpu: FakeGpu, state: Path
) -> None:
    gpu.set(power_limit_mw=650_000)
    lease(client, gpu)
    assert client.set_power_limit_w(400.0).power_limit_w == 400.0
    assert gpu.raw.power_limit_mw == 400_000
    assert client.set_power_limit_w(None).power_limit_w == 650.0
    assert gpu.raw.power_limit_mw == 650_000
    client.set_power_limit_w(300.0)
    client.end()
    assert gpu.raw.power_limit_mw == 650_000


def test_a_power_cap_out_of_range_is_refused(client: KeeperClient, gpu: FakeGpu) -> None:
    with pytest.raises(InputError, match="200 to 700 W"):
        lease(client, gpu).set_power_limit_w(50.0)
    client.end()
    assert gpu.is_pristine


def test_a_host_run_at_locked_clocks_is_given_back_to_them(gpu: FakeGpu, state: Path) -> None:
    gpu.set_moments([Moment(reasons=ThrottleReason.APPLICATIONS_CLOCKS)])
    with KeeperClient.start(options=["--standing-pair", "1500/fixed"]) as client:
        lease(client, gpu).lock(HIGH)
        assert client.warnings == []
        client.release()
        assert (gpu.core_lock, gpu.mem_lock) == ((1500, 1500), None)
        client.lock(LOW)
    assert (gpu.core_lock, gpu.mem_lock) == ((1500, 1500), None)


def test_a_foreign_lock_is_warned_of(client: KeeperClient, gpu: FakeGpu) -> None:
    gpu.set_moments([Moment(reasons=ThrottleReason.APPLICATIONS_CLOCKS)])
    lease(client, gpu)
    assert "--standing-pair" in client.warnings[0]


def test_a_gpu_that_cannot_lock_memory_refuses_a_table_that_varies_it(
    client: KeeperClient, gpu: FakeGpu
) -> None:
    gpu.set_clocks([(3201, range(1980, 330, -15))])
    with pytest.raises((InputError, NotSupportedError)):
        client.acquire(gpu.uuid, TABLE)
    client.acquire(gpu.uuid, {1: HIGH})
    client.lock(HIGH)
    assert (gpu.core_lock, gpu.mem_lock) == ((1410, 1410), None)


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


def test_without_a_lease_nothing_can_be_asked(client: KeeperClient, gpu: FakeGpu) -> None:
    with pytest.raises(KeeperError, match="holds no lease"):
        client.lock(HIGH, gpu.uuid)
    with pytest.raises(InputError, match="holds 0 leases"):
        client.lock(HIGH)


def test_a_fork_of_the_owner_is_refused_and_may_close_its_copy(
    client: KeeperClient, gpu: FakeGpu
) -> None:
    lease(client, gpu).lock(HIGH)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client.lock(LOW)
        except KeeperError as error:
            os.write(write, str(error).encode())
            client.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert b"fork" in os.read(read, 4096)
    os.close(read)
    assert gpu.core_lock == (1410, 1410)


def test_a_page_that_is_no_page_is_refused_and_the_lease_stands(
    client: KeeperClient, gpu: FakeGpu, tmp_path: Path
) -> None:
    lease(client, gpu).lock(HIGH)
    with TriggerPage.create() as page, (tmp_path / "plain").open("w+b") as plain:
        sealed, page.fd = page.fd, plain.fileno()
        with pytest.raises(FormatError, match="sealed"):
            client.arm(page)
        page.fd = sealed
    assert gpu.core_lock == (1410, 1410)
