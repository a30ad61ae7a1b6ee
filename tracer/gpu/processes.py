"""Which other processes compute on a GPU, as far as process ids can be compared.

NVML reports process ids of the host. In a container with its own pid namespace these are foreign
numbers, and the caller's own CUDA context among them cannot be told apart; then the answer is
None (unknown), never an empty list.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .nvml_errors import nvml_value

__all__ = ["other_processes", "running_processes"]

# The initial pid namespace's fixed inode (PROC_PID_INIT_INO, include/linux/proc_ns.h).
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC


def running_processes(nvml: Any, handle: Any) -> tuple[int, ...] | None:
    """Process ids with a compute context, MPS clients included; None if the driver won't say."""
    plain = nvml_value(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    clients = nvml_value(nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle)
    if plain is None and clients is None:
        return None
    found = [*(plain or ()), *(clients or ())]
    return tuple(sorted({int(process.pid) for process in found}))


def other_processes(
    reported: tuple[int, ...] | None, *, own: int | None = None, proc: Path = Path("/proc")
) -> tuple[int, ...] | None:
    """The reported process ids without our own; None where the two cannot be compared.

    Args:
        reported: what `running_processes` gave.
        own: our process id; this process's if None.
        proc: where /proc is mounted.
    """
    if reported is None:
        return None
    own = os.getpid() if own is None else own
    if own in reported or not reported or _sees_host_pids(proc):
        return tuple(pid for pid in reported if pid != own)
    if all((proc / str(pid)).exists() for pid in reported):
        return reported
    return None


def _sees_host_pids(proc: Path) -> bool:
    try:
        return (proc / "self" / "ns" / "pid").stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
