"""Operators taken apart from mixes, and kernels' responses to the clock: known truths recovered."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from clockwright.data.errors import DeviceError
from clockwright.tracer.measure.sensed_fit import (
    MixPoint,
    _Design,
    fit_mix_times,
    fit_mixes,
    fit_response,
    point_of,
)

ENERGY_MJ = np.array([40.0, 8.0, 20.0, 1.0])
EXPONENT = np.array([1.2, 0.4, 0.8, 0.5])
WAIT_W, REFERENCE_MHZ = 130.0, 1800.0


def mixes(rng, noise=0.0):
    """Each operator alone, waiting, beside the hungriest, and in random mixes; clocks to match."""
    points = []
    for number in range(60):
        if number < 4:
            calls = {number: 1000}
        elif number < 12:
            calls = {number % 4: 500, 0: 500}
        else:
            calls = {o: int(n) for o, n in enumerate(rng.integers(0, 800, 4)) if n}
        core = float(rng.uniform(1450, 1980))
        cycles = int(rng.choice([0, 200_000_000]))
        x = core / REFERENCE_MHZ
        waited_ns = cycles / core * 1e3
        energy = sum(n * ENERGY_MJ[o] * x ** EXPONENT[o] for o, n in calls.items())
        energy += WAIT_W * x**0.5 * waited_ns * 1e-6
        energy *= 1 + noise * rng.standard_normal()
        points.append(MixPoint(calls, cycles, core, 1e9 + waited_ns, energy, 55.0, noise or 1e-4))
    points.append(MixPoint({0: 1}, 10**9, 1800.0, 1e9 / 1.8, WAIT_W * 1e3 / 1.8, 55.0, 1e-3))
    return points


def test_energies_and_exponents_are_recovered():
    fit = fit_mixes(mixes(np.random.default_rng(0)))
    for operator, (energy, exponent) in enumerate(zip(ENERGY_MJ, EXPONENT, strict=True)):
        got, _ = fit.call(operator, REFERENCE_MHZ, 55.0)
        assert got == pytest.approx(energy, rel=5e-3)
        assert fit.exponent[operator] == pytest.approx(exponent, abs=0.05)
    assert fit.wait_w(1800.0) == pytest.approx(WAIT_W, rel=0.02)
    assert np.abs(fit.residuals).max() < 5e-3


def test_stated_errors_cover_what_noise_does():
    inside = []
    for seed in range(25):
        fit = fit_mixes(mixes(np.random.default_rng(seed), noise=0.01))
        for operator in range(3):
            got, error = fit.call(operator, REFERENCE_MHZ, 55.0)
            inside.append(abs(got / ENERGY_MJ[operator] - 1) <= 2 * error)
    assert np.mean(inside) > 0.9


def test_the_jacobian_is_that_of_the_residuals():
    points = mixes(np.random.default_rng(1))
    design = _Design(points, (0, 1, 2, 3))
    at = design.start() + 0.05
    numeric = approx_fprime(at, design.residuals, 1e-7)
    np.testing.assert_allclose(design.jacobian(at), numeric, rtol=2e-3, atol=2e-2)


def test_fewer_mixes_than_operators_are_refused():
    with pytest.raises(DeviceError, match="3 mixes were measured for 4 operators"):
        fit_mixes([MixPoint(dict.fromkeys(range(4), 1), 0, 1800.0, 1e9, 1.0, None, 0.01)] * 3)


def timed_mixes(rng):
    """Operators of which one follows the clock, one half of it, one not at all; and waits."""
    points = []
    for number in range(40):
        calls = {o: int(n) for o, n in enumerate(rng.integers(0, 800, 3)) if n}
        calls = {number: 500} if number < 3 else calls or {0: 1}
        core = float(rng.uniform(1450, 1980))
        cycles = int(rng.choice([0, 100_000_000]))
        busy_ns = sum(
            n * TIME_NS[o] * (core / REFERENCE_MHZ) ** TIME_EXPONENT[o] for o, n in calls.items()
        )
        waited_ns = cycles / core * 1e3
        points.append(MixPoint(calls, cycles, core, busy_ns + waited_ns, 1.0, 55.0, 1e-3))
    points.append(MixPoint({}, 10**9, 1800.0, 1e9 / 1.8, 1.0, 55.0, 1e-3))
    return points


TIME_NS, TIME_EXPONENT = (3e5, 1e5, 2e4), (-1.0, -0.5, 0.0)


def test_times_are_taken_apart_whatever_was_waited():
    fit = fit_mix_times(timed_mixes(np.random.default_rng(0)))
    for operator, (time_ns, exponent) in enumerate(zip(TIME_NS, TIME_EXPONENT, strict=True)):
        for clock in (1500.0, 1800.0, 1950.0):
            truth = time_ns * (clock / REFERENCE_MHZ) ** exponent
            got, error = fit.call(operator, clock)
            assert got == pytest.approx(truth, rel=5e-3)
            assert 0 < error < 0.02


def test_times_of_too_few_mixes_are_refused():
    points = [MixPoint(dict.fromkeys(range(4), 1), 0, 1800.0, 1e9, 1.0, None, 0.01)] * 3
    with pytest.raises(DeviceError, match="3 mixes were measured for 4 operators"):
        fit_mix_times(points)


def record(sensed, reported):
    window = {"core_mhz": reported, "power_w": 500.0, "power_error_w": 1.0, "temperature_c": None}
    return {
        "sensed_mhz": sensed, "window": window, "time_ns": 1e7, "time_sd_ns": 1e5,
        "calls": {"3": 8}, "wait_cycles": 5, "plan": {"loops": {"3": 1}},
    }  # fmt: skip


def test_a_clock_no_gpu_of_the_kind_runs_at_is_not_believed():
    assert point_of(record(1800.0, 1790.0), 1980).core_mhz == pytest.approx(1795)
    assert point_of(record(2645.0, 1790.0), 1980).core_mhz == 1790
    assert point_of(record(1800.0, None), 1980).core_mhz == 1800
    assert point_of(record(1800.0, 1790.0), 1980).energy_mj == pytest.approx(5000.0)
    with pytest.raises(DeviceError, match="neither a sensed nor a reported clock"):
        point_of(record(None, None), 1980)


def test_a_response_is_recovered_and_its_interval_covers():
    inside = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        clock = rng.uniform(1450, 1980, 60)
        duration = 1e5 * (clock / 1800) ** -0.7 * np.exp(0.01 * rng.standard_normal(60))
        found = fit_response(clock, duration)
        inside.append(found.low <= -0.7 <= found.high)
        assert found.at(1800) == pytest.approx(1e5, rel=0.01)
        assert found.sd_at(1500) > found.sd_at(found.reference_mhz)
    assert np.mean(inside) > 0.88


def test_one_clock_tells_no_slope():
    found = fit_response(np.full(9, 1700.0), np.full(9, 5e4))
    assert (found.exponent, found.at(1980.0)) == (0.0, pytest.approx(5e4))


def test_a_few_wild_points_do_not_bend_the_slope():
    clock = np.linspace(1450, 1980, 40)
    duration = 1e5 * (clock / 1800) ** -1.0
    duration[::8] *= 3
    assert fit_response(clock, duration).exponent == pytest.approx(-1.0, abs=0.1)


def test_no_sensed_clock_is_refused():
    with pytest.raises(DeviceError, match="no clock could be sensed"):
        fit_response(np.array([np.nan]), np.array([1e5]))


@given(st.floats(-1.15, 0.25), st.floats(1e3, 1e7))
def test_any_exponent_is_recovered_without_noise(exponent, scale_ns):
    clock = np.linspace(1450, 1980, 12)
    found = fit_response(clock, scale_ns * (clock / 1800) ** exponent)
    assert found.exponent == pytest.approx(exponent, abs=1e-6)
    assert found.at(1800) == pytest.approx(scale_ns, rel=1e-6)
    assert (found.n, found.range_mhz) == (12, (1450, 1980))


@pytest.mark.parametrize("steep", [-1.6, 0.9])
def test_a_slope_no_kernel_has_is_held_back_and_its_interval_says_so(steep):
    clock = np.linspace(1450, 1980, 30)
    found = fit_response(clock, 1e5 * (clock / 1800) ** steep)
    assert -1.2 <= found.exponent <= 0.3
    assert found.low <= found.exponent <= found.high
    assert found.low <= steep + 1e-9 and found.high >= steep - 1e-9
    assert found.sd_at(1500.0) > 0.01 * found.at(1500.0)


def test_unknown_clocks_and_times_are_left_out():
    clock = np.array([1500.0, np.nan, 1700.0, 1900.0, 1600.0])
    duration = np.array([1e5, 1e9, 1e5, 0.0, np.nan])
    assert fit_response(clock, duration).n == 2


def test_heat_is_told_from_the_clock():
    rng = np.random.default_rng(4)
    points = [replace(p, temperature_c=float(rng.uniform(40, 70))) for p in mixes(rng)]
    mean_c = np.mean([p.temperature_c for p in points])
    warm = [replace(p, energy_mj=p.energy_mj * (1 + 0.002 * (p.temperature_c - mean_c)))
            for p in points]  # fmt: skip
    fit = fit_mixes(warm)
    assert fit.temperature_per_c == pytest.approx(0.002, abs=2e-4)
    cold, hot = (fit.call(0, 1800.0, fit.temperature_c + by)[0] for by in (-10, 10))
    assert hot / cold == pytest.approx(1.02 / 0.98, abs=5e-3)


def test_mixes_of_unknown_temperature_are_fitted_without():
    points = [replace(p, temperature_c=None) for p in mixes(np.random.default_rng(0))]
    fit = fit_mixes(points)
    assert fit.temperature_per_c == 0
    assert fit.call(0, REFERENCE_MHZ, fit.temperature_c)[0] == pytest.approx(40.0, rel=5e-3)
