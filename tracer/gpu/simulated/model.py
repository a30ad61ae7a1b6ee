"""Time and power of kernels at clocks: the noiseless model, and the power cap's verdict.

Time of a kernel at core clock f and memory clock m::

    latency_ns + latency_cycles / f + (core^p + memory^p)^(1/p)
    core = core_cycles / f,   memory = dram_bytes / (bus width x reach(m) x m)

Power while it runs is board + leakage(V, T) + clock tree V^2 f (more for SMs that hold blocks)
+ memory clock + the kernel's own energy (core energy V^2, memory traffic) over its time. Under a
cap the governor lowers the core clock to the highest step that meets it, so a lower memory clock
can leave more core clock and be faster.

Left out: power within a kernel is even; voltage depends on the core clock alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....data.errors import InputError
from ....data.units import ClockPair
from .spec import GpuSpec
from .terms import KernelTerms

__all__ = [
    "ClockTables",
    "base_power_w",
    "build_tables",
    "clock_index",
    "droop_limit_mhz",
    "highest_core_index",
    "idle_tables",
    "kernel_time_ns",
    "leakage_growth_w_per_c",
    "steady_power_w",
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


def _at_mem(values: Mapping[int, float], spec: GpuSpec, mem_mhz: FloatArray) -> FloatArray:
    """A per-memory-clock value at each of ``mem_mhz``, which must be among the GPU's clocks."""
    clocks = np.array(sorted(spec.mem_clocks_mhz), dtype=np.float64)
    table = np.array([values[mem] for mem in sorted(spec.mem_clocks_mhz)])
    return np.asarray(table[np.searchsorted(clocks, mem_mhz)])


def base_power_w(spec: GpuSpec, core_mhz: FloatArray, mem_mhz: FloatArray) -> FloatArray:
    """Power that no kernel's own work causes, at the reference temperature; shapes broadcast.

    Args:
        spec: the GPU.
        core_mhz: core clocks as the driver reports them.
        mem_mhz: memory clocks, each one of the GPU's.
    """
    power = spec.power
    core_mhz = np.maximum(core_mhz, spec.core_floor_mhz)
    volts = power.volts(core_mhz)
    core_w = power.leakage_w * volts / power.reference_v
    core_w = core_w + power.clock_w * volts**2 * core_mhz * 1e-3
    return np.asarray(power.board_w + core_w + _at_mem(power.mem_clock_w, spec, mem_mhz))


def leakage_growth_w_per_c(spec: GpuSpec, core_mhz: FloatArray) -> FloatArray:
    """Growth of power per degree at each core clock."""
    power = spec.power
    volts = power.volts(np.maximum(core_mhz, spec.core_floor_mhz))
    return np.asarray(power.leakage_w * power.leakage_per_c * volts / power.reference_v)


def kernel_time_ns(
    terms: KernelTerms, spec: GpuSpec, core_mhz: FloatArray, mem_mhz: FloatArray
) -> FloatArray:
    """Duration of each kernel; the terms (S,) broadcast against the clocks from the left.

    Pass clocks of shape (S,) for one pair a kernel, or (C, 1) and (M,) for a full table (S, C, M).
    """
    core_mhz = np.maximum(core_mhz, spec.core_floor_mhz)
    extra = np.broadcast(core_mhz, mem_mhz).ndim if core_mhz.ndim > 1 else 0
    shape = (len(terms),) + (1,) * extra
    rates = spec.rates
    # Cycles over MHz are microseconds.
    bus = rates.dram_bytes_per_mem_cycle * _at_mem(rates.dram_efficiency, spec, mem_mhz) * mem_mhz
    core_ns = terms.core_cycles.reshape(shape) * 1e3 / core_mhz
    mem_ns = terms.dram_bytes.reshape(shape) * 1e3 / bus
    longer, shorter = np.maximum(core_ns, mem_ns), np.minimum(core_ns, mem_ns)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    busy_ns = longer * (1.0 + ratio**rates.overlap) ** (1.0 / rates.overlap)
    latency_ns = terms.latency_cycles.reshape(shape) * 1e3 / core_mhz
    return np.asarray(terms.latency_ns.reshape(shape) + latency_ns + busy_ns)


def steady_power_w(
    terms: KernelTerms,
    spec: GpuSpec,
    core_mhz: FloatArray,
    mem_mhz: FloatArray,
    time_ns: FloatArray,
) -> FloatArray:
    """(N,) power of each kernel repeated until its own heat has settled, one clock pair each."""
    running_mhz = np.maximum(core_mhz, spec.core_floor_mhz)
    volts = spec.power.volts(running_mhz)
    own_w = (terms.core_mj_per_v2 * volts**2 + terms.dram_mj) * 1e6 / time_ns
    own_w = own_w + terms.busy_share * spec.power.busy_clock_w * volts**2 * running_mhz * 1e-3
    cool_w = base_power_w(spec, core_mhz, mem_mhz) + own_w
    growth = leakage_growth_w_per_c(spec, core_mhz)
    thermal = spec.thermal
    at_no_power = growth * (thermal.ambient_c - thermal.reference_c)
    return np.asarray((cool_w + at_no_power) / (1.0 - growth * thermal.c_per_w))


def idle_tables(spec: GpuSpec) -> tuple[FloatArray, FloatArray]:
    """Idle power (C, M) in W and leakage growth (C,) in W per degree, by clock index."""
    core_mhz, mem_mhz = _axes(spec)
    idle_w = base_power_w(spec, core_mhz[:, None], mem_mhz[None, :])
    return idle_w, leakage_growth_w_per_c(spec, core_mhz)


def _axes(spec: GpuSpec) -> tuple[FloatArray, FloatArray]:
    core_mhz = np.array(spec.core_clocks_mhz, dtype=np.float64)
    return core_mhz, np.array(spec.mem_clocks_mhz, dtype=np.float64)


def build_tables(terms: KernelTerms, spec: GpuSpec) -> ClockTables:
    """Time and power of every kernel at every clock of ``spec``."""
    core_mhz, mem_mhz = _axes(spec)
    time_ns = kernel_time_ns(terms, spec, core_mhz[:, None], mem_mhz[None, :])
    running_mhz = spec.running_core_mhz()
    volts = spec.power.volts(running_mhz)
    busy_w = spec.power.busy_clock_w * volts**2 * running_mhz * 1e-3
    own_mj = terms.core_mj_per_v2[:, None] * volts**2 + terms.dram_mj[:, None]
    base_w = base_power_w(spec, core_mhz[:, None], mem_mhz[None, :])
    power_w = base_w[None] + own_mj[:, :, None] * 1e6 / time_ns
    power_w += terms.busy_share[:, None, None] * busy_w[None, :, None]
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
