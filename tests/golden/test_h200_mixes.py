"""Energies taken apart from mixes measured on an H200 add up to the step measured on it."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from clockwright.tracer.measure.sensed_fit import fit_mix_times, fit_mixes, point_of
from clockwright.tracer.recording.costs import composed_time


@pytest.fixture(scope="module")
def raw():
    path = Path(__file__).parent / "h200-mixes.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.fixture(scope="module")
def fit(raw):
    return fit_mixes([point_of(mix, 1980) for mix in raw["mixes"]])


def test_the_parts_add_up_to_the_whole_step(raw, fit):
    for name in ("step", "again"):
        plain = raw[name]["plain"]
        window = plain["window"]
        energy = error = 0.0
        for number, loop in enumerate(raw["loops"]):
            if number in fit.operators:
                call_mj, sd = fit.call(number, window["core_mhz"], window["temperature_c"])
                energy += call_mj * loop["count"]
                error += (call_mj * sd * loop["count"]) ** 2
        # 2% was wanted; loops taken as they run are 6% off.
        assert energy == pytest.approx(plain["energy_mj"], rel=0.01)
        assert np.sqrt(error) < 0.005 * energy


def test_their_times_add_up_to_a_step_a_little_longer(raw):
    times = fit_mix_times([point_of(mix, 1980) for mix in raw["mixes"]])
    for name in ("step", "again"):
        plain = raw[name]["plain"]
        clock = plain["window"]["core_mhz"]
        time_ns, error_ns = composed_time(times, raw["loops"], clock, raw["gaps_ns"])
        # 1% was wanted; loops taken as they run are 7.7% off. The rest is none of the fit's noise.
        assert 0.01 < time_ns / plain["time_ns"] - 1 < 0.02
        assert error_ns < 0.004 * time_ns


def test_mixes_are_described_within_their_scatter(fit):
    assert np.median(np.abs(fit.residuals)) < 0.005
    assert np.quantile(np.abs(fit.residuals), 0.9) < 0.03


def test_arithmetic_costs_more_at_a_higher_clock_and_waiting_draws_little(raw, fit):
    largest = [
        fit.exponent[fit.operators.index(number)]
        for number, loop in enumerate(raw["loops"])
        if "mm.default" in loop["name"] and number in fit.operators
    ]
    assert 0.4 < np.median(largest) < 1.4
    assert 80 < fit.wait_w(1800.0) < 200
