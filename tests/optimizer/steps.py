"""Traces for the optimizer's tests: small, seeded, made of round parts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from clockwright.data.trace import Baseline, Trace
from clockwright.data.units import GOVERNOR, ClockPair


def make_trace(
    time_ns,
    energy_mj,
    rows,
    pairs,
    *,
    sd=None,
    n=None,
    starts=None,
    durations=None,
    streams=None,
    phases=None,
    modules=None,
    launches=None,
    idle_power_w=None,
    switches=None,
    semantic=None,
    cyclic=True,
    baseline=None,
) -> Trace:
    """A trace of (S, F) cells; the timeline runs back to back at the first pair by default."""
    time_ns, energy_mj = np.asarray(time_ns, float), np.asarray(energy_mj, float)
    n_rows, n_pairs = time_ns.shape
    kernels = len(rows)
    if durations is None:
        durations = np.rint(time_ns[rows, 0]).astype("int64")
    if starts is None:
        starts = np.concatenate([[0], np.cumsum(durations)[:-1]]).astype("int64")
    profile = pd.DataFrame(
        {
            "signature": np.repeat(np.arange(n_rows), n_pairs),
            "pair": np.tile(np.arange(n_pairs), n_rows),
            "duration_ns": time_ns.ravel(),
            "energy_mj": energy_mj.ravel(),
            "provenance": "measured",
        }
    )
    if sd is not None:
        profile["duration_sd_ns"], profile["energy_sd_mj"] = sd[0].ravel(), sd[1].ravel()
    if n is not None:
        profile["n"] = n
    table = pd.DataFrame(
        {
            "pair": range(n_pairs),
            "core_mhz": pd.array([pair.core_mhz for pair in pairs], dtype="Int32"),
            "mem_mhz": pd.array([pair.mem_mhz for pair in pairs], dtype="Int32"),
            "provenance": "measured",
        }
    )
    if idle_power_w is not None:
        table["idle_power_w"] = idle_power_w
    timeline = pd.DataFrame(
        {
            "index": range(kernels),
            "stream": 7 if streams is None else streams,
            "start_ns": starts,
            "duration_ns": durations,
            "signature": rows,
            "launches": 1 if launches is None else launches,
            "phase": "forward" if phases is None else phases,
        }
    )
    if modules is not None:
        timeline["module"] = pd.array(modules, dtype="string")
    return Trace(
        gpu={"name": "test GPU", "simulated": False},
        workload={"name": "test step"},
        provenance="measured",
        timeline=timeline,
        signatures=pd.DataFrame(
            {"signature": range(n_rows), "name": [f"kernel{row}" for row in range(n_rows)]}
        ),
        pairs=table,
        profile=profile,
        baseline=baseline or Baseline(pairs[0], None, None),
        switches=switches,
        switch_semantic=semantic,
        cyclic=cyclic,
    ).checked()


PAIRS = (GOVERNOR, ClockPair(1800, 9000), ClockPair(1200, 9000), ClockPair(1800, 5000))


def random_trace(seed: int, kernels: int = 12, signatures: int = 5, **more) -> Trace:
    """Compute- and memory-bound kernels whose cells are a plausible roofline."""
    rng = np.random.default_rng(seed)
    base_ns = rng.uniform(1e4, 2e5, signatures)[:, None]
    compute = rng.uniform(0, 1, signatures)[:, None]
    slower = np.array([1.0, 1.0, 1.5, 1.0])
    memory = np.array([1.0, 1.0, 1.0, 1.8])
    time_ns = base_ns * np.maximum(compute * slower, (1 - compute) * memory)
    time_ns /= np.maximum(compute, 1 - compute)
    power_w = np.array([300.0, 290.0, 190.0, 240.0])
    energy_mj = time_ns * power_w * 1e-6 * rng.uniform(0.9, 1.1, time_ns.shape)
    rows = rng.integers(0, signatures, kernels)
    return make_trace(time_ns, energy_mj, rows, PAIRS, **more)
