"""Fixtures of the keeper's tests: each keeper meets the fake driver and a state folder of its own.

`gpu`, `state` and `processes` belong to one test, which starts its own keepers. Rules that need no
keeper of their own are tested against one `host` a module, made as new for each test.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from clockwright.tracer.clocks import KeeperClient
from tests.fake_nvml.driver import FakeGpu, FakeNvml
from tests.fake_nvml.fixture import UNSET
from tests.tracer.clocks.processes import Processes


@pytest.fixture
def state(fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The keepers' state folder; from here on a client starts a private keeper."""
    folder = tmp_path / "state"
    monkeypatch.setenv("CLOCKWRIGHT_STATE", str(folder))
    monkeypatch.setenv("CLOCKWRIGHT_KEEPER", "private")
    return folder


@pytest.fixture
def gpu(fake_nvml: FakeNvml, state: Path) -> FakeGpu:
    """The fake driver's first GPU, as the test sees it."""
    return fake_nvml.gpu(0)


@pytest.fixture
def processes(state: Path) -> Iterator[Processes]:
    """Starts keepers and trainers, and kills what is left of them."""
    made = Processes(state.parent)
    yield made
    made.kill_all()


@dataclass(frozen=True)
class Host:
    """A fake driver, and a keeper that serves all of a module's tests."""

    driver: FakeNvml
    state: Path
    socket: Path
    keeper_pid: int

    @property
    def gpu(self) -> FakeGpu:
        return self.driver.gpu(0)

    def as_new(self) -> None:
        """Every GPU as new, and a disk with room."""
        self.driver.heal()
        self.driver.allow_setters("everyone")
        self.driver.set_count(2)
        self.driver.state.logged = 0
        self.fill_the_disk(resource.RLIM_INFINITY)

    def fill_the_disk(self, room_bytes: int = 0) -> None:
        """A file-size limit fails the keeper's writes as a full disk does, and can be lifted."""
        limits = (room_bytes, resource.RLIM_INFINITY)
        resource.prlimit(self.keeper_pid, resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="module")
def module_host(
    fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """One keeper for a module."""
    folder = tmp_path_factory.mktemp("host")
    driver = FakeNvml(folder / "fake-nvml.state")
    environment: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name not in UNSET},
        **driver.env,
        "CLOCKWRIGHT_STATE": str(folder / "state"),
    }
    processes = Processes(folder)
    options = ["--settle", "40ms", "--max-switches", "1000"]
    keeper = processes.keeper(*options, environment=environment)
    yield Host(driver, folder / "state", processes.socket, keeper.pid)
    processes.kill_all()
    driver.close()


@pytest.fixture
def host(module_host: Host) -> Host:
    """The module's keeper and driver, made as new."""
    module_host.as_new()
    return module_host


@pytest.fixture
def client(host: Host) -> Iterator[KeeperClient]:
    """A client of the module's keeper; closed at the end, and nothing may be left."""
    with KeeperClient.start(socket=host.socket) as made:
        yield made
    assert list(host.state.glob("*.json")) == []
