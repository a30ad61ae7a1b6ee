"""What clockwright asks of a GPU, real or simulated: one small protocol.

Constructing a device and probing it only read. `lock`, `release`, `set_power_limit_w` and
`reset_power_limit` are the only calls that change anything; on real hardware they are made by the
clock keeper alone, and each checks ``CLOCKWRIGHT_READ_ONLY`` first.

Left out: fan speed, MIG layout, compute and persistence modes, which clockwright never touches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from ...data.units import ClockPair

__all__ = ["Capabilities", "Capability", "Gpu", "GpuInfo", "Reading", "ThrottleReason"]


class ThrottleReason:
    """Bits of `Reading.throttle_reasons`, as NVML numbers them (nvmlClocksEventReasons)."""

    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100

    THERMAL = SW_THERMAL | HW_THERMAL
    POWER = SW_POWER_CAP | HW_POWER_BRAKE


@dataclass(frozen=True)
class GpuInfo:
    """Who the GPU is. What the driver would not say is None.

    Attributes:
        name: the product name, such as ``NVIDIA H200``.
        uuid: the driver's UUID (``GPU-...``), or ``SIM-...`` for a simulated one.
        driver: driver version; ``simulated`` for a simulated GPU.
        vbios: VBIOS version.
        power_limit_w: enforced power cap.
        default_power_limit_w: the cap at power-up.
        power_limit_range_w: (least, most) the cap may be set to.
        memory_bytes: device memory.
        pci_bus_id: PCI address.
        index: the driver's index, which is not stable; address by `uuid`.
        simulated: True where every number is modelled, not measured.
    """

    name: str
    uuid: str
    driver: str | None = None
    vbios: str | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    power_limit_range_w: tuple[float, float] | None = None
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    index: int | None = None
    simulated: bool = False


@dataclass(frozen=True)
class Reading:
    """One look at the GPU. What it would not say is None, never 0.

    Attributes:
        at_ns: when, on the device's `Gpu.now_ns` clock.
        core_mhz: SM clock as the driver reports it.
        mem_mhz: memory clock as the driver reports it.
        power_w: board power as the driver reports it (updated about every 100 ms).
        energy_mj: the driver's cumulative energy counter (also about every 100 ms).
        temperature_c: GPU temperature.
        throttle_reasons: `ThrottleReason` bits.
        utilization_percent: share of the last window with a kernel running.
    """

    at_ns: int
    core_mhz: int | None = None
    mem_mhz: int | None = None
    power_w: float | None = None
    energy_mj: int | None = None
    temperature_c: float | None = None
    throttle_reasons: int | None = None
    utilization_percent: float | None = None


class Capability(Enum):
    """Whether this user can do a thing on this GPU, found without doing it."""

    YES = "yes"
    NO_RIGHTS = "no rights"
    NOT_SUPPORTED = "not supported"
    READ_ONLY = "read-only"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Capabilities:
    """What can be done here; ``reasons`` explains each answer that is not YES."""

    lock_core: Capability = Capability.UNKNOWN
    lock_memory: Capability = Capability.UNKNOWN
    power_limit: Capability = Capability.UNKNOWN
    energy_counter: Capability = Capability.UNKNOWN
    power_reading: Capability = Capability.UNKNOWN
    throttle_reasons: Capability = Capability.UNKNOWN
    reasons: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class Gpu(Protocol):
    """One GPU."""

    @property
    def info(self) -> GpuInfo:
        """Who it is; read once at construction."""
        ...

    def pairs(self) -> tuple[ClockPair, ...]:
        """Every supported pair, memory clock descending, then core clock descending."""
        ...

    def capabilities(self) -> Capabilities:
        """What this user can do here, found by reading only."""
        ...

    def read(self, *, energy: bool = True) -> Reading:
        """One look; ``energy=False`` skips the counter, which is slow (ms) on some drivers."""
        ...

    def locked(self) -> ClockPair | None:
        """The pair this object last locked, or None if it locked nothing since `release`."""
        ...

    def lock(self, pair: ClockPair) -> None:
        """Request a pair (min = max = the clock). ``mem_mhz`` None leaves the memory clock.

        Raises:
            ReadOnlyError, RightsError, NotSupportedError, InputError (an unsupported pair).
        """
        ...

    def release(self) -> None:
        """Give both clocks back to the driver's governor."""
        ...

    def set_power_limit_w(self, limit_w: float) -> None:
        """Set the board power cap."""
        ...

    def reset_power_limit(self) -> None:
        """Set the cap back to the default."""
        ...

    def busy_processes(self) -> tuple[int, ...] | None:
        """Process ids that compute on the GPU, other than this one; None if unknown."""
        ...

    def now_ns(self) -> int:
        """The clock that readings use: monotonic host time, or the simulation's own time."""
        ...

    def sleep_ns(self, duration_ns: int) -> None:
        """Wait on that clock (a simulated GPU idles and advances its own time)."""
        ...

    def close(self) -> None:
        """Free the handle. Sets nothing: giving clocks back is the keeper's named act."""
        ...
