"""Ask NVML who a GPU is, what clock pairs it lists and what can be done with it. Only reads.

Every field's return code counts by itself: what one driver will not say is None or a reason, and
the rest is still used. Rights to set clocks have no getter in NVML, so they are judged from the
process's own rights (see `rights`); a driver that refuses anyway says so when a setter is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ...data.errors import NotSupportedError, RightsError
from ...data.units import ClockPair
from .nvml_errors import HOW_TO_GRANT, nvml_call, nvml_first, nvml_value
from .protocol import Capabilities, Capability, GpuInfo
from .rights import missing_right

__all__ = ["READ_ONLY_VARIABLE", "is_read_only", "probe", "read_clock_table", "read_info"]

READ_ONLY_VARIABLE = "CLOCKWRIGHT_READ_ONLY"
_MIG_REASON = (
    "MIG is enabled on it: its instances share one clock, one power cap and one energy counter, so "
    "neither clocks nor energy belong to one job; disable MIG (nvidia-smi -i {index} -mig 0, as "
    "root) or choose another GPU"
)


def is_read_only(environment: Mapping[str, str] = os.environ) -> bool:
    """True if CLOCKWRIGHT_READ_ONLY forbids setting: any value but empty or 0."""
    return environment.get(READ_ONLY_VARIABLE, "").strip() not in {"", "0"}


def read_info(nvml: Any, handle: Any) -> GpuInfo:
    """Who the GPU is.

    Raises:
        NotSupportedError: MIG is enabled.
        DeviceError: it has no UUID or name to give, or is lost.
    """
    uuid = str(nvml_call("reading the GPU's UUID", nvml.nvmlDeviceGetUUID, handle))
    name = str(nvml_call(f"reading the name of {uuid}", nvml.nvmlDeviceGetName, handle))
    index = nvml_value(nvml.nvmlDeviceGetIndex, handle)
    mig = nvml_value(nvml.nvmlDeviceGetMigMode, handle)
    if mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE:
        reason = _MIG_REASON.format(index=uuid if index is None else index)
        raise NotSupportedError(f"{name} ({uuid}) cannot be used: {reason}")
    limits = nvml_value(nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    memory = nvml_value(nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = nvml_value(nvml.nvmlDeviceGetPciInfo, handle)
    return GpuInfo(
        name=name,
        uuid=uuid,
        driver=_text(nvml_value(nvml.nvmlSystemGetDriverVersion)),
        vbios=_text(nvml_value(nvml.nvmlDeviceGetVbiosVersion, handle)),
        power_limit_w=read_power_limit_w(nvml, handle),
        default_power_limit_w=_watts(
            nvml_value(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
        ),
        power_limit_range_w=None if limits is None else (limits[0] / 1000, limits[1] / 1000),
        memory_bytes=None if memory is None else int(memory.total),
        pci_bus_id=None if pci is None else _text(pci.busId),
        index=index,
    )


def read_power_limit_w(nvml: Any, handle: Any) -> float | None:
    """The power cap in force, in W, or None."""
    return _watts(
        nvml_first(
            (nvml.nvmlDeviceGetEnforcedPowerLimit, (handle,)),
            (nvml.nvmlDeviceGetPowerManagementLimit, (handle,)),
        )
    )


def read_clock_table(nvml: Any, handle: Any) -> tuple[tuple[ClockPair, ...], tuple[str, ...]]:
    """Every listed pair, memory clock then core clock descending, and notes on what is missing.

    A memory row whose core clocks the driver does not list is left out, with a note.
    """
    notes: list[str] = []
    mem_clocks = nvml_value(nvml.nvmlDeviceGetSupportedMemoryClocks, handle)
    if mem_clocks is None:
        return (), ("the driver does not list supported memory clocks",)
    pairs: list[ClockPair] = []
    for mem_mhz in sorted({int(mhz) for mhz in mem_clocks}, reverse=True):
        cores = nvml_value(nvml.nvmlDeviceGetSupportedGraphicsClocks, handle, mem_mhz)
        if not cores:
            notes.append(f"the driver lists no core clocks at memory clock {mem_mhz} MHz")
            continue
        ordered = sorted({int(mhz) for mhz in cores}, reverse=True)
        pairs.extend(ClockPair(core_mhz, mem_mhz) for core_mhz in ordered)
    if not pairs and not notes:
        notes.append("the driver's list of clocks is empty")
    return tuple(pairs), tuple(notes)


def probe(nvml: Any, handle: Any, info: GpuInfo, pairs: tuple[ClockPair, ...]) -> Capabilities:
    """What this user can do on the GPU, without doing it."""
    setting, why = _setting_allowed()
    reasons: dict[str, str] = {}
    answers: dict[str, Capability] = {}

    def answer(name: str, obstacle: str | None) -> None:
        answers[name] = setting if obstacle is None else Capability.NOT_SUPPORTED
        if (reason := obstacle or why) is not None:
            reasons[name] = reason

    mem_rows = {pair.mem_mhz for pair in pairs}
    one_row = f"its only memory clock is {next(iter(mem_rows))} MHz" if mem_rows else "none listed"
    answer("lock_core", None if pairs else "the driver lists no clocks")
    answer("lock_memory", None if len(mem_rows) > 1 else one_row)
    limits = info.power_limit_range_w
    fixed = "the driver gives no range for the power limit" if limits is None else None
    if limits is not None and limits[0] >= limits[1]:
        fixed = f"the power limit is fixed at {limits[1]:g} W"
    answer("power_limit", fixed)
    for name, functions in {
        "energy_counter": (nvml.nvmlDeviceGetTotalEnergyConsumption,),
        "power_reading": (nvml.nvmlDeviceGetPowerUsage,),
        "throttle_reasons": (
            nvml.nvmlDeviceGetCurrentClocksEventReasons,
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        ),
    }.items():
        answers[name], reason = _readable(handle, functions)
        if reason is not None:
            reasons[name] = reason
    return Capabilities(**answers, reasons=reasons)


def _setting_allowed() -> tuple[Capability, str | None]:
    if is_read_only():
        return Capability.READ_ONLY, f"{READ_ONLY_VARIABLE} is set"
    missing = missing_right()
    if missing is not None:
        return Capability.NO_RIGHTS, f"{missing}; {HOW_TO_GRANT}"
    return Capability.YES, None


def _readable(
    handle: Any, functions: tuple[Callable[..., Any], ...]
) -> tuple[Capability, str | None]:
    answer, reason = Capability.UNKNOWN, None
    for function in functions:
        try:
            nvml_call(f"reading {function.__name__}", function, handle)
        except NotSupportedError as error:
            answer, reason = Capability.NOT_SUPPORTED, str(error)
        except RightsError as error:
            return Capability.NO_RIGHTS, str(error)
        else:
            return Capability.YES, None
    return answer, reason


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
