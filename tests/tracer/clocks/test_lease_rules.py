"""What a lease lets through and how it fails, through a keeper process and the real binding."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from clockwright.data.errors import (
    DeviceError,
    FormatError,
    InputError,
    KeeperError,
    LockNotHeldError,
    NotSupportedError,
    RightsError,
)
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.clocks import KeeperClient, Outcome, TriggerPage, numbered
from clockwright.tracer.gpu.protocol import ThrottleReason
from tests.fake_nvml.driver import UNKNOWN_ERROR, FakeGpu, FakeNvml, Moment
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


def test_one_owner_may_hold_several_gpus(
    client: KeeperClient, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
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


def test_a_full_disk_refuses_the_lease_before_anything_is_set(
    client: KeeperClient, host: Host, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    host.fill_the_disk()
    with pytest.raises(KeeperError, match=r"cannot write the journal .*nothing was set"):
        client.acquire(gpu.uuid, TABLE)
    assert fake_nvml.setters() == []
    host.fill_the_disk(resource.RLIM_INFINITY)
    client.acquire(gpu.uuid, TABLE)
    client.lock(HIGH)
    assert gpu.core_lock == (1410, 1410)


@pytest.mark.parametrize("ask", ["lock", "arm", "power"])
def test_a_disk_that_fills_up_under_a_lease_refuses_the_first_set(
    ask: str, client: KeeperClient, host: Host, gpu: FakeGpu, fake_nvml: FakeNvml
) -> None:
    client.acquire(gpu.uuid, TABLE)
    with TriggerPage.create() as page:
        host.fill_the_disk()
        with pytest.raises(KeeperError, match="nothing was set"):
            if ask == "lock":
                client.lock(HIGH)
            elif ask == "arm":
                client.arm(page)
            else:
                client.set_power_limit_w(400.0)
    assert fake_nvml.setters() == []


def test_a_full_disk_does_not_keep_clocks_from_being_given_back(
    client: KeeperClient, host: Host, gpu: FakeGpu, state: Path
) -> None:
    client.acquire(gpu.uuid, TABLE)
    client.lock(HIGH)
    host.fill_the_disk()
    client.end()
    assert gpu.is_pristine
    assert list(state.glob("*.json")) == []
