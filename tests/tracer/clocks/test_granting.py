"""Rights that only the driver knows, a guardian that does not start, and a keeper that breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clockwright.data.errors import KeeperError, RightsError
from clockwright.data.units import ClockPair
from clockwright.tracer.clocks import KeeperClient
from clockwright.tracer.clocks.granting import KeeperOptions, grant_real
from clockwright.tracer.clocks.guardian import Guardian
from clockwright.tracer.clocks.journal import journalled_uuids
from clockwright.tracer.clocks.restore import open_real
from clockwright.tracer.gpu import nvml_probe
from tests.fake_nvml.driver import FakeGpu, FakeNvml
from tests.tracer.clocks.processes import Processes, wait_until

HIGH = ClockPair(1410, 3201)


@pytest.fixture
def guardian(state: Path) -> Iterator[Guardian]:
    made = Guardian("this-keeper", state)
    made.start()
    yield made
    made.close()


def grant(gpu: FakeGpu, state: Path, guardian: Guardian) -> list[str]:
    options = KeeperOptions(state=state)
    lease, warnings = grant_real(
        gpu.uuid,
        {1: HIGH},
        options,
        open_real,
        guardian=guardian,
        keeper_id="this-keeper",
        owner_pid=os.getpid(),
    )
    lease.lock(HIGH)
    assert gpu.core_lock == (1410, 1410)
    lease.end()
    return warnings


def test_where_rights_seem_to_lack_the_driver_has_the_last_word(
    gpu: FakeGpu,
    state: Path,
    guardian: Guardian,
    fake_nvml: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvml_probe, "missing_right", lambda: "this process lacks CAP_SYS_ADMIN")
    grant(gpu, state, guardian)
    first = fake_nvml.setters()[0]
    assert (first.call, first.low) == ("nvmlDeviceSetPowerManagementLimit", 700_000)
    fake_nvml.allow_setters("nobody")
    before = len(fake_nvml.setters())
    with pytest.raises(
        RightsError, match=r"can lock clocks, but this user may not: .*CAP_SYS_ADMIN"
    ):
        grant(gpu, state, guardian)
    assert len(fake_nvml.setters()) == before + 1
    assert journalled_uuids(state) == ()
    assert gpu.is_pristine


def test_without_a_guardian_no_lease_that_sets_is_granted(gpu: FakeGpu, state: Path) -> None:
    with pytest.raises(KeeperError, match="guardian does not start"):
        grant(gpu, state, Guardian("this-keeper", state))


def test_a_guardian_that_dies_again_and_again_is_given_up(state: Path) -> None:
    guardian = Guardian("this-keeper", state)
    guardian.start()
    with pytest.raises(KeeperError, match="guardian died 6 times in a minute"):
        for _ in range(6):
            assert guardian.pid is not None
            os.kill(guardian.pid, 9)
            guardian.restart()
    assert guardian.fd == -1
    guardian.close()


def test_a_guardian_leaves_with_its_keeper_and_sets_nothing_that_is_not_its_own(
    gpu: FakeGpu, state: Path, guardian: Guardian, fake_nvml: FakeNvml
) -> None:
    guardian.wait_ready()
    pid = guardian.pid
    guardian.close()
    assert not Path(f"/proc/{pid}").exists()
    assert fake_nvml.setters() == []


def test_a_keeper_that_breaks_gives_back_on_its_way_out(
    gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    broken = state.parent / "broken"
    code = (
        "import pathlib, sys\n"
        "from clockwright.tracer.clocks import __main__, keeper\n"
        "tick = keeper.Keeper.tick\n"
        "def break_down(self, **how):\n"
        f"    if pathlib.Path({str(broken)!r}).exists(): raise MemoryError('broken')\n"
        "    tick(self, **how)\n"
        "keeper.Keeper.tick = break_down\n"
        "sys.exit(__main__.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "serve", "--socket", str(processes.socket)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as keeper:
        try:
            wait_until(processes.socket.exists, "the keeper listens")
            client = KeeperClient.start(socket=processes.socket)
            client.acquire(gpu.uuid, {1: HIGH})
            client.lock(HIGH)
            assert gpu.core_lock == (1410, 1410)
            broken.touch()
            assert keeper.wait(10) == 1
        finally:
            keeper.kill()
        assert keeper.stderr is not None
        assert "MemoryError: broken" in keeper.stderr.read()
    assert gpu.is_pristine
    assert journalled_uuids(state) == ()
    with pytest.raises(KeeperError, match="keeper is gone"):
        client.close()
