"""Time and power of kernels at clocks: the noiseless model, and the power cap's verdict.

Time of a kernel at core clock f and memory clock m::

    latency_ns + latency_cycles / f + ((core_cycles / f)^p + (dram_bytes / (width m))^p)^(1/p)

Power while it runs is board + leakage(V, T) + clock tree V^2 f + memory clock + the kernel's own
energy (core energy V^2, memory traffic) over its time. Under a cap the governor lowers the core
clock to the highest step that meets it, so a lower memory clock can leave more core clock and be
faster.

Left out: power within a kernel is even; voltage depends on the core clock alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....data.errors import InputError
from ....data.units import ClockPair
from .spec import GpuSpec
from .terms import KernelTerms

__all__ = [
    "ClockTables",
    "build_tables",
    "clock_index",
    "droop_limit_mhz",
    "highest_core_index",
    "idle_tables",
]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClockTables:
    """A set of kernels at every clock.

    Attributes:
        time_ns: (S, C, M) duration at core clock c and memory clock m, both indexes ascending and
            descending as `GpuSpec` lists them.
        power_w: (S, C, M) mean power while it runs, at the reference temperature.
    """

    time_ns: FloatArray
    power_w: FloatArray


def _base_power_w(spec: GpuSpec, core_mhz: FloatArray, clock_share: float) -> FloatArray:
    """(C, M) power that no kernel's own work causes, at the reference temperature."""
    power = spec.power
    volts = power.volts(core_mhz)
    core_w = power.leakage_w * volts / power.reference_v
    core_w = core_w + clock_share * power.clock_w * volts**2 * core_mhz * 1e-3
    mem_w = np.array([power.mem_clock_w[mem] for mem in spec.mem_clocks_mhz])
    return np.asarray(power.board_w + core_w[:, None] + mem_w[None, :])


def idle_tables(spec: GpuSpec) -> tuple[FloatArray, FloatArray]:
    """Idle power (C, M) in W and leakage growth (C,) in W per degree, by clock index."""
    core_mhz = np.array(spec.core_clocks_mhz, dtype=np.float64)
    growth = spec.power.leakage_w * spec.power.leakage_per_c
    growth_w_per_c = growth * spec.power.volts(core_mhz) / spec.power.reference_v
    return _base_power_w(spec, core_mhz, spec.power.idle_share), growth_w_per_c


def build_tables(terms: KernelTerms, spec: GpuSpec) -> ClockTables:
    """Time and power of every kernel at every clock of ``spec``."""
    rates = spec.rates
    core_mhz = np.array(spec.core_clocks_mhz, dtype=np.float64)
    mem_mhz = np.array(spec.mem_clocks_mhz, dtype=np.float64)
    # Cycles over MHz are microseconds.
    core_ns = terms.core_cycles[:, None, None] * 1e3 / core_mhz[None, :, None]
    bytes_per_us = rates.dram_bytes_per_mem_cycle * mem_mhz
    mem_ns = terms.dram_bytes[:, None, None] * 1e3 / bytes_per_us[None, None, :]
    longer, shorter = np.maximum(core_ns, mem_ns), np.minimum(core_ns, mem_ns)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    busy_ns = longer * (1.0 + ratio**rates.overlap) ** (1.0 / rates.overlap)
    latency_ns = terms.latency_ns[:, None] + terms.latency_cycles[:, None] * 1e3 / core_mhz
    time_ns = latency_ns[:, :, None] + busy_ns

    volts = spec.power.volts(core_mhz)
    own_mj = terms.core_mj_per_v2[:, None] * volts**2 + terms.dram_mj[:, None]
    power_w = _base_power_w(spec, core_mhz, 1.0)[None] + own_mj[:, :, None] * 1e6 / time_ns
    return ClockTables(time_ns=time_ns, power_w=power_w)


def highest_core_index(power_w: FloatArray, spec: GpuSpec, cap_w: float) -> IndexArray:
    """The highest core clock index each kernel holds in the long run, whatever is requested.

    Args:
        power_w: (S, C, M) power at each clock; it rises with the core clock.
        spec: the GPU.
        cap_w: power cap.

    Returns:
        (S, M) int64: the highest index that meets the cap and the highest clock that the steady
        temperature allows; 0 where even the lowest clock exceeds the cap.
    """
    core_mhz = np.array(spec.core_clocks_mhz, dtype=np.float64)
    thermal = spec.thermal
    steady_c = thermal.ambient_c + thermal.c_per_w * np.minimum(power_w, cap_w)
    allowed = (power_w <= cap_w) & (core_mhz[None, :, None] <= droop_limit_mhz(spec, steady_c))
    last = power_w.shape[1] - 1 - np.argmax(allowed[:, ::-1], axis=1)
    return np.where(allowed.any(axis=1), last, 0).astype(np.int64)


def droop_limit_mhz(spec: GpuSpec, temperature_c: FloatArray) -> FloatArray:
    """Highest core clock at each temperature; falls by one step for each few degrees."""
    thermal = spec.thermal
    step_mhz = spec.core_clocks_mhz[-1] - spec.core_clocks_mhz[-2]
    over = np.maximum(temperature_c - thermal.droop_start_c, 0.0) / thermal.droop_step_c
    return np.asarray(spec.top_core_mhz - step_mhz * np.floor(over))


def clock_index(spec: GpuSpec, pair: ClockPair) -> tuple[int, int]:
    """Core and memory index that a request leads to, before cap and temperature.

    A None core clock is the governor's: the highest. A None memory clock is the driver's default.

    Raises:
        InputError: the pair is not supported.
    """
    core_mhz = spec.core_clocks_mhz[-1] if pair.core_mhz is None else pair.core_mhz
    mem_mhz = spec.default_mem_mhz if pair.mem_mhz is None else pair.mem_mhz
    if core_mhz not in spec.core_clocks_mhz or mem_mhz not in spec.mem_clocks_mhz:
        mems = ", ".join(str(mem) for mem in spec.mem_clocks_mhz)
        raise InputError(
            f"{spec.name} (simulated) does not support the pair {pair}: core clocks are "
            f"{spec.core_clocks_mhz[0]} to {spec.core_clocks_mhz[-1]} MHz in the driver's steps, "
            f"memory clocks {mems} MHz"
        )
    running_mem = spec.running_mem_mhz(core_mhz, mem_mhz)
    return spec.core_clocks_mhz.index(core_mhz), spec.mem_clocks_mhz.index(running_mem)
