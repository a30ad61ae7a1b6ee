"""Whether this process holds the right to set clocks, found by reading /proc only.

The NVIDIA kernel driver lets a process lock clocks or set a power limit if it holds CAP_SYS_ADMIN
in the initial user namespace (``NV_IS_SUSER()`` is ``capable(CAP_SYS_ADMIN)`` in
kernel-open/common/inc/nv-linux.h of NVIDIA/open-gpu-kernel-modules). Being uid 0 inside a
container is not enough. What is left out: a driver that refuses for other reasons (vGPU, a
vendor's lock-down), which shows only when a setter is called.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["missing_right"]

_CAP_SYS_ADMIN = 21
_ALL_UIDS = 2**32 - 1


def missing_right(process: Path = Path("/proc/self")) -> str | None:
    """What this process lacks to set clocks and power limits; None if it lacks nothing.

    Args:
        process: the process's folder in /proc.
    """
    try:
        status = (process / "status").read_text()
        uid_map = (process / "uid_map").read_text()
    except OSError as error:
        return f"the process's rights cannot be read ({error.strerror} on {error.filename})"
    effective = next(
        (line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0"
    )
    if not int(effective, 16) >> _CAP_SYS_ADMIN & 1:
        return "this process lacks CAP_SYS_ADMIN"
    if [int(number) for number in uid_map.split()] != [0, 0, _ALL_UIDS]:
        return (
            "this process has CAP_SYS_ADMIN only inside its own user namespace (a rootless "
            "container), which the driver does not accept"
        )
    return None
