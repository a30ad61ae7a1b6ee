"""Time and power against clocks: what must hold whatever the constants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clockwright.data.errors import InputError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu.simulated import SPECS, open_simulated
from clockwright.tracer.work import KernelWork

from .works import copy, gemm, pointwise, tiny

works = st.builds(
    lambda flops, read, written, math, elements: KernelWork(
        "k", "aten::k", "", "bfloat16", flops, read, written, math, elements
    ),
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    st.integers(1, 10**9),
    st.sampled_from(["tensor_16", "tensor_tf32", "fp32", "none"]),
    st.integers(1, 10**8),
)


@pytest.mark.parametrize("name", sorted(SPECS))
@settings(max_examples=40, deadline=None)
@given(work=works)
def test_a_higher_request_never_runs_slower_and_never_over_the_cap(name, work):
    gpu = open_simulated(name)
    for mem in gpu.spec.mem_clocks_mhz:
        pairs = [pair for pair in gpu.pairs() if pair.mem_mhz == mem]
        time_ns, energy_mj, core_mhz = gpu.truth_table([work], pairs)
        assert (np.diff(time_ns[0]) >= -1e-9 * time_ns[0, 1:]).all()  # pairs descend in core clock
        power_w = energy_mj / time_ns * 1e6
        over = power_w > gpu.spec.power_limit_w * (1 + 1e-12)
        assert (core_mhz[over] == gpu.spec.core_clocks_mhz[0]).all()
        assert (core_mhz[0] <= [pair.core_mhz for pair in pairs]).all()


@pytest.mark.parametrize("name", sorted(SPECS))
@settings(max_examples=30, deadline=None)
@given(work=works, temperature_c=st.floats(30, 90))
def test_truth_of_one_kernel_is_its_row_of_the_table(name, work, temperature_c):
    gpu = open_simulated(name)
    pair = gpu.sweep_pairs()[3]
    time_ns, energy_mj, core_mhz = gpu.truth_table(
        [tiny(), work], [GOVERNOR, pair], temperature_c=temperature_c
    )
    one = gpu.truth(work, pair, temperature_c=temperature_c)
    assert one[:2] == (time_ns[1, 1], energy_mj[1, 1])
    assert one[2] == ClockPair(int(core_mhz[1, 1]), pair.mem_mhz)


def test_under_the_cap_a_lower_memory_clock_leaves_more_core_clock_and_is_faster():
    gpu = open_simulated("rtx3080ti")
    fast_memory = gpu.truth(gemm(8192), ClockPair(2100, 9501))
    slow_memory = gpu.truth(gemm(8192), ClockPair(2100, 5001))
    assert slow_memory[2].core_mhz > fast_memory[2].core_mhz
    assert slow_memory[0] < fast_memory[0]


def test_memory_at_405_holds_only_beside_the_lowest_core_clock():
    gpu = open_simulated("rtx3080ti")
    assert gpu.truth(copy(2**28), ClockPair(210, 405))[2] == ClockPair(210, 405)
    asked, real = ClockPair(630, 405), ClockPair(630, 810)
    assert gpu.truth(copy(2**28), asked) == gpu.truth(copy(2**28), real)
    assert ClockPair(630, 405) not in gpu.pairs()
    assert ClockPair(210, 405) in gpu.pairs()


def test_requests_above_what_runs_come_out_lower_the_hotter_the_kernel():
    gpu = open_simulated("rtx3080ti")
    light = gpu.truth(tiny(), ClockPair(2100, 810))[2].core_mhz
    heavy = gpu.truth(copy(2**30), ClockPair(2100, 9501))[2].core_mhz
    assert 1905 <= heavy < light <= 1965


def test_a_tiny_kernel_costs_the_latency_floor():
    gpu = open_simulated("h200")
    time_ns, _, _ = gpu.truth(tiny(), ClockPair(1980, 3201))
    floor_ns = gpu.spec.rates.floor_ns + gpu.spec.rates.floor_cycles / 1.98
    assert floor_ns < time_ns < 1.3 * floor_ns


def test_few_thread_blocks_leave_most_of_the_gpu_idle():
    gpu = open_simulated("h200")
    one, many = (gpu.truth(gemm(size), ClockPair(1980, 3201))[0] for size in (512, 4096))
    ideal_ratio = (512 / 4096) ** 3
    assert one / many > 4 * ideal_ratio


def test_voltage_is_flat_to_the_knee_and_rises_after_it():
    for spec in SPECS.values():
        power = spec.power
        below = power.volts(np.linspace(0, power.knee_mhz, 20))
        above = power.volts(np.linspace(power.knee_mhz, spec.top_core_mhz, 20))
        assert (below == power.min_v).all()
        assert (np.diff(above) > 0).all()


# Plausibility of the shipped constants: published peaks and what an H200 showed.


def test_a_large_product_on_the_rtx_3080_ti_is_held_by_its_350_w():
    time_ns, energy_mj, pair = open_simulated("rtx3080ti").truth(gemm(8192), GOVERNOR)
    assert 1600 < pair.core_mhz < 1850
    assert 340 < energy_mj / time_ns * 1e6 <= 350
    assert 50e3 < gemm(8192).flops / time_ns < 65e3  # flops per ns are GFLOP/s; 68 TFLOP/s peak


@pytest.mark.parametrize(("name", "peak_gb_s"), [("rtx3080ti", 912), ("v100", 898), ("h200", 4800)])
def test_a_copy_reaches_most_of_the_memory_bandwidth(name, peak_gb_s):
    time_ns, _, _ = open_simulated(name).truth(copy(2**30), GOVERNOR)
    assert 0.85 < 2**30 / time_ns / peak_gb_s < 0.95


def test_h200_products_throttle_and_copies_do_not():
    gpu = open_simulated("h200")
    time_ns, _, pair = gpu.truth(gemm(8192), GOVERNOR)
    assert 1335 <= pair.core_mhz <= 1545
    assert gemm(8192).flops / time_ns == pytest.approx(790e3, rel=0.05)
    assert gpu.truth(copy(2**30), GOVERNOR)[2].core_mhz == 1980
    assert gpu.truth(copy(2**30), GOVERNOR)[0] == pytest.approx(252.7e3, rel=0.02)


def test_h200_gelu_follows_the_core_clock_as_measured():
    gpu = open_simulated("h200")
    fast, slow = (
        gpu.truth(pointwise("gelu", 4 * 2048 * 8192), ClockPair(core, 3201))[0]
        for core in (1875, 1440)
    )
    assert slow / fast == pytest.approx(111.5 / 89.5, rel=0.05)


@pytest.mark.parametrize(("name", "count"), [("rtx3080ti", 509), ("v100", 187), ("h200", 220)])
def test_pairs_come_memory_first_then_core_descending(name, count):
    gpu = open_simulated(name)
    pairs = gpu.pairs()
    assert len(pairs) == len(set(pairs)) == count
    assert list(pairs) == sorted(pairs, key=lambda pair: (-pair.mem_mhz, -pair.core_mhz))
    assert set(gpu.sweep_pairs()) < set(pairs)
    assert 50 <= len(gpu.sweep_pairs()) <= 150


def test_v100_clocks_are_the_drivers_own_list():
    cores = open_simulated("v100").spec.core_clocks_mhz
    assert {135, 142, 757, 825, 885, 952, 1012, 1530} <= set(cores)


def test_an_unsupported_pair_is_refused_with_the_range():
    with pytest.raises(InputError, match="core clocks are 345 to 1980"):
        open_simulated("h200").truth(tiny(), ClockPair(1981, 3201))
    with pytest.raises(InputError, match="no simulated GPU is called 'a100'"):
        open_simulated("a100")
