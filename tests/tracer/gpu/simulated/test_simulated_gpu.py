"""The protocol on virtual time: sensors, counter, heat, governor, faults."""

import dataclasses

import numpy as np
import pytest

from clockwright.data.errors import InputError, NotSupportedError, RightsError
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.tracer.gpu.protocol import Capability, Gpu, ThrottleReason
from clockwright.tracer.gpu.simulated import SPECS, Faults, Noise, SwitchBehaviour, open_simulated

from .works import copy, gemm, pointwise, step_of, tiny


@pytest.mark.parametrize("name", sorted(SPECS))
def test_it_is_a_gpu_and_says_that_it_is_simulated(name):
    gpu = open_simulated(name, seed=7)
    assert isinstance(gpu, Gpu)
    assert gpu.info.simulated
    assert "simulated" in gpu.info.name
    assert gpu.info.uuid == f"SIM-{name}-7"


def test_equal_seeds_and_calls_give_equal_results_and_other_seeds_do_not():
    def play(seed):
        gpu = open_simulated("rtx3080ti", seed=seed)
        gpu.lock(ClockPair(1500, 9501))
        run = gpu.run(step_of(gemm(1024), tiny(), times=50), requests={3: ClockPair(1200, 5001)})
        return run.start_ns.tolist(), run.energy_mj, dataclasses.astuple(gpu.read())

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_a_run_without_noise_is_the_sum_of_truths_and_gaps():
    gpu = open_simulated("h200", noise=Noise.none(), switch="free")
    pair = ClockPair(1200, 3201)
    gpu.lock(pair)
    step = step_of(gemm(2048), copy(2**26), tiny(), times=40)
    run = gpu.run(step)
    time_ns, energy_mj, _ = gpu.truth_table(step.works, [pair], temperature_c=gpu.temperature_c)
    gaps_ns = gpu.spec.rates.gap_ns * len(step.items)
    assert run.time_ns == pytest.approx(40 * time_ns.sum() + gaps_ns, rel=1e-6)
    assert run.energy_mj == pytest.approx(
        40 * energy_mj.sum() + gaps_ns * gpu.idle_power_w(pair) * 1e-6, rel=1e-3
    )
    assert (run.start_ns[1:] >= run.start_ns[:-1] + run.duration_ns[:-1]).all()
    assert set(run.core_mhz) == {1200}


def test_noise_scatters_launches_by_its_own_size():
    gpu = open_simulated("h200", noise=dataclasses.replace(Noise.none(), kernel=0.02))
    gpu.lock(ClockPair(1200, 3201))
    gpu.sleep_ns(100_000_000)
    run = gpu.run(step_of(gemm(1024), times=4000))
    assert np.std(np.log(run.duration_ns)) == pytest.approx(0.02, rel=0.1)


def test_readings_change_every_100_ms_and_the_counter_counts_whole_millijoules():
    gpu = open_simulated("rtx3080ti")
    gpu.lock(ClockPair(1500, 9501))
    seen = []
    for _ in range(200):
        gpu.sleep_ns(5_000_000)
        reading = gpu.read()
        seen.append((reading.at_ns, reading.energy_mj))
    assert all(isinstance(energy, int) for _, energy in seen)
    energies = np.array([energy for _, energy in seen])
    steps = np.flatnonzero(np.diff(energies))
    times = np.array([at for at, _ in seen])
    assert (np.diff(energies) >= 0).all()
    assert np.diff(times[steps]).mean() == pytest.approx(100e6, rel=0.05)
    # Idle power held all along, so each step is a tenth of a second of it.
    steady = np.diff(energies)[steps][2:]
    assert steady == pytest.approx(gpu.idle_power_w(ClockPair(1500, 9501)) * 100, rel=0.05)


def test_the_counter_agrees_with_the_true_energy_over_many_updates():
    gpu = open_simulated("h200")
    first = gpu.read().energy_mj
    before_mj = gpu.true_energy_mj()
    counted = 0
    for _ in range(40):
        counted += gpu.run(step_of(gemm(8192), times=50)).counter_mj
    true_mj = gpu.true_energy_mj() - before_mj
    assert true_mj > 1e6
    assert counted == pytest.approx(true_mj, rel=0.05)
    assert gpu.read().energy_mj - first == pytest.approx(true_mj, rel=0.05)


def test_reading_the_counter_takes_longer_than_reading_clocks():
    gpu = open_simulated("h200")
    start_ns = gpu.now_ns()
    gpu.read(energy=False)
    quick_ns = gpu.now_ns() - start_ns
    gpu.read()
    assert gpu.now_ns() - start_ns - quick_ns == gpu.spec.energy_read_ns > 100 * quick_ns


def test_temperature_nears_its_steady_value_with_the_time_constant():
    gpu = open_simulated("h200", noise=Noise.none())
    gpu.lock(ClockPair(1980, 3201))
    gpu.sleep_ns(10**12)
    thermal = gpu.spec.thermal
    cold_c = gpu.temperature_c
    work = copy(2**30)
    power_w = np.divide(*gpu.truth(work, ClockPair(1980, 3201))[1::-1]) * 1e6
    while gpu.now_ns() < 10**12 + thermal.time_constant_s * 1e9:
        gpu.run(step_of(work, times=1000))
    steady_c = thermal.ambient_c + thermal.c_per_w * power_w
    assert gpu.temperature_c == pytest.approx(steady_c + (cold_c - steady_c) * np.exp(-1), abs=0.5)


def test_left_to_the_governor_and_without_work_it_rests_at_its_idle_clocks():
    gpu = open_simulated("h200")
    gpu.run(step_of(gemm(4096), times=100))
    gpu.sleep_ns(10**9)
    reading = gpu.read()
    assert ClockPair(reading.core_mhz, reading.mem_mhz) == gpu.spec.idle_pair
    assert reading.throttle_reasons & ThrottleReason.GPU_IDLE
    assert reading.power_w == pytest.approx(gpu.idle_power_w(gpu.spec.idle_pair), rel=0.05)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_hot_loop_settles_within_a_step_of_the_truth_under_the_cap(name):
    gpu = open_simulated(name, noise=Noise.none())
    work = gemm(8192)
    step = step_of(work, times=20)
    thermal_ns = gpu.now_ns() + 5 * gpu.spec.thermal.time_constant_s * 1e9
    while gpu.now_ns() < thermal_ns:
        run = gpu.run(step)
    _, _, pair = gpu.truth(work, GOVERNOR, temperature_c=gpu.temperature_c)
    assert np.mean(run.core_mhz) == pytest.approx(pair.core_mhz, abs=16)
    assert run.energy_mj / run.time_ns * 1e6 == pytest.approx(gpu.spec.power_limit_w, rel=0.02)
    assert (run.throttle_reasons & ThrottleReason.SW_POWER_CAP).all()


def test_a_step_whose_mean_power_meets_the_cap_is_not_held_by_its_hottest_kernel():
    gpu = open_simulated("h200", noise=Noise.none())
    hot, cool = pointwise("softmax", 2**24), tiny()
    gpu.set_power_limit_w(400.0)
    assert gpu.truth(hot, GOVERNOR)[2].core_mhz < 1980
    step = step_of(hot, *[dataclasses.replace(cool, elements=256 + n) for n in range(20)], times=50)
    for _ in range(50):
        run = gpu.run(step)
    assert set(run.core_mhz) == {1980}


def test_setting_the_power_limit_lowers_clocks_and_resetting_gives_them_back():
    gpu = open_simulated("h200")
    full = gpu.truth(gemm(8192), GOVERNOR)[2]
    gpu.set_power_limit_w(450.0)
    assert gpu.truth(gemm(8192), GOVERNOR)[2].core_mhz < full.core_mhz
    gpu.reset_power_limit()
    assert gpu.truth(gemm(8192), GOVERNOR)[2] == full
    with pytest.raises(InputError, match=r"200\.\.700 W"):
        gpu.set_power_limit_w(100.0)


def test_v100_leaves_its_only_memory_clock_alone_and_refuses_another():
    gpu = open_simulated("v100")
    gpu.lock(ClockPair(1005, 877))
    assert gpu.capabilities().lock_memory is Capability.NOT_SUPPORTED
    with pytest.raises(NotSupportedError, match="877 MHz only"):
        gpu.lock(ClockPair(1005, 810))


def test_a_2500_kernel_step_keeps_one_entry_per_item():
    gpu = open_simulated("rtx3080ti")
    run = gpu.run(step_of(gemm(512), tiny(), copy(2**20), copy(2**22), tiny(), times=500))
    assert run.start_ns.shape == run.duration_ns.shape == run.throttle_reasons.shape == (2500,)
    assert run.start_ns.dtype == run.duration_ns.dtype == np.int64


def test_measured_windows_scatter_about_the_truth():
    gpu = open_simulated("h200")
    pairs = gpu.sweep_pairs()[:4]
    time_ns, energy_mj = gpu.measure_table([gemm(4096)], pairs, windows=4000)
    truth_ns, truth_mj, _ = gpu.truth_table([gemm(4096)], pairs)
    assert time_ns.mean(axis=0) == pytest.approx(truth_ns, rel=1e-4)
    assert energy_mj.std(axis=0) / truth_mj == pytest.approx(0.0021, rel=0.1)


# --- faults


def test_a_lock_that_does_not_hold_returns_success_and_changes_nothing():
    gpu = open_simulated("h200", faults=Faults(locks_hold=False))
    gpu.lock(ClockPair(345, 3201))
    assert gpu.locked() == ClockPair(345, 3201)
    run = gpu.run(step_of(copy(2**28), times=200), requests={5: ClockPair(600, 3201)})
    assert set(run.core_mhz) == {1980}


def test_thermal_throttling_holds_clocks_and_names_the_reason():
    gpu = open_simulated("h200", faults=Faults(thermal_limit_mhz=1000))
    run = gpu.run(step_of(copy(2**28), times=20))
    assert set(run.core_mhz) == {990}
    assert (run.throttle_reasons & ThrottleReason.SW_THERMAL).all()
    gpu.set_faults(Faults())
    assert set(gpu.run(step_of(copy(2**28), times=20)).core_mhz) == {1980}


def test_without_an_energy_counter_readings_say_none_and_capabilities_say_so():
    gpu = open_simulated("h200", faults=Faults(energy_counter=False))
    assert gpu.capabilities().energy_counter is Capability.NOT_SUPPORTED
    assert gpu.read().energy_mj is None
    assert gpu.run(step_of(tiny())).counter_mj is None


def test_a_reset_counter_starts_again_from_nothing():
    gpu = open_simulated("h200")
    gpu.sleep_ns(10**10)
    before = gpu.read().energy_mj
    gpu.reset_energy_counter()
    assert gpu.read().energy_mj == 0
    gpu.sleep_ns(10**9)
    assert 0 < gpu.read().energy_mj < before


def test_without_rights_every_setter_refuses_and_nothing_changes():
    gpu = open_simulated("h200", faults=Faults(rights=False))
    assert gpu.capabilities().lock_core is Capability.NO_RIGHTS
    for act in (
        lambda: gpu.lock(ClockPair(345, 3201)),
        gpu.release,
        lambda: gpu.request(ClockPair(345, 3201)),
        lambda: gpu.set_power_limit_w(500),
        lambda: gpu.run(step_of(tiny()), requests={0: ClockPair(345, 3201)}),
    ):
        with pytest.raises(RightsError):
            act()
    assert gpu.locked() is None
    assert set(gpu.run(step_of(copy(2**28))).core_mhz) == {1980}


@pytest.mark.parametrize("bad", [{-1: GOVERNOR}, {3: GOVERNOR}])
def test_a_request_outside_the_step_is_refused(bad):
    gpu = open_simulated("h200")
    with pytest.raises(InputError, match=r"must lie in 0\.\.2"):
        gpu.run(step_of(tiny(), times=3), requests=bad)


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="stall, lag or free"):
        open_simulated("h200", switch="slow")
    with pytest.raises(InputError, match="core_ns"):
        SwitchBehaviour(kind="lag", core_ns=float("nan"), mem_ns=0)
    with pytest.raises(InputError, match="noise kernel"):
        Noise(kernel=-0.1)
