"""NVML return codes as clockwright's errors, in one table.

Two ways to call NVML go through it: `nvml_call`, where the answer is needed and every failure is
raised, and `nvml_value`, where one field may be missing (None) and only failures of the whole
driver or GPU are raised. Codes are the NVML ABI's nvmlReturn_t numbers, so this module needs no
NVML.

Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...data.errors import (
    DeviceBusyError,
    DeviceError,
    NoDeviceError,
    NotSupportedError,
    RightsError,
)

__all__ = ["HOW_TO_GRANT", "nvml_call", "nvml_error", "nvml_first", "nvml_value"]

HOW_TO_GRANT = (
    "the NVIDIA driver asks for CAP_SYS_ADMIN (root on the host): have an operator run "
    "clockwright's clock keeper as root, or start the container with --cap-add SYS_ADMIN; "
    "nvidia-smi -acp UNRESTRICTED does not help, since it opens application clocks only, not "
    "locked clocks or power limits"
)

_NO_PERMISSION = 4

# code: (class, what it means and what to do). Codes not listed become a plain DeviceError.
_TABLE: dict[int, tuple[type[DeviceError], str]] = {
    1: (DeviceError, "NVML is not initialised; the device was closed"),
    2: (DeviceError, "the driver calls an argument invalid"),
    3: (NotSupportedError, "this GPU or driver does not support it"),
    _NO_PERMISSION: (RightsError, HOW_TO_GRANT),
    6: (NoDeviceError, "the driver knows no such GPU; `nvidia-smi -L` lists them"),
    8: (DeviceError, "the GPU's external power cables are not attached"),
    9: (
        NoDeviceError,
        "no NVIDIA driver is loaded here: check that `nvidia-smi` works, and in a container "
        "that it was started with --gpus all",
    ),
    10: (DeviceError, "the driver timed out"),
    11: (DeviceError, "the kernel reports an interrupt problem with the GPU"),
    12: (
        NoDeviceError,
        "libnvidia-ml.so.1 was not found: install the NVIDIA driver, or in a container start it "
        "with --gpus all (NVIDIA_DRIVER_CAPABILITIES must include utility)",
    ),
    13: (NotSupportedError, "the installed driver is too old to know this call"),
    15: (DeviceError, "the GPU has fallen off the bus; reset it or reboot (see dmesg for Xid)"),
    16: (DeviceError, "the GPU must be reset before it can be used"),
    17: (DeviceError, "the operating system blocked the request (device nodes or cgroup rules)"),
    18: (
        DeviceError,
        "driver and library versions differ: the driver was upgraded under way, reboot",
    ),
    19: (DeviceBusyError, "the GPU is in use"),
    20: (DeviceError, "out of memory"),
    24: (NotSupportedError, "the GPU does not support this frequency"),
    25: (NotSupportedError, "the installed driver does not know this version of the call"),
    26: (NotSupportedError, "the driver no longer offers this call"),
    28: (NoDeviceError, "the GPU was not found; `nvidia-smi -L` lists those there are"),
}

# Failures of everything, not of one field: a reading may not hide them as None.
_FATAL = frozenset({1, 9, 12, 15, 16, 17, 18, 20, 28})


def nvml_error(error: Exception, doing: str) -> DeviceError:
    """The clockwright error for an ``NVMLError`` met while ``doing`` something.

    Args:
        error: the binding's exception; its ``value`` is the return code.
        doing: what was tried, to start the sentence: ``locking the SM clock to 1410 MHz``.
    """
    code = int(getattr(error, "value", -1))
    kind, meaning = _TABLE.get(code, (DeviceError, "the driver gave no further reason"))
    return kind(f"{doing} failed (NVML code {code}, {error}): {meaning}")


def nvml_call(doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML where the answer is needed.

    Raises:
        DeviceError: or the subclass the table gives for the return code.
    """
    from pynvml import NVMLError

    try:
        return function(*arguments)
    except NVMLError as error:
        raise nvml_error(error, doing) from None


def nvml_value(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for one field; None if this GPU, driver or user does not get it.

    Raises:
        DeviceError: the driver or the GPU as a whole failed (lost, unloaded, blocked).
    """
    from pynvml import NVMLError

    try:
        return function(*arguments)
    except NVMLError as error:
        if int(error.value) in _FATAL:
            raise nvml_error(error, f"reading {function.__name__}") from None
        return None


def nvml_first(*calls: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    """The first of several calls that gives a value: newer drivers rename what older ones had."""
    for function, arguments in calls:
        value = nvml_value(function, *arguments)
        if value is not None:
            return value
    return None
