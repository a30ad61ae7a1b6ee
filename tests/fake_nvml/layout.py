"""The fake driver's state file as ctypes sees it: the structures of fake_nvml.h, field by field.

`check` asks the built library for its sizes, so the two declarations cannot drift apart unseen.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64

MAGIC, VERSION = 0x4C4D564E, 1
GPUS, MEM_ROWS, CORE_CLOCKS = 8, 8, 256
MOMENTS, PROCESSES, ERRORS, LOG = 64, 16, 32, 16384


class RawMoment(ctypes.Structure):
    _fields_ = [
        ("after_ns", c_int64),
        ("reasons", c_uint64),
        ("core_cap_mhz", c_uint32),
        ("power_mw", c_uint32),
        ("temperature_c", c_int32),
        ("utilization_percent", c_uint32),
    ]


class RawProcess(ctypes.Structure):
    _fields_ = [("pid", c_uint32), ("mps", c_uint32), ("memory_bytes", c_uint64)]


class RawLock(ctypes.Structure):
    _fields_ = [
        ("min_mhz", c_uint32),
        ("max_mhz", c_uint32),
        ("before_mhz", c_uint32),
        ("pid", c_uint32),
        ("at_ns", c_int64),
    ]


class RawGpu(ctypes.Structure):
    _fields_ = [
        ("name", c_char * 96),
        ("uuid", c_char * 96),
        ("vbios", c_char * 32),
        ("bus_id", c_char * 32),
        ("memory_bytes", c_uint64),
        ("mig_mode", c_int32),
        ("persistence", c_int32),
        ("mem_rows", c_int32),
        ("mem_mhz", c_uint32 * MEM_ROWS),
        ("row_error", c_int32 * MEM_ROWS),
        ("core_counts", c_int32 * MEM_ROWS),
        ("core_mhz", (c_uint32 * CORE_CLOCKS) * MEM_ROWS),
        ("governor_core_mhz", c_uint32),
        ("governor_mem_mhz", c_uint32),
        ("app_core_mhz", c_uint32),
        ("app_mem_mhz", c_uint32),
        ("core_lock", RawLock),
        ("mem_lock", RawLock),
        ("core_lock_holds", c_int32),
        ("mem_lock_holds", c_int32),
        ("effect_first", c_int32),
        ("moments", c_int32),
        ("lock_call_ns", c_int64),
        ("settle_ns", c_int64),
        ("lock_calls", c_int64),
        ("power_limit_mw", c_uint32),
        ("default_power_limit_mw", c_uint32),
        ("least_power_limit_mw", c_uint32),
        ("most_power_limit_mw", c_uint32),
        ("energy_base_mj", c_int64),
        ("energy_period_ns", c_int64),
        ("energy_reset_ns", c_int64),
        ("moment", RawMoment * MOMENTS),
        ("processes", c_int32),
        ("pad", c_int32),
        ("process", RawProcess * PROCESSES),
    ]


class RawError(ctypes.Structure):
    _fields_ = [
        ("call", c_char * 64),
        ("gpu", c_int32),
        ("code", c_int32),
        ("skip", c_int32),
        ("times", c_int32),
    ]


class RawEntry(ctypes.Structure):
    _fields_ = [
        ("at_ns", c_int64),
        ("pid", c_uint32),
        ("gpu", c_int32),
        ("low", c_uint32),
        ("high", c_uint32),
        ("code", c_int32),
        ("pad", c_int32),
        ("call", c_char * 48),
    ]


class RawState(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("driver", c_char * 80),
        ("permission", c_int32),
        ("gpus", c_int32),
        ("epoch_ns", c_int64),
        ("manual_now_ns", c_int64),
        ("gpu", RawGpu * GPUS),
        ("error", RawError * ERRORS),
        ("logged", c_int64),
        ("log", RawEntry * LOG),
    ]


def check(library: ctypes.CDLL) -> None:
    """Compare this module's structures with the library's."""
    kinds = (RawMoment, RawProcess, RawLock, RawGpu, RawError, RawEntry, RawState)
    sizes = (c_int64 * len(kinds))()
    library.fake_nvml_sizes(sizes)
    ours = [ctypes.sizeof(kind) for kind in kinds]
    if ours != list(sizes):
        raise AssertionError(f"layout.py and fake_nvml.h differ: {ours} against {list(sizes)}")
