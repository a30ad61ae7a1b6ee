"""A simulated recording is a sound trace whose parts add up to the whole."""

import numpy as np
import pytest

from clockwright.data import trace as trace_file
from clockwright.data.errors import InputError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu.simulated import Noise, open_simulated
from clockwright.tracer.record_simulated import record_simulated
from clockwright.tracer.work import KernelWork, StepItem, StepWork

GEMM = KernelWork(
    "gemm", "aten::mm", "[[2048, 2048], [2048, 2048]]", "bfloat16", 2 * 2048**3,
    2 * 2048**2 * 2, 2048**2 * 2, "tensor_16", 2048**2,
)  # fmt: skip
COPY = KernelWork("copy", "aten::copy_", "[[67108864]]", "bfloat16", 0, 2**27, 2**27, "none", 2**26)
PAIRS = [ClockPair(1800, 9501), ClockPair(1200, 9501), ClockPair(1200, 5001)]


@pytest.fixture(scope="module")
def step():
    items = tuple(
        StepItem(i % 2, "forward" if i < 30 else "backward", f"layer.{i // 10}", i // 10)
        for i in range(60)
    )
    return StepWork("pair of kernels", (GEMM, COPY), items)


@pytest.fixture(scope="module")
def trace(step):
    return record_simulated(step, open_simulated("rtx3080ti", seed=3), pairs=PAIRS)


def test_the_governor_comes_first_and_is_the_baseline(trace):
    assert trace.clock_pairs() == (GOVERNOR, *PAIRS)
    assert trace.baseline.pair == GOVERNOR
    assert trace.baseline.time_ns == trace.pairs["step_time_ns"].iloc[0]


def test_it_is_labelled_simulated_everywhere(trace):
    assert trace.simulated
    for frame in (trace.pairs, trace.profile, trace.switches):
        assert set(frame["provenance"]) == {"simulated"}
    assert "simulated" in trace.gpu["name"]


def test_kernels_and_gaps_add_up_to_the_step_at_every_pair(trace, step):
    count = np.bincount([item.work for item in step.items])
    busy_ns = count @ trace.grid("duration_ns")
    gap_ns = trace.pairs["step_time_ns"].to_numpy(dtype=float) - busy_ns
    assert (gap_ns > 0).all()
    assert np.ptp(gap_ns) < 1e-3 * busy_ns.min()
    kernels_mj = count @ trace.grid("energy_mj")
    idle_mj = gap_ns * trace.pairs["idle_power_w"].to_numpy(dtype=float) * 1e-6
    whole_mj = trace.pairs["step_energy_mj"].to_numpy(dtype=float)
    np.testing.assert_allclose(kernels_mj + idle_mj, whole_mj, rtol=1e-6)


def test_a_memory_bound_kernel_keeps_its_time_at_a_lower_core_clock(trace):
    gemm, copy = trace.grid("duration_ns")
    assert gemm[2] > 1.3 * gemm[1]
    assert copy[2] < 1.1 * copy[1]
    assert copy[3] > 1.3 * copy[2]


def test_equal_seeds_give_equal_traces(step, trace):
    again = record_simulated(step, open_simulated("rtx3080ti", seed=3), pairs=PAIRS)
    other = record_simulated(step, open_simulated("rtx3080ti", seed=4), pairs=PAIRS)
    np.testing.assert_array_equal(again.grid("energy_mj"), trace.grid("energy_mj"))
    assert (other.grid("energy_mj") != trace.grid("energy_mj")).any()


def test_it_survives_being_written(trace, tmp_path):
    trace_file.write(trace, tmp_path / "T")
    back = trace_file.read(tmp_path / "T")
    assert back.fingerprint == trace.fingerprint
    assert back.timeline["module"].iloc[10] == "layer.1"


def test_clocks_are_given_back(step):
    gpu = open_simulated("rtx3080ti")
    record_simulated(step, gpu, pairs=PAIRS[:1])
    assert gpu.locked() is None


def test_one_run_has_no_spread_and_is_refused(step):
    with pytest.raises(InputError, match="at least 2"):
        record_simulated(step, open_simulated("rtx3080ti"), repeats=1)


def test_between_held_and_capped_clocks_the_drivers_own_are_visited(step):
    trace = record_simulated(step, open_simulated("rtx3080ti", seed=3), repeats=2)
    pairs = trace.pairs[trace.pairs["mem_mhz"] == 9501].dropna(subset=["core_mhz"])
    capped = (pairs["throttle_reasons"] & 4) != 0
    assert capped.any()
    highest_held = int(pairs[~capped]["core_mhz"].max())
    lowest_cut = int(pairs[capped]["core_mhz"].min())
    assert lowest_cut - highest_held == 15  # the driver's step: nothing lies between


def test_energies_are_those_at_the_baselines_temperature(step):
    """A sweep visited in another order, so at other temperatures, says the same."""
    cool = [*(ClockPair(core, 9501) for core in range(210, 390, 15)), *PAIRS]
    ahead = record_simulated(step, open_simulated("rtx3080ti", noise=Noise.none()), pairs=PAIRS)
    after = record_simulated(step, open_simulated("rtx3080ti", noise=Noise.none()), pairs=cool)
    one, other = ahead.pairs.iloc[1], after.pairs.iloc[13]
    assert one["temperature_c"] - other["temperature_c"] > 3
    assert other["step_energy_mj"] == pytest.approx(one["step_energy_mj"], rel=2e-3)
