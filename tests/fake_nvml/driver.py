"""A scripted NVIDIA driver: build the fake library, script its GPUs, read back what was set.

Several processes see one state; it outlives them all, so a test may kill -9 any of them and then
look at which locks are still there, and at the log for who set what.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fake_nvml import layout

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, UNKNOWN_ERROR = 3, 4, 15, 999
PERMISSION = {"everyone": 0, "nobody": 1, "root": 2}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Moment:
    """What the GPU reports from `after_ns` (since the epoch) until the next moment."""

    after_ns: int = 0
    reasons: int = 0
    core_cap_mhz: int = 0
    power_mw: int = 100_000
    temperature_c: int = 40
    utilization_percent: int = 0


@dataclass(frozen=True)
class Setter:
    """One logged setter call; `code` is what it returned."""

    at_ns: int
    pid: int
    gpu: int
    call: str
    low: int
    high: int
    code: int


class NoCompilerError(Exception):
    """There is no C compiler here, so the fake library cannot be built."""


def build() -> Path:
    """Build libnvidia-ml.so.1 once per source text; returns its folder.

    It has no soname on purpose: loaded by path, it never answers for a real driver's library.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler (cc, gcc or clang) to build the fake NVML with")
    sources = [HERE / "fake_nvml.c", HERE / "fake_nvml.h"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"clockwright-fake-nvml-{os.getuid()}-{digest}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(mode=0o755, exist_ok=True)
        part = folder / f"part-{os.getpid()}.so"
        flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        command = [compiler, *flags, "-o", str(part), str(sources[0]), "-lpthread"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        part.replace(library)
    return folder


class FakeGpu:
    """One GPU of the fake driver. `raw` is its structure, for what has no method here."""

    def __init__(self, driver: FakeNvml, raw: layout.RawGpu) -> None:
        self._driver, self.raw = driver, raw

    @property
    def uuid(self) -> str:
        return self.raw.uuid.decode()

    def set_clocks(self, rows: Sequence[tuple[int, Sequence[int] | int]]) -> None:
        """Memory clock and its core clocks, in the order given; an int is an error code."""
        with self._driver.locked():
            self.raw.mem_rows = len(rows)
            for row, (mem_mhz, cores) in enumerate(rows):
                self.raw.mem_mhz[row] = mem_mhz
                self.raw.row_error[row] = cores if isinstance(cores, int) else 0
                listed = [] if isinstance(cores, int) else list(cores)
                self.raw.core_counts[row] = len(listed)
                for i, mhz in enumerate(listed):
                    self.raw.core_mhz[row][i] = mhz

    def set_moments(self, moments: Sequence[Moment]) -> None:
        """Script the readings over time; the first moment also holds before its `after_ns`."""
        with self._driver.locked():
            self.raw.moments = len(moments)
            for i, moment in enumerate(moments):
                for name, value in vars(moment).items():
                    setattr(self.raw.moment[i], name, value)

    def set_processes(self, pids: Sequence[int], mps: Sequence[int] = ()) -> None:
        with self._driver.locked():
            both = [(pid, 0) for pid in pids] + [(pid, 1) for pid in mps]
            self.raw.processes = len(both)
            for i, (pid, is_mps) in enumerate(both):
                self.raw.process[i] = layout.RawProcess(pid, is_mps, 1 << 30)

    def set(self, **fields: int) -> None:
        """Set raw fields under the lock: ``gpu.set(core_lock_holds=0, lock_call_ns=5_000_000)``."""
        with self._driver.locked():
            for name, value in fields.items():
                if not hasattr(self.raw, name):
                    raise AttributeError(name)
                setattr(self.raw, name, value)

    def _lock(self, lock: layout.RawLock) -> tuple[int, int] | None:
        with self._driver.locked():
            return (lock.min_mhz, lock.max_mhz) if lock.max_mhz else None

    @property
    def core_lock(self) -> tuple[int, int] | None:
        """(least, most) MHz the core is locked to; None if it is not."""
        return self._lock(self.raw.core_lock)

    @property
    def mem_lock(self) -> tuple[int, int] | None:
        """(least, most) MHz the memory is locked to; None if it is not."""
        return self._lock(self.raw.mem_lock)

    @property
    def is_pristine(self) -> bool:
        """Neither clock locked, and the power limit at its default."""
        limits = self.raw.power_limit_mw == self.raw.default_power_limit_mw
        return self.core_lock is None and self.mem_lock is None and limits


class FakeNvml:
    """A fake driver over the state file ``path``; made with `count` GPUs alike."""

    def __init__(self, path: Path, count: int = 1) -> None:
        self.path, self.folder = path, build()
        self.library = ctypes.CDLL(str(self.folder / "libnvidia-ml.so.1"))
        layout.check(self.library)
        with path.open("wb") as file:
            file.truncate(ctypes.sizeof(layout.RawState))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self.state = layout.RawState.from_buffer(self._map)
        self.state.magic, self.state.version = layout.MAGIC, layout.VERSION
        self.state.driver = b"580.99.fake"
        self.state.manual_now_ns = -1
        self.state.epoch_ns = time.monotonic_ns()
        self.set_count(count)

    def set_count(self, count: int) -> None:
        """Make `count` GPUs, each as new: two memory rows, 345 to 1980 MHz, nothing locked."""
        with self.locked():
            self.state.gpus = count
        for index in range(count):
            gpu = self.gpu(index)
            ctypes.memset(ctypes.addressof(gpu.raw), 0, ctypes.sizeof(gpu.raw))
            gpu.raw.name = b"NVIDIA Fake 100"
            gpu.raw.uuid = f"GPU-{index:x}a7e0000-0000-4000-8000-{index:012x}".encode()
            gpu.raw.vbios = b"96.00.FA.KE.00"
            gpu.raw.bus_id = f"00000000:{16 + index:02X}:00.0".encode()
            gpu.set(
                memory_bytes=80 << 30,
                governor_core_mhz=1980,
                governor_mem_mhz=3201,
                core_lock_holds=1,
                mem_lock_holds=1,
                power_limit_mw=700_000,
                default_power_limit_mw=700_000,
                least_power_limit_mw=200_000,
                most_power_limit_mw=700_000,
                energy_base_mj=5_000_000,
                energy_period_ns=100_000_000,
                energy_reset_ns=-1,
            )
            cores = range(1980, 330, -15)
            gpu.set_clocks([(3201, cores), (2201, cores)])
            gpu.set_moments([Moment()])

    def close(self) -> None:
        """Let go of the file; the mapping goes when the last structure over it does."""
        self._file.close()

    @property
    def env(self) -> Mapping[str, str]:
        """What a subprocess needs in its environment to meet this driver."""
        return {"LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML_STATE": str(self.path)}

    @contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def gpu(self, index: int = 0) -> FakeGpu:
        return FakeGpu(self, self.state.gpu[index])

    def allow_setters(self, who: str) -> None:
        """``everyone``, ``nobody``, or ``root``: processes with FAKE_NVML_ROOT=1."""
        with self.locked():
            self.state.permission = PERMISSION[who]

    def fail(self, call: str, code: int, *, gpu: int = -1, skip: int = 0, times: int = -1) -> None:
        """From now on `call` (``*``: any) returns `code`, after `skip` calls, `times` times.

        A setter with code 0 returns success and does nothing.
        """
        with self.locked():
            for error in self.state.error:
                if not error.call:
                    error.gpu, error.code, error.skip, error.times = gpu, code, skip, times
                    error.call = call.encode()
                    return
        raise AssertionError("no room for another scripted error")

    def heal(self) -> None:
        """Forget every scripted error."""
        with self.locked():
            for error in self.state.error:
                error.call = b""

    def set_time_ns(self, since_epoch_ns: int) -> None:
        """Stop the driver's clock there; later calls move it by hand."""
        with self.locked():
            self.state.manual_now_ns = self.state.epoch_ns + since_epoch_ns

    def restart_epoch(self) -> None:
        """Moments and energy count from now."""
        with self.locked():
            self.state.epoch_ns = time.monotonic_ns()

    def setters(self, call: str = "") -> list[Setter]:
        """Every setter call so far (the newest 16384), oldest first, refused ones too."""
        with self.locked():
            logged = self.state.logged
            entries = [
                self.state.log[i % layout.LOG] for i in range(max(0, logged - layout.LOG), logged)
            ]
            made = [
                Setter(e.at_ns, e.pid, e.gpu, e.call.decode(), e.low, e.high, e.code)
                for e in entries
            ]
        return [entry for entry in made if call in entry.call]
