"""Where switches are measured on a real GPU: kernels watch the clocks while the keeper sets them.

A spin of known cycles shows the SM clock, a copy too large for the L2 cache the memory clock. One
probe after the other runs on the GPU, each waited for, so that its moment is known on the host's
clock to some tens of microseconds, the resolution of what is measured. The request is made from a
thread of its own: probes go on while the driver call blocks.

Left out: a GPU on which other processes run, and clocks that several multiprocessors do not share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...data.units import ClockPair
from ..gpu.protocol import Gpu
from .cuda import between_ns, mark, spin

__all__ = ["CudaProbes", "KernelProbes", "SpinSwitchBench"]

Floats = npt.NDArray[np.float64]

SPIN, COPY = "spin_ns", "copy_ns"
_SPIN_CYCLES = 40_000  # 20 us at 2 GHz: as long as launching and waiting take
_SETTLE_NS = 300_000_000


class KernelProbes(Protocol):
    """Runs one probe on the GPU to its end."""

    def run(self, probe: str) -> tuple[float, float]:
        """Start on the host's clock and duration of a ``spin_ns`` or ``copy_ns`` probe, ns."""
        ...


class CudaProbes:
    """Probes by PyTorch on a CUDA device; implements `KernelProbes`.

    Args:
        gpu: the same GPU, for its clock of the host.
        device: as PyTorch names it.
    """

    def __init__(self, gpu: Gpu, device: str) -> None:
        import torch

        torch.cuda.set_device(device)
        size = 4 * int(torch.cuda.get_device_properties(device).L2_cache_size)
        self._now_ns = gpu.now_ns
        self._source = torch.zeros(size, dtype=torch.uint8, device=device)
        self._target = torch.empty_like(self._source)

    def run(self, probe: str) -> tuple[float, float]:
        """See `KernelProbes.run`."""
        begin = mark()
        if probe == SPIN:
            spin(_SPIN_CYCLES)
        else:
            self._target.copy_(self._source)
        end = mark()
        end.synchronize()
        took_ns = between_ns(begin, end)
        return self._now_ns() - took_ns, took_ns


class SpinSwitchBench:
    """Implements `clockwright.tracer.measure.switching.SwitchBench` with kernels.

    Args:
        gpu: for its clock of the host.
        lock: sets a pair: the clock keeper's.
        probes: runs kernels on that GPU.
        settle_ns: how long a transition is given before clocks count as steady.
    """

    provenance = "measured"

    def __init__(
        self,
        gpu: Gpu,
        *,
        lock: Callable[[ClockPair], object],
        probes: KernelProbes,
        settle_ns: int = _SETTLE_NS,
    ) -> None:
        self._now_ns, self._lock, self._probes = gpu.now_ns, lock, probes
        self._settle_ns = settle_ns
        self._present: ClockPair | None = None
        self._seen_by: tuple[str, ...] = (SPIN, COPY)
        self._early: list[tuple[str, float, float]] = []

    def settle(self, pair: ClockPair) -> None:
        """Ask for ``pair`` and keep the GPU busy until any transition is over."""
        self._lock(pair)
        self._present = pair
        end_ns = self._now_ns() + self._settle_ns
        while self._now_ns() < end_ns:
            self._probes.run(SPIN)

    def steady(self, probes: int) -> dict[str, Floats]:
        """Durations of spins and copies, ns."""
        return {
            probe: np.array([self._probes.run(probe)[1] for _ in range(probes)])
            for probe in (SPIN, COPY)
        }

    def request(self, pair: ClockPair) -> tuple[float, float]:
        """Lock from another thread; what probes saw meanwhile is given by the next `probe`."""
        present = self._present
        core = present is None or present.core_mhz != pair.core_mhz
        mem = present is None or present.mem_mhz != pair.mem_mhz
        self._seen_by = (SPIN,) * core + (COPY,) * mem
        times: list[int] = []
        failures: list[BaseException] = []

        def ask() -> None:
            times.append(self._now_ns())
            try:
                self._lock(pair)
            except Exception as error:  # noqa: BLE001 - raised again below, by the caller's thread
                failures.append(error)
            times.append(self._now_ns())

        thread = threading.Thread(target=ask, name="clockwright-switch")
        self._early = []
        thread.start()
        while thread.is_alive():
            self._early += self._round()
        thread.join()
        if failures:
            raise failures[0]
        self._present = pair
        return float(times[0]), float(times[1] - times[0])

    def probe(self, window_ns: int) -> dict[str, tuple[Floats, Floats]]:
        """Spins and copies in turn, those of them that the change can be seen by."""
        seen, self._early = self._early, []
        end_ns = self._now_ns() + window_ns
        while self._now_ns() < end_ns:
            seen += self._round()
        found = {}
        for probe in self._seen_by:
            both = np.array([(start, took) for name, start, took in seen if name == probe])
            both = both.reshape(-1, 2)
            found[probe] = (both[:, 0], both[:, 1])
        return found

    def _round(self) -> list[tuple[str, float, float]]:
        return [(probe, *self._probes.run(probe)) for probe in self._seen_by]
