"""Fixtures: the fake driver with sixteen clock pairs, and private keepers that settle fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from clockwright.tracer.clocks import KeeperClient
from clockwright.tracer.gpu.select import open_gpu
from tests.fake_nvml.driver import FakeGpu, FakeNvml

CORES, MEMS = tuple(range(1980, 500, -195)), (3201, 2201)


@pytest.fixture
def fake(fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The fake driver's GPU, as the test sees it: 8 core clocks at each of 2 memory clocks."""
    monkeypatch.setenv("CLOCKWRIGHT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CLOCKWRIGHT_KEEPER", "private")
    gpu = fake_nvml.gpu(0)
    gpu.set_clocks([(mem, CORES) for mem in MEMS])
    return gpu


@pytest.fixture
def gpu(fake: FakeGpu):
    """The same GPU as clockwright reads it, through the real binding."""
    opened = open_gpu("nvml:0")
    yield opened
    opened.close()


@pytest.fixture
def keeper(fake: FakeGpu):
    """A private keeper process that reads locks back after 40 ms."""
    with KeeperClient.start(options=["--settle", "40ms", "--poll", "100us"]) as client:
        yield client
