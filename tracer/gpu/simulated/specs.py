"""The GPUs that can be simulated: RTX 3080 Ti, V100-SXM2, H200.

Sources. Unit counts, peak rates, bus widths, L2 sizes and power limits: NVIDIA's GA102, V100 and
H100/H200 architecture papers and data sheets. Clock lists: public listings of
``nvmlDeviceGetSupportedGraphicsClocks``. Voltage, power and efficiency terms: fitted, see
``docs/simulator.md``.
"""

from __future__ import annotations

from types import MappingProxyType

from ....data.errors import InputError
from ....data.units import ClockPair
from .spec import GpuSpec, PowerTerms, RateTerms, ThermalTerms
from .switching import SwitchBehaviour

__all__ = ["SPECS", "spec_named"]

_GIB = 2**30

RTX_3080_TI = GpuSpec(
    key="rtx3080ti",
    name="NVIDIA GeForce RTX 3080 Ti",
    sms=80,
    memory_bytes=12 * _GIB,
    core_clocks_mhz=tuple(range(210, 2101, 15)),
    top_core_mhz=1965,
    mem_clocks_mhz=(9501, 9251, 5001, 810, 405),
    mem_lockable=True,
    mem_core_limit_mhz={405: 210},
    core_floor_mhz=244.7,
    power_limit_w=350.0,
    power_limit_range_w=(100.0, 400.0),
    idle_pair=ClockPair(210, 405),
    sweep_core_mhz=(210, 450, 630, 840, *range(960, 1966, 45), 1965),
    sweep_mem_mhz=(9501, 9251, 5001, 810),
    rates=RateTerms(
        flops_per_sm_cycle={
            "tensor_16": 512,
            "tensor_tf32": 256,
            "fp32": 256,
            "fp64": 4,
            "int": 128,
            "none": 128,
        },
        efficiency={
            "tensor_16": 0.82,
            "tensor_tf32": 0.82,
            "fp32": 0.80,
            "fp64": 0.90,
            "int": 0.8,
            "none": 0.8,
        },
        attention_efficiency=(0.70, 0.55),
        lanes_per_sm=128,
        dram_bytes_per_mem_cycle=96.0,
        dram_efficiency={9501: 0.92, 9251: 0.947, 5001: 0.946, 810: 0.793, 405: 0.698},
        l2_bytes_per_core_cycle=2048.0,
        l2_bytes=6 * 2**20,
        overlap=6.8,
        floor_ns=1500.0,
        floor_cycles=1500.0,
        gap_ns=900.0,
    ),
    power=PowerTerms(
        board_w=21.4,
        leakage_w=14.0,
        leakage_per_c=0.008,
        clock_w=1.0,
        busy_clock_w=20.0,
        mem_clock_w={405: 0.0, 810: 1.9, 5001: 32.7, 9251: 57.3, 9501: 57.9},
        min_v=0.74,
        knee_mhz=1600.0,
        slope_v_per_ghz=0.732,
        curve_v_per_ghz2=1.722,
        reference_v=0.74,
        flop_pj={
            "tensor_16": 3.5,
            "tensor_tf32": 7.0,
            "fp32": 6.0,
            "fp64": 60.0,
            "int": 6.0,
            "none": 6.0,
        },
        instruction_pj=12.0,
        l2_byte_pj=75.0,
        dram_byte_pj=105.0,
    ),
    thermal=ThermalTerms(
        ambient_c=30.0,
        c_per_w=0.12,
        time_constant_s=45.0,
        reference_c=66.0,
        droop_start_c=44.0,
        droop_step_c=7.0,
    ),
    switch=SwitchBehaviour(
        kind="lag",
        core_ns=5e6,
        mem_ns=15e6,
        spread=0.15,
        late_probability=0.03,
        late_ns=5e6,
        call_ns=4e6,
        call_spread=0.2,
        trigger_ns=2_400.0,
    ),
)

V100 = GpuSpec(
    key="v100",
    name="Tesla V100-SXM2-32GB",
    sms=80,
    memory_bytes=32 * _GIB,
    # Steps of 7.5 MHz, which the driver lists without the half.
    core_clocks_mhz=tuple(135 + 15 * step // 2 for step in range(187)),
    top_core_mhz=1530,
    mem_clocks_mhz=(877,),
    mem_lockable=False,
    power_limit_w=300.0,
    power_limit_range_w=(150.0, 300.0),
    idle_pair=ClockPair(135, 877),
    sweep_core_mhz=tuple(
        sorted({135 + 15 * step // 2 for step in (0, 37, 74, *range(83, 187, 2), 186)})
    ),
    sweep_mem_mhz=(877,),
    rates=RateTerms(
        flops_per_sm_cycle={
            "tensor_16": 1024,
            "tensor_tf32": 128,
            "fp32": 128,
            "fp64": 64,
            "int": 64,
            "none": 64,
        },
        efficiency={
            "tensor_16": 0.78,
            "tensor_tf32": 0.90,
            "fp32": 0.90,
            "fp64": 0.90,
            "int": 0.8,
            "none": 0.8,
        },
        attention_efficiency=(0.40, 0.30),
        lanes_per_sm=64,
        dram_bytes_per_mem_cycle=1024.0,
        dram_efficiency={877: 0.88},
        l2_bytes_per_core_cycle=2048.0,
        l2_bytes=6 * 2**20,
        overlap=8.0,
        floor_ns=1800.0,
        floor_cycles=1500.0,
        gap_ns=1000.0,
    ),
    power=PowerTerms(
        board_w=5.0,
        leakage_w=12.0,
        leakage_per_c=0.008,
        clock_w=1.0,
        busy_clock_w=20.0,
        mem_clock_w={877: 18.0},
        min_v=0.72,
        knee_mhz=946.0,
        slope_v_per_ghz=0.574,
        curve_v_per_ghz2=0.306,
        reference_v=0.72,
        flop_pj={
            "tensor_16": 2.2,
            "tensor_tf32": 11.0,
            "fp32": 11.0,
            "fp64": 24.0,
            "int": 8.0,
            "none": 8.0,
        },
        instruction_pj=9.0,
        l2_byte_pj=40.0,
        dram_byte_pj=55.0,
    ),
    thermal=ThermalTerms(ambient_c=28.0, c_per_w=0.11, time_constant_s=40.0, reference_c=52.0),
    switch=SwitchBehaviour(
        kind="lag",
        core_ns=4.7e6,
        mem_ns=0.0,
        spread=0.12,
        late_probability=0.10,
        late_ns=5e6,
        call_ns=4.4e6,
        call_spread=0.12,
        trigger_ns=2_400.0,
    ),
)

H200 = GpuSpec(
    key="h200",
    name="NVIDIA H200",
    sms=132,
    memory_bytes=141 * 10**9,
    core_clocks_mhz=tuple(range(345, 1981, 15)),
    top_core_mhz=1980,
    mem_clocks_mhz=(3201, 2201),
    mem_lockable=True,
    power_limit_w=700.0,
    power_limit_range_w=(200.0, 700.0),
    idle_pair=ClockPair(345, 3201),
    sweep_core_mhz=(345, 600, 810, 945, *range(1050, 1981, 30)),
    sweep_mem_mhz=(3201, 2201),
    rates=RateTerms(
        flops_per_sm_cycle={
            "tensor_16": 4096,
            "tensor_tf32": 2048,
            "fp32": 256,
            "fp64": 128,
            "int": 128,
            "none": 128,
        },
        efficiency={
            "tensor_16": 0.96,
            "tensor_tf32": 0.90,
            "fp32": 0.85,
            "fp64": 0.90,
            "int": 0.8,
            "none": 0.8,
        },
        attention_efficiency=(0.47, 0.38),
        lanes_per_sm=128,
        dram_bytes_per_mem_cycle=1500.0,
        dram_efficiency={3201: 0.89, 2201: 0.90},
        l2_bytes_per_core_cycle=5120.0,
        l2_bytes=50 * 2**20,
        overlap=6.0,
        floor_ns=1000.0,
        floor_cycles=1200.0,
        gap_ns=800.0,
    ),
    power=PowerTerms(
        board_w=40.0,
        leakage_w=30.0,
        leakage_per_c=0.008,
        clock_w=15.0,
        busy_clock_w=40.0,
        mem_clock_w={2201: 30.0, 3201: 45.0},
        min_v=0.70,
        knee_mhz=1200.0,
        slope_v_per_ghz=0.30,
        curve_v_per_ghz2=0.25,
        reference_v=0.70,
        flop_pj={
            "tensor_16": 0.75,
            "tensor_tf32": 1.5,
            "fp32": 3.0,
            "fp64": 6.0,
            "int": 3.0,
            "none": 3.0,
        },
        instruction_pj=5.0,
        l2_byte_pj=15.0,
        dram_byte_pj=35.0,
    ),
    thermal=ThermalTerms(ambient_c=27.0, c_per_w=0.045, time_constant_s=25.0, reference_c=52.0),
    switch=SwitchBehaviour(
        kind="lag",
        core_ns=8e6,
        mem_ns=20e6,
        spread=0.15,
        late_probability=0.03,
        late_ns=10e6,
        call_ns=4e6,
        call_spread=0.2,
        trigger_ns=2_400.0,
    ),
)

SPECS = MappingProxyType({spec.key: spec for spec in (RTX_3080_TI, V100, H200)})


def spec_named(key: str) -> GpuSpec:
    """The specification called ``key``.

    Raises:
        InputError: no such simulated GPU; the message lists those there are.
    """
    try:
        return SPECS[key.strip().lower()]
    except KeyError:
        known = ", ".join(SPECS)
        raise InputError(f"no simulated GPU is called {key!r}; there are: {known}") from None
