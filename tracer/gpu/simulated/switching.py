"""How a simulated GPU changes clocks: what a switch costs, when it takes hold, how it scatters.

Two behaviours. ``stall``: the GPU stops for the transition's time and then runs at the new pair.
``lag``: nothing stops; the request takes hold a latency later and kernels meanwhile run at the old
pair. The latency of one switch is log-normal about its nominal value (which is the median), with
now and then a much later one, as driver calls show.

Left out: voltage ramps within a transition, and the dependence of latency on load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ....data.errors import InputError
from ....data.units import ClockPair

__all__ = ["SwitchBehaviour"]


@dataclass(frozen=True)
class SwitchBehaviour:
    """Cost of changing the clock pair.

    Attributes:
        kind: ``stall`` or ``lag``.
        core_ns: median cost or latency when only the core clock changes.
        mem_ns: the same for the memory clock; both changing add up.
        matrix_ns: (from, to) -> median cost; replaces the two parts where it has the key.
        spread: sigma of the log-normal scatter (0: none).
        late_probability: chance that a switch is late.
        late_ns: how much later a late one is.
        call_ns: how long the driver call blocks its caller.
        call_spread: sigma of the call's log-normal scatter.
        trigger_ns: GPU time that the trigger in the stream takes.
        energy_mj: extra energy of one switch, beside the idle power of a stall.
    """

    kind: Literal["stall", "lag"]
    core_ns: float
    mem_ns: float
    matrix_ns: Mapping[tuple[ClockPair, ClockPair], float] | None = None
    spread: float = 0.0
    late_probability: float = 0.0
    late_ns: float = 0.0
    call_ns: float = 0.0
    call_spread: float = 0.0
    trigger_ns: float = 0.0
    energy_mj: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("stall", "lag"):
            raise InputError(f"switch kind must be stall or lag, got {self.kind!r}")
        for name in (
            "core_ns",
            "mem_ns",
            "spread",
            "late_ns",
            "call_ns",
            "call_spread",
            "trigger_ns",
            "energy_mj",
        ):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"switch {name} must be finite and at least 0, got {value!r}")
        if not 0 <= self.late_probability < 0.5:
            raise InputError(
                f"switch late_probability must lie in 0..0.5, got {self.late_probability!r}"
            )

    @classmethod
    def free(cls) -> SwitchBehaviour:
        """Switches that cost nothing and take hold at once."""
        return cls(kind="stall", core_ns=0.0, mem_ns=0.0)

    def nominal_ns(self, before: ClockPair, after: ClockPair) -> float:
        """Median cost (stall) or latency (lag) of going from one pair to another; 0 if equal."""
        if before == after:
            return 0.0
        if self.matrix_ns is not None and (before, after) in self.matrix_ns:
            return float(self.matrix_ns[before, after])
        cost_ns = self.core_ns if before.core_mhz != after.core_mhz else 0.0
        return cost_ns + (self.mem_ns if before.mem_mhz != after.mem_mhz else 0.0)

    def sample_ns(
        self, nominal_ns: npt.NDArray[np.float64], rng: np.random.Generator
    ) -> npt.NDArray[np.float64]:
        """Scatter nominal values; (R,) float64 ns in and out. Draws the same count always."""
        normal, uniform = rng.standard_normal(len(nominal_ns)), rng.random(len(nominal_ns))
        late_ns = np.where(uniform < self.late_probability, self.late_ns, 0.0)
        return np.where(nominal_ns > 0, nominal_ns * np.exp(self.spread * normal) + late_ns, 0.0)

    def sample_call_ns(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Blocking times of ``count`` driver calls; float64 ns."""
        return self.call_ns * np.exp(self.call_spread * rng.standard_normal(count))
