"""Stall and lag: what a switch costs, and when it takes hold."""

import dataclasses

import numpy as np
import pytest

from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu.simulated import Noise, SwitchBehaviour, open_simulated

from .works import copy, gemm, step_of

HIGH, LOW, LOW_MEM = ClockPair(1200, 3201), ClockPair(600, 3201), ClockPair(600, 2201)


def quiet(switch, name="h200"):
    gpu = open_simulated(name, noise=Noise.none(), switch=switch)
    gpu.lock(HIGH)
    gpu.sleep_ns(100_000_000)
    return gpu


def test_a_stall_adds_its_parts_and_the_item_runs_at_the_new_pair():
    gpu = quiet(SwitchBehaviour(kind="stall", core_ns=20e3, mem_ns=60e3))
    step = step_of(gemm(2048), times=10)
    plain = gpu.run(step)
    run = gpu.run(step, requests={4: LOW_MEM, 5: HIGH})
    slow_ns, _, _ = gpu.truth(step.works[0], LOW_MEM)
    fast_ns, _, _ = gpu.truth(step.works[0], HIGH)
    assert run.core_mhz.tolist() == [1200] * 4 + [600] + [1200] * 5
    assert run.mem_mhz[4] == 2201
    assert run.duration_ns[4] == pytest.approx(slow_ns, abs=1)
    assert run.time_ns - plain.time_ns == pytest.approx(2 * 80e3 + slow_ns - fast_ns, abs=20)


def test_a_stall_draws_idle_power():
    gpu = quiet(SwitchBehaviour(kind="stall", core_ns=50e6, mem_ns=0.0))
    step = step_of(gemm(1024))
    plain = gpu.run(step)
    gpu.run(step, requests={0: LOW})
    back = gpu.run(step, requests={0: HIGH})
    stall_ns, stall_mj = gpu.switch_truth(LOW, HIGH)
    assert stall_ns == 50e6
    assert back.energy_mj - plain.energy_mj == pytest.approx(stall_mj, rel=0.01)


def test_asking_for_the_pair_in_force_costs_nothing():
    gpu = quiet(SwitchBehaviour(kind="stall", core_ns=20e3, mem_ns=60e3))
    step = step_of(gemm(1024), times=5)
    assert gpu.run(step, requests={2: HIGH}).time_ns == pytest.approx(gpu.run(step).time_ns, abs=9)


def test_a_matrix_replaces_the_parts_where_it_has_the_pair():
    switch = SwitchBehaviour(kind="stall", core_ns=1e3, mem_ns=2e3, matrix_ns={(HIGH, LOW): 7e3})
    assert switch.nominal_ns(HIGH, LOW) == 7e3
    assert switch.nominal_ns(LOW, HIGH) == 1e3
    assert switch.nominal_ns(HIGH, LOW_MEM) == 3e3
    assert switch.nominal_ns(HIGH, GOVERNOR) == 3e3
    assert switch.nominal_ns(LOW, LOW) == 0


def test_with_lag_kernels_run_on_at_the_old_pair_until_it_takes_hold():
    gpu = quiet(SwitchBehaviour(kind="lag", core_ns=2e6, mem_ns=0.0))
    step = step_of(gemm(2048), times=400)
    plain_ns = gpu.run(step).duration_ns[0]
    run = gpu.run(step, requests={10: LOW})
    change = int(np.argmax(run.core_mhz == 600))
    took_ns = run.start_ns[change] - run.start_ns[10]
    assert 2e6 <= took_ns <= 2e6 + 2 * run.duration_ns[change]
    assert (run.core_mhz[:change] == 1200).all()
    assert (run.core_mhz[change:] == 600).all()
    # The kernel under way when it took hold ran part at each pair.
    straddling = run.duration_ns[change - 1]
    assert plain_ns < straddling < run.duration_ns[change]


def test_a_lag_that_outlives_the_step_takes_hold_in_the_next():
    gpu = quiet(SwitchBehaviour(kind="lag", core_ns=5e6, mem_ns=0.0))
    step = step_of(gemm(2048), times=30)
    first = gpu.run(step, requests={20: LOW})
    assert set(first.core_mhz) == {1200}
    later = [gpu.run(step) for _ in range(10)]
    assert set(later[-1].core_mhz) == {600}


def test_the_keeper_drops_a_request_that_a_newer_one_overtakes_while_its_call_blocks():
    gpu = quiet(SwitchBehaviour(kind="lag", core_ns=1e6, mem_ns=0.0, call_ns=50e6))
    step = step_of(gemm(2048), times=4000)
    middle, last = ClockPair(900, 3201), ClockPair(1500, 3201)
    run = gpu.run(step, requests={0: LOW, 10: middle, 20: last})
    assert (run.requests_issued, run.requests_superseded) == (2, 1)
    assert 900 not in run.core_mhz
    first_at_last = int(np.argmax(run.core_mhz == 1500))
    assert run.start_ns[first_at_last] - run.start_ns[0] == pytest.approx(51e6, abs=1e6)


def test_a_driver_call_blocks_its_caller():
    gpu = open_simulated("v100", seed=3)
    spans_ns = []
    for turn in range(300):
        start_ns = gpu.now_ns()
        gpu.lock(ClockPair((1005, 1200)[turn % 2], 877))
        spans_ns.append(gpu.now_ns() - start_ns)
    assert 3.4e6 < np.median(spans_ns) < 6.1e6


@pytest.mark.parametrize("kind", ["lag", "stall"])
def test_sensing_kernels_find_the_switch_time_within_five_percent(kind):
    switch = SwitchBehaviour(kind=kind, core_ns=8e6, mem_ns=0.0, spread=0.05, call_ns=1e6)
    gpu = open_simulated("h200", seed=5, switch=switch)
    gpu.lock(HIGH)
    gpu.sleep_ns(100_000_000)
    cycles = 120_000  # 100 us at 1200 MHz, 200 us at 600
    found_ns = []
    for turn in range(30):
        target = LOW if turn % 2 == 0 else HIGH
        full_ns = cycles * 1e3 / target.core_mhz
        start_ns = gpu.now_ns()
        gpu.request(target)
        lost_ns = 0
        while True:
            span_ns = gpu.spin(cycles)
            if kind == "stall":
                lost_ns = span_ns - full_ns
                break
            if abs(span_ns / full_ns - 1) < 0.02:
                lost_ns = gpu.now_ns() - span_ns - start_ns
                break
        found_ns.append(lost_ns)
        gpu.sleep_ns(40_000_000)
    truth_ns, _ = gpu.switch_truth(HIGH, LOW)
    assert np.median(found_ns) == pytest.approx(truth_ns, rel=0.05)


def test_the_sensing_kernel_reads_the_clock_in_force():
    gpu = open_simulated("h200", switch="free")
    for pair in (HIGH, LOW, ClockPair(1980, 2201)):
        gpu.lock(pair)
        assert 100_000 * 1e3 / gpu.spin(100_000) == pytest.approx(pair.core_mhz, rel=2e-3)


def test_scatter_keeps_the_nominal_value_as_its_median():
    switch = SwitchBehaviour(
        kind="lag", core_ns=5e6, mem_ns=0.0, spread=0.15, late_probability=0.02, late_ns=5e6
    )
    drawn = switch.sample_ns(np.full(20_000, 5e6), np.random.default_rng(0))
    assert np.median(drawn) == pytest.approx(5e6, rel=0.01)
    assert np.quantile(drawn, 0.99) > 8e6


def test_a_trigger_costs_gpu_time_of_its_own():
    base = SwitchBehaviour(kind="lag", core_ns=1e9, mem_ns=0.0)
    step = step_of(copy(2**24), times=20)
    plain, with_triggers = (
        quiet(dataclasses.replace(base, trigger_ns=cost)).run(step, requests={1: LOW, 9: HIGH})
        for cost in (0.0, 2400.0)
    )
    assert with_triggers.time_ns - plain.time_ns == pytest.approx(4800, abs=3)
