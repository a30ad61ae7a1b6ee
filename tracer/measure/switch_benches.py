"""Where switches are measured: on a simulated GPU, and by the clock a driver reports.

On a simulated GPU the probes are kernels, as they would be on a real one: a spin of known cycles
shows the core clock, a copy of known bytes the memory clock. `ReportedClockBench` needs no kernel
and no torch: it polls the clock that the driver reports, so it sees a switch no sooner than the
driver does, and no finer than its own polling.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...data.errors import LockNotHeldError
from ...data.units import ClockPair
from ..gpu.protocol import Gpu
from ..gpu.simulated import SimulatedGpu
from ..work import KernelWork, StepItem, StepWork

__all__ = ["ReportedClockBench", "SimulatedSwitchBench"]

Floats = npt.NDArray[np.float64]

_SPIN_CYCLES = 20_000
_SETTLE_NS = 200_000_000


class SimulatedSwitchBench:
    """Probes on a simulated GPU's virtual time; everything it gives is simulated."""

    provenance = "simulated"

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._copy = _copy_of(2 * gpu.spec.rates.l2_bytes)
        self._present: ClockPair | None = None
        self._seen_by: tuple[str, ...] = ("spin_ns", "copy_ns")

    def settle(self, pair: ClockPair) -> None:
        """Ask for ``pair`` and let several times the longest latency pass."""
        self._gpu.request(pair)
        self._gpu.sleep_ns(_SETTLE_NS)
        # What a stalling switch still owes is paid by the next kernel: let it be this one.
        self._gpu.spin(_SPIN_CYCLES)
        self._present = pair

    def steady(self, probes: int) -> dict[str, Floats]:
        """Durations of spins and copies, ns."""
        spins = [self._gpu.spin(_SPIN_CYCLES) for _ in range(probes)]
        copies = [self._copy_ns() for _ in range(probes)]
        return {"spin_ns": np.array(spins, float), "copy_ns": np.array(copies, float)}

    def request(self, pair: ClockPair) -> tuple[float, float]:
        """Ask as the keeper does, from outside, so that probes run during the call."""
        present = self._present
        core = present is None or present.core_mhz != pair.core_mhz
        mem = present is None or present.mem_mhz != pair.mem_mhz
        self._seen_by = ("spin_ns",) * core + ("copy_ns",) * mem
        at_ns = float(self._gpu.now_ns())
        self._gpu.request(pair)
        self._present = pair
        return at_ns, self._gpu.switch.call_ns

    def probe(self, window_ns: int) -> dict[str, tuple[Floats, Floats]]:
        """Spins and copies in turn, those of them that the change can be seen by."""
        gpu = self._gpu
        end_ns = gpu.now_ns() + window_ns
        seen: dict[str, list[tuple[float, float]]] = {probe: [] for probe in self._seen_by}
        while gpu.now_ns() < end_ns:
            for probe, pairs in seen.items():
                start_ns = float(gpu.now_ns())
                took = gpu.spin(_SPIN_CYCLES) if probe == "spin_ns" else self._copy_ns()
                pairs.append((start_ns, float(took)))
        columns = {probe: np.array(pairs) for probe, pairs in seen.items()}
        return {probe: (both[:, 0], both[:, 1]) for probe, both in columns.items()}

    def _copy_ns(self) -> float:
        return float(self._gpu.run(self._copy, gap_ns=0.0).time_ns)


def _copy_of(size: int) -> StepWork:
    """A copy too large for the L2 cache, so that its time follows the memory clock."""
    work = KernelWork(
        name="copy",
        op="aten::copy_",
        shapes=f"[[{size}]]",
        dtype="uint8",
        flops=0,
        bytes_read=size,
        bytes_written=size,
        math="none",
        elements=size,
    )
    return StepWork("memory probe", (work,), (StepItem(0, "other"),))


class ReportedClockBench:
    """Probes are the driver's own report, which many drivers refresh only now and then.

    Args:
        gpu: read only.
        lock: sets a pair: the clock keeper's on real hardware.
        poll_ns: pause between two looks.
        settle_ns: how long a transition is given before clocks count as steady.
    """

    provenance = "measured"

    def __init__(
        self,
        gpu: Gpu,
        *,
        lock: Callable[[ClockPair], object],
        poll_ns: int = 200_000,
        settle_ns: int = 300_000_000,
    ) -> None:
        self._gpu = gpu
        self._lock = lock
        self._poll_ns = poll_ns
        self._settle_ns = settle_ns

    def settle(self, pair: ClockPair) -> None:
        """Ask for ``pair`` and wait a fixed time."""
        self._lock(pair)
        self._gpu.sleep_ns(self._settle_ns)

    def steady(self, probes: int) -> dict[str, Floats]:
        """Reported clocks, MHz."""
        looks = [self._look() for _ in range(probes)]
        return {"core_mhz": np.array([look[1] for look in looks])}

    def request(self, pair: ClockPair) -> tuple[float, float]:
        """Lock, which blocks: what arrives during the call is seen when it returns."""
        at_ns = self._gpu.now_ns()
        self._lock(pair)
        return float(at_ns), float(self._gpu.now_ns() - at_ns)

    def probe(self, window_ns: int) -> dict[str, tuple[Floats, Floats]]:
        """Poll the reported core clock."""
        end_ns = self._gpu.now_ns() + window_ns
        looks = []
        while self._gpu.now_ns() < end_ns:
            looks.append(self._look())
            self._gpu.sleep_ns(self._poll_ns)
        both = np.array(looks).reshape(-1, 2)
        return {"core_mhz": (both[:, 0], both[:, 1])}

    def _look(self) -> tuple[float, float]:
        reading = self._gpu.read(energy=False)
        if reading.core_mhz is None:
            raise LockNotHeldError("the driver reports no core clock: none can be seen to arrive")
        return float(reading.at_ns), float(reading.core_mhz)
