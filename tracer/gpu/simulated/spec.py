"""What a simulated GPU is made of: clocks, peak rates, power terms, switch behaviour.

One `GpuSpec` per product. Peak rates, clock ranges, bus widths and power limits are the vendor's
published figures; voltage, power and efficiency terms are fitted (``docs/simulator.md`` says on
what and how well).

Left out: multi-instance GPU, fan curves, per-part process spread, clock domains other than SM and
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ....data.units import ClockPair
from ...work import MathUnit
from .switching import SwitchBehaviour

__all__ = ["GpuSpec", "PowerTerms", "RateTerms", "ThermalTerms"]


@dataclass(frozen=True)
class RateTerms:
    """Terms of the time model.

    Attributes:
        flops_per_sm_cycle: dense peak of each math unit, per SM and core cycle.
        efficiency: share of that peak a large, well-shaped kernel reaches.
        attention_efficiency: the same for fused attention, (forward, backward).
        lanes_per_sm: scalar instructions an SM issues per cycle.
        dram_bytes_per_mem_cycle: bus width; bytes per cycle of the memory clock as the driver
            counts it.
        dram_efficiency: memory clock -> share of the bus a streaming kernel reaches there.
        l2_bytes_per_core_cycle: what L2 and the crossbar carry per core cycle.
        l2_bytes: L2 capacity.
        overlap: exponent p of the smooth maximum ``(core^p + memory^p)^(1/p)``.
        floor_ns: clock-independent start and drain time of any kernel.
        floor_cycles: core cycles of latency every kernel pays.
        gap_ns: GPU idle time between two kernels of a stream.
    """

    flops_per_sm_cycle: Mapping[MathUnit, float]
    efficiency: Mapping[MathUnit, float]
    attention_efficiency: tuple[float, float]
    lanes_per_sm: int
    dram_bytes_per_mem_cycle: float
    dram_efficiency: Mapping[int, float]
    l2_bytes_per_core_cycle: float
    l2_bytes: int
    overlap: float
    floor_ns: float
    floor_cycles: float
    gap_ns: float


@dataclass(frozen=True)
class PowerTerms:
    """Terms of the power model; energies in pJ are at 1 V and scale with its square.

    Attributes:
        board_w: what neither clock nor voltage changes (regulators, fan, memory standby).
        leakage_w: core leakage at `reference_v` and the reference temperature; linear in voltage.
        leakage_per_c: relative growth of leakage per degree.
        clock_w: clock tree and front end, kernel or not, in W per V^2 and GHz.
        busy_clock_w: what is added while every SM holds thread blocks, stalled or not; the same
            unit. SMs without blocks are gated.
        mem_clock_w: W drawn for holding each memory clock, by MHz.
        min_v: voltage below the knee.
        knee_mhz: core clock up to which the voltage stays at `min_v`.
        slope_v_per_ghz: rise just above the knee.
        curve_v_per_ghz2: curvature above the knee.
        reference_v: voltage at which `leakage_w` is stated.
        flop_pj: core energy of one flop of each math unit.
        instruction_pj: core energy of one scalar lane instruction.
        l2_byte_pj: core energy of one byte through L2.
        dram_byte_pj: energy of one byte from or to device memory (not scaled by core voltage).
    """

    board_w: float
    leakage_w: float
    leakage_per_c: float
    clock_w: float
    busy_clock_w: float
    mem_clock_w: Mapping[int, float]
    min_v: float
    knee_mhz: float
    slope_v_per_ghz: float
    curve_v_per_ghz2: float
    reference_v: float
    flop_pj: Mapping[MathUnit, float]
    instruction_pj: float
    l2_byte_pj: float
    dram_byte_pj: float

    def volts(self, core_mhz: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Core voltage at each core clock: flat to the knee, then rising; (C,) float64 V."""
        over_ghz = np.maximum(np.asarray(core_mhz, dtype=np.float64) - self.knee_mhz, 0.0) / 1e3
        return np.asarray(
            self.min_v + self.slope_v_per_ghz * over_ghz + self.curve_v_per_ghz2 * over_ghz**2
        )


@dataclass(frozen=True)
class ThermalTerms:
    """Terms of the temperature model: one lump with one time constant.

    Attributes:
        ambient_c: temperature at no power.
        c_per_w: steady rise per watt.
        time_constant_s: of the approach to the steady temperature.
        reference_c: temperature at which `SimulatedGpu.truth` is stated and a new GPU starts.
        droop_start_c: above this the highest clock falls, one step for each `droop_step_c`.
        droop_step_c: degrees per step of the highest clock.
    """

    ambient_c: float
    c_per_w: float
    time_constant_s: float
    reference_c: float
    droop_start_c: float = 1000.0
    droop_step_c: float = 1000.0


@dataclass(frozen=True)
class GpuSpec:
    """One product.

    Attributes:
        key: the name `open_simulated` takes.
        name: product name as the driver would give it.
        sms: streaming multiprocessors.
        memory_bytes: device memory.
        core_clocks_mhz: supported core clocks, ascending.
        top_core_mhz: highest core clock that really runs; requests above it run here.
        mem_clocks_mhz: memory clocks, descending; the first is the driver's own choice.
        mem_lockable: False where the driver refuses memory clocks.
        mem_core_limit_mhz: memory clock -> highest core clock beside which it holds. Above, the
            next higher memory clock runs instead (seen on RTX 3080 Ti at 405 MHz).
        power_limit_w: default cap.
        power_limit_range_w: least and most cap.
        idle_pair: clocks the driver falls to without work.
        sweep_core_mhz: core clocks a default sweep visits, ascending.
        sweep_mem_mhz: memory clocks a default sweep visits.
        rates: terms of the time model.
        power: terms of the power model.
        thermal: terms of the temperature model.
        switch: default switch behaviour.
        core_floor_mhz: the core never runs slower than this, whatever the driver reports: on an
            RTX 3080 Ti compute-bound kernels at a reported 210 MHz run as if at about 245.
        governor_tick_ns: how often the governor reconsiders the power cap.
        sensor_period_ns: how often power, clock and energy readings change.
        energy_read_ns: how long reading the energy counter blocks.
    """

    key: str
    name: str
    sms: int
    memory_bytes: int
    core_clocks_mhz: tuple[int, ...]
    top_core_mhz: int
    mem_clocks_mhz: tuple[int, ...]
    mem_lockable: bool
    power_limit_w: float
    power_limit_range_w: tuple[float, float]
    idle_pair: ClockPair
    sweep_core_mhz: tuple[int, ...]
    sweep_mem_mhz: tuple[int, ...]
    rates: RateTerms
    power: PowerTerms
    thermal: ThermalTerms
    switch: SwitchBehaviour
    core_floor_mhz: float = 0.0
    mem_core_limit_mhz: Mapping[int, int] = field(default_factory=dict)
    governor_tick_ns: int = 10_000_000
    sensor_period_ns: int = 100_000_000
    energy_read_ns: int = 3_000_000

    def running_core_mhz(self) -> npt.NDArray[np.float64]:
        """(C,) core clocks as kernels feel them, which `core_floor_mhz` may lift."""
        return np.maximum(np.array(self.core_clocks_mhz, dtype=np.float64), self.core_floor_mhz)

    @property
    def default_mem_mhz(self) -> int:
        """The memory clock the driver runs when nothing is locked."""
        return self.mem_clocks_mhz[0]

    def pairs(self) -> tuple[ClockPair, ...]:
        """Every supported pair, memory clock descending, then core clock descending."""
        return self._grid(self.core_clocks_mhz, self.mem_clocks_mhz)

    def sweep_pairs(self) -> tuple[ClockPair, ...]:
        """The default sweep's subset of `pairs`, same order; the governor is not among them."""
        return self._grid(self.sweep_core_mhz, self.sweep_mem_mhz)

    def _grid(self, cores: tuple[int, ...], mems: tuple[int, ...]) -> tuple[ClockPair, ...]:
        return tuple(
            ClockPair(core, mem)
            for mem in sorted(mems, reverse=True)
            for core in sorted(cores, reverse=True)
            if core <= self.mem_core_limit_mhz.get(mem, core)
        )

    def running_mem_mhz(self, core_mhz: int, mem_mhz: int) -> int:
        """The memory clock that really runs when ``mem_mhz`` is asked beside ``core_mhz``."""
        if core_mhz <= self.mem_core_limit_mhz.get(mem_mhz, core_mhz):
            return mem_mhz
        return min(mem for mem in self.mem_clocks_mhz if mem > mem_mhz)
