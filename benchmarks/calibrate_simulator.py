"""Calibrates the simulated GPUs on public tables and reports the error on what the fit never saw.

Usage::

    python benchmarks/calibrate_simulator.py DATASETS [--gpu rtx3080ti|v100]

DATASETS is a folder that holds ``apAdomas-GPU-FREQUENCY-DVFS_RTX3080Ti`` and ``unified`` (see
``docs/simulator.md`` for where they come from). Prints the fitted terms, and a table of relative
errors: median and 90th percentile over cells.

Held-out pairs: the clock pairs are split in five; each fifth is predicted from a fit on the rest.
Held-out clocks: every cell at one core clock is predicted from the others, so the model has to
interpolate. Held-out kernels: shared terms come from four fifths of the kernels; the others' own
terms are then fitted to a third of their pairs and predict the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from clockwright.data.units import GOVERNOR
from clockwright.tracer.gpu.simulated import SPECS, SimulatedGpu
from clockwright.tracer.gpu.simulated.calibrate import (
    MeasuredRows,
    fit_kernel_terms,
    fit_spec,
    predict,
)
from clockwright.tracer.gpu.simulated.spec import GpuSpec
from clockwright.tracer.gpu.simulated.terms import KernelTerms

# The RTX 3080 Ti table has no core clock between 1470 and 1890 MHz, and any knee from 1500 to
# 1700 MHz fits it equally well, so the middle is taken.
KNEE_RANGE_MHZ = {"rtx3080ti": (1580.0, 1600.0), "v100": (800.0, 1250.0)}
CAP_MARGIN = 0.98
FOLDS = 5

Errors = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def load_rtx3080ti(datasets: Path) -> pd.DataFrame:
    """65 kernels at 26 pairs and under the governor, effective clocks."""
    path = datasets / "apAdomas-GPU-FREQUENCY-DVFS_RTX3080Ti" / "kernel_clock_sweep_rtx3080ti.csv"
    frame = pd.read_csv(path, dtype={"core_mhz": str, "mem_mhz": str})
    return pd.DataFrame(
        {
            "kernel": frame["workload"] + "::" + frame["kernel"],
            "core_mhz": frame["core_mhz"],
            "mem_mhz": frame["mem_mhz"],
            # Requests over what runs end at several clocks; they are one requested pair.
            "pair": np.where(
                frame["core_mhz"].isin(["1905", "1920", "1935", "1950", "1965"]),
                "top/" + frame["mem_mhz"],
                frame["core_mhz"] + "/" + frame["mem_mhz"],
            ),
            "time_ns": frame["time_per_launch_ms"] * 1e6,
            "power_w": frame["avg_power_W"],
        }
    )


def load_v100(datasets: Path) -> pd.DataFrame:
    """33 workloads at 13 core clocks; times are relative, which the fit does not mind."""
    frame = pd.read_csv(datasets / "unified" / "v100_zyj_33workloads_normalised.csv")
    core = frame["core_mhz"].astype(str)
    return pd.DataFrame(
        {
            "kernel": frame["kernel"],
            "core_mhz": core,
            "mem_mhz": "877",
            "pair": core + "/877",
            "time_ns": frame["time_ms"] * 1e6,
            "power_w": frame["power_W"],
        }
    )


LOADERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "rtx3080ti": load_rtx3080ti,
    "v100": load_v100,
}


def as_rows(frame: pd.DataFrame) -> MeasuredRows:
    """The model's view of a frame whose ``index`` column numbers the kernels."""
    return MeasuredRows(
        kernel=frame["index"].to_numpy(np.int64),
        core_mhz=frame["core_mhz"].astype(float).to_numpy(),
        mem_mhz=frame["mem_mhz"].astype(float).to_numpy(),
        time_ns=frame["time_ns"].to_numpy(np.float64),
        power_w=frame["power_w"].to_numpy(np.float64),
    )


def errors(spec: GpuSpec, terms: KernelTerms, rows: MeasuredRows) -> Errors:
    """Relative errors of time and energy of each row."""
    time_ns, energy_mj = predict(spec, terms, rows)
    true_mj = rows.time_ns * rows.power_w * 1e-6
    return np.abs(time_ns / rows.time_ns - 1.0), np.abs(energy_mj / true_mj - 1.0)


def held_out_pairs(
    key: str, frame: pd.DataFrame, groups: list[list[str]], column: str
) -> list[Errors]:
    """Fit without each group of pairs (or core clocks) in turn, and predict it."""
    found = []
    for group in groups:
        out = frame[column].isin(group)
        spec, terms = fit_spec(as_rows(frame[~out]), SPECS[key], knee_range_mhz=KNEE_RANGE_MHZ[key])
        found.append(errors(spec, terms, as_rows(frame[out])))
    return found


def held_out_kernels(key: str, frame: pd.DataFrame, rng: np.random.Generator) -> list[Errors]:
    """Shared terms from other kernels; own terms from a third of the pairs."""
    found = []
    order = rng.permutation(frame["index"].max() + 1)
    for fold in range(FOLDS):
        mine = frame["index"].isin(order[fold::FOLDS])
        rest = frame[~mine].copy()
        rest["index"] = pd.factorize(rest["kernel"])[0]
        spec, _ = fit_spec(as_rows(rest), SPECS[key], knee_range_mhz=KNEE_RANGE_MHZ[key])
        own = frame[mine].copy()
        own["index"] = pd.factorize(own["kernel"])[0]
        shown = own["pair"].isin(spread(own, 3))
        terms = fit_kernel_terms(as_rows(own[shown]), spec)
        found.append(errors(spec, terms, as_rows(own[~shown])))
    return found


def spread(frame: pd.DataFrame, every: int) -> list[str]:
    """Every ``every``-th pair in order of clocks, so that the shown ones span the range."""
    pairs = frame.drop_duplicates("pair")
    order = pairs.assign(
        mem=pairs["mem_mhz"].astype(float), core=pairs["core_mhz"].astype(float)
    ).sort_values(["core", "mem"])
    return list(order["pair"].iloc[::every])


def line(what: str, found: list[Errors]) -> str:
    """One row of the report."""
    time = np.concatenate([pair[0] for pair in found])
    energy = np.concatenate([pair[1] for pair in found])
    cells = "".join(
        f" | {100 * np.median(part):.1f}% | {100 * np.quantile(part, 0.9):.1f}%"
        for part in (time, energy)
    )
    return f"| {what} | {len(time)}{cells} |"


def governor_errors(spec: GpuSpec, terms: KernelTerms, auto: pd.DataFrame) -> Errors:
    """The driver's own clocks, cap included: predicted without having been fitted."""
    time_ns, energy_mj, _ = SimulatedGpu(spec).truth_of_terms(terms, [GOVERNOR])
    auto = auto.sort_values("index")
    true_ns = auto["time_ns"].to_numpy()
    true_mj = true_ns * auto["power_w"].to_numpy() * 1e-6
    row = auto["index"].to_numpy()
    return np.abs(time_ns[row, 0] / true_ns - 1.0), np.abs(energy_mj[row, 0] / true_mj - 1.0)


def describe(spec: GpuSpec, terms: KernelTerms) -> str:
    """The fitted terms, for `specs.py`."""
    power, rates = spec.power, spec.rates
    reach = {mem: round(float(share), 3) for mem, share in rates.dram_efficiency.items()}
    mem_w = {mem: round(float(watts), 1) for mem, watts in power.mem_clock_w.items()}
    quartiles = np.quantile(terms.busy_share, [0.1, 0.5, 0.9]).round(2).tolist()
    return (
        f"overlap {rates.overlap:.2f}, dram_efficiency {reach}, core floor "
        f"{spec.core_floor_mhz:.1f} MHz\n"
        f"board_w {power.board_w:.1f}, clock_w {power.clock_w:.1f}, mem_clock_w {mem_w}\n"
        f"knee_mhz {power.knee_mhz:.0f}, slope {power.slope_v_per_ghz:.3f} V/GHz, curve "
        f"{power.curve_v_per_ghz2:.3f} V/GHz^2\n"
        f"busy share, in units of busy_clock_w {power.busy_clock_w:.1f} "
        f"(10th, 50th, 90th percentile): {quartiles}"
    )


def report(key: str, datasets: Path) -> None:
    """Fit, hold out, print."""
    spec = SPECS[key]
    everything = LOADERS[key](datasets)
    everything["index"] = pd.factorize(everything["kernel"])[0]
    auto = everything[everything["core_mhz"] == "auto"]
    locked = everything[everything["core_mhz"] != "auto"]
    # Rows at the cap ran at clocks the table does not tell.
    frame = locked[locked["power_w"] < CAP_MARGIN * spec.power_limit_w]
    rng = np.random.default_rng(0)
    fitted, terms = fit_spec(as_rows(frame), spec, knee_range_mhz=KNEE_RANGE_MHZ[key])
    print(f"\n## {spec.name}\n\n{describe(fitted, terms)}\n")
    print("| cells | n | time median | p90 | energy median | p90 |")
    print("|---|---|---|---|---|---|")
    print(line("fitted", [errors(fitted, terms, as_rows(frame))]))
    pairs = rng.permutation(np.array(sorted(frame["pair"].unique())))
    folds = [list(pairs[fold::FOLDS]) for fold in range(FOLDS)]
    print(line("held-out pairs", held_out_pairs(key, frame, folds, "pair")))
    clocks = sorted(frame["core_mhz"].unique(), key=float)
    clocks = [clock for clock in clocks[1:-1] if (frame["core_mhz"] == clock).sum() > 30]
    inner = [clock for clock in clocks if float(clock) < 1900.0]
    found = held_out_pairs(key, frame, [[clock] for clock in inner], "core_mhz")
    print(line(f"held-out core clocks ({', '.join(inner)} MHz)", found))
    print(line("held-out kernels", held_out_kernels(key, frame, rng)))
    if len(auto):
        print(line("governor, never fitted", [governor_errors(fitted, terms, auto)]))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("datasets", type=Path)
    parser.add_argument("--gpu", choices=sorted(LOADERS), action="append")
    arguments = parser.parse_args()
    for key in arguments.gpu or sorted(LOADERS):
        report(key, arguments.datasets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
