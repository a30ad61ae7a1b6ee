"""How a simulated GPU scatters and how it can be made to fail."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ....data.errors import InputError

__all__ = ["Faults", "Noise"]


@dataclass(frozen=True)
class Noise:
    """Scatter of what is measured; fractions are one standard deviation.

    Attributes:
        kernel: of each launch's duration (log-normal).
        run_time: of a whole run's speed, common to its kernels.
        run_power: of a whole run's power, common to its kernels.
        power_reading: of one power reading.
        spin: of the sensing kernel's duration.
    """

    kernel: float = 0.01
    run_time: float = 0.0005
    run_power: float = 0.002
    power_reading: float = 0.005
    spin: float = 0.0003

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not 0 <= value < 1:
                raise InputError(f"noise {entry.name} must lie in 0..1, got {value!r}")

    @classmethod
    def none(cls) -> Noise:
        """No scatter at all."""
        return cls(kernel=0.0, run_time=0.0, run_power=0.0, power_reading=0.0, spin=0.0)


@dataclass(frozen=True)
class Faults:
    """What is wrong with this GPU.

    Attributes:
        locks_hold: False: a lock returns success and changes nothing.
        rights: False: every setter raises `RightsError`.
        energy_counter: False: the driver has no energy counter.
        thermal_limit_mhz: core clock that heat holds it under, throughout; None for no fault.
    """

    locks_hold: bool = True
    rights: bool = True
    energy_counter: bool = True
    thermal_limit_mhz: float | None = None

    @property
    def limit_mhz(self) -> float:
        """The thermal limit, infinite without the fault."""
        return np.inf if self.thermal_limit_mhz is None else self.thermal_limit_mhz
