"""Fixtures: `fake_nvml` puts the fake driver under the real binding, in this process and in
subprocesses started with `fake_nvml.env` (which the fixture also puts into os.environ)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml.driver import FakeNvml, NoCompilerError, build

UNSET = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CLOCKWRIGHT_READ_ONLY", "FAKE_NVML_ROOT")


@pytest.fixture(scope="session")
def fake_nvml_library() -> Path:
    """The built library's folder; skips where there is no C compiler."""
    try:
        return build()
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake_nvml(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    """One fake GPU; `set_count` makes more. In this process the binding is handed the library
    by path, so a real driver on this machine is neither used nor hidden afterwards."""
    import pynvml

    fake = FakeNvml(tmp_path / "fake-nvml.state")
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    path = [str(fake_nvml_library), os.environ.get("LD_LIBRARY_PATH", "")]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.path))
    monkeypatch.setattr(pynvml, "nvmlLib", fake.library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    yield fake
    while fake.library.nvmlShutdown() == 0:
        pass
    fake.close()
