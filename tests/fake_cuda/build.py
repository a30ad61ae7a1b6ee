"""Builds the fake CUDA driver once a session, and loads it under the real ctypes class."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_cuda.c")


class FakeCuda:
    """The library and the test's own side of it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        for name in ("fakeGraph", "fakeNode", "fakeLastStream"):
            getattr(library, name).restype = ctypes.c_void_p
        library.fakeNode.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.fakeEdge.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64]

    @property
    def writes(self) -> int:
        return int(self.library.fakeWrites())

    @property
    def registered(self) -> bool:
        return bool(self.library.fakeRegistered())

    def chain(self, kinds: list[int], data: int = 0) -> tuple[int, list[int]]:
        """A graph whose nodes follow one another."""
        graph = int(self.library.fakeGraph())
        nodes = [int(self.library.fakeNode(graph, kind)) for kind in kinds]
        for source, target in itertools.pairwise(nodes):
            self.library.fakeEdge(graph, source, target, data)
        return graph, nodes


@pytest.fixture(scope="session")
def fake_cuda_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake CUDA driver with")
    path = tmp_path_factory.mktemp("fake_cuda") / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(path)]
    subprocess.run([*command, str(SOURCE)], check=True)
    return path


@pytest.fixture
def fake_cuda(fake_cuda_path: Path) -> Iterator[FakeCuda]:
    yield FakeCuda(ctypes.CDLL(str(fake_cuda_path)))
