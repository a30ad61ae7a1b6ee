"""Fixtures of the keeper's tests: each keeper meets the fake driver and its own state folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clockwright.tracer.clocks import KeeperClient
from tests.fake_nvml.driver import FakeGpu, FakeNvml
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
def client(gpu: FakeGpu) -> Iterator[KeeperClient]:
    """A client of a private keeper; closed at the end whatever the test did to either."""
    with KeeperClient.start(options=["--settle", "40ms", "--max-switches", "1000"]) as made:
        yield made


@pytest.fixture
def processes(state: Path) -> Iterator[Processes]:
    """Starts keepers and trainers, and kills what is left of them."""
    made = Processes(state.parent)
    yield made
    made.kill_all()
