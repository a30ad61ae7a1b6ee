"""The fit finds what made the data, and the shipped terms describe tables they should."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clockwright.tracer.gpu.simulated import SPECS
from clockwright.tracer.gpu.simulated.calibrate import (
    MeasuredRows,
    fit_kernel_terms,
    fit_spec,
    predict,
)
from clockwright.tracer.gpu.simulated.terms import KernelTerms

ROOT = Path(__file__).resolve().parents[4]
TABLE = (
    ROOT.parent
    / "shared/datasets/apAdomas-GPU-FREQUENCY-DVFS_RTX3080Ti/kernel_clock_sweep_rtx3080ti.csv"
)


def made_up(spec, kernels=6, seed=0):
    """Rows that the model itself made, at the grid of a real sweep."""
    rng = np.random.default_rng(seed)
    time_us = 10 ** rng.uniform(1, 3, kernels)
    core_share, mem_share = rng.uniform(0.1, 1, (2, kernels))
    terms = KernelTerms(
        core_cycles=time_us * 1500 * core_share,
        dram_bytes=time_us * 96 * 9501 * mem_share,
        latency_ns=rng.uniform(500, 3000, kernels),
        latency_cycles=rng.uniform(500, 3000, kernels),
        core_mj_per_v2=time_us * rng.uniform(0.03, 0.15, kernels),
        dram_mj=time_us * rng.uniform(0.01, 0.06, kernels),
        busy_share=rng.uniform(0.4, 1.0, kernels),
    )
    cores = np.array([210.0, 630, 1050, 1470, 1740, 1890, 1950])
    grid = np.array(
        [(core, mem) for core in cores for mem in (810.0, 5001, 9251, 9501)] + [(210.0, 405.0)]
    )
    kernel = np.repeat(np.arange(kernels), len(grid))
    core, mem = np.tile(grid, (kernels, 1)).T
    blank = MeasuredRows(kernel, core, mem, np.ones(len(core)), np.ones(len(core)))
    time_ns, energy_mj = predict(spec, terms, blank)
    return dataclasses.replace(blank, time_ns=time_ns, power_w=energy_mj / time_ns * 1e6), terms


def test_the_fit_recovers_the_gpu_that_made_the_rows():
    start = SPECS["rtx3080ti"]
    truth = dataclasses.replace(
        start,
        core_floor_mhz=260.0,
        rates=dataclasses.replace(
            start.rates,
            overlap=5.0,
            dram_efficiency=start.rates.dram_efficiency | {5001: 0.88, 810: 0.85},
        ),
        power=dataclasses.replace(
            start.power, board_w=30.0, slope_v_per_ghz=0.9, curve_v_per_ghz2=1.2,
            mem_clock_w=start.power.mem_clock_w | {9501: 50.0},
        ),
    )  # fmt: skip
    rows, _ = made_up(truth)
    fitted, terms = fit_spec(rows, start, knee_range_mhz=(1590, 1610))
    assert fitted.core_floor_mhz == pytest.approx(260, rel=0.01)
    assert fitted.rates.dram_efficiency[810] == pytest.approx(0.85, rel=0.02)
    assert fitted.power.mem_clock_w[9501] == pytest.approx(50, abs=2)
    assert fitted.power.volts(1900.0) == pytest.approx(truth.power.volts(1900.0), rel=0.02)
    time_ns, energy_mj = predict(fitted, terms, rows)
    true_mj = rows.time_ns * rows.power_w * 1e-6
    assert np.quantile(np.abs(time_ns / rows.time_ns - 1), 0.9) < 0.01
    assert np.quantile(np.abs(energy_mj / true_mj - 1), 0.9) < 0.02


def test_known_gpu_and_some_pairs_predict_the_other_pairs():
    spec = SPECS["rtx3080ti"]
    rows, _ = made_up(spec, seed=1)
    shown = np.arange(len(rows.kernel)) % 3 != 1
    terms = fit_kernel_terms(rows.where(shown), spec)
    hidden = rows.where(~shown)
    time_ns, energy_mj = predict(spec, terms, hidden)
    assert np.median(np.abs(time_ns / hidden.time_ns - 1)) < 0.005
    true_mj = hidden.time_ns * hidden.power_w * 1e-6
    assert np.median(np.abs(energy_mj / true_mj - 1)) < 0.01


@pytest.mark.skipif(not TABLE.is_file(), reason="the public RTX 3080 Ti table is not here")
def test_shipped_terms_describe_kernels_measured_on_an_rtx_3080_ti():
    frame = pd.read_csv(TABLE, dtype={"core_mhz": str, "mem_mhz": str})
    frame = frame[(frame["core_mhz"] != "auto") & (frame["avg_power_W"] < 343)]
    names = frame["workload"] + "::" + frame["kernel"]
    frame = frame[names.isin(sorted(names.unique())[::7])]
    rows = MeasuredRows(
        kernel=pd.factorize(frame["workload"] + "::" + frame["kernel"])[0].astype(np.int64),
        core_mhz=frame["core_mhz"].astype(float).to_numpy(),
        mem_mhz=frame["mem_mhz"].astype(float).to_numpy(),
        time_ns=frame["time_per_launch_ms"].to_numpy() * 1e6,
        power_w=frame["avg_power_W"].to_numpy(),
    )
    spec = SPECS["rtx3080ti"]
    shown = frame["core_mhz"].ne("1050").to_numpy()
    terms = fit_kernel_terms(rows.where(shown), spec)
    hidden = rows.where(~shown)
    time_ns, energy_mj = predict(spec, terms, hidden)
    true_mj = hidden.time_ns * hidden.power_w * 1e-6
    assert np.median(np.abs(time_ns / hidden.time_ns - 1)) < 0.03
    assert np.median(np.abs(energy_mj / true_mj - 1)) < 0.06
