"""Synthetic steps for the solver's benchmark: a roofline GPU, seeded, no measured numbers.

Durations are log-normal with 1, 30 and 300 us at the 10th, 50th and 90th percentile, the spread
of a GPT-3-XL-width training step on an H200. A kernel is part compute, part memory; its time is
the 4-norm of the two plus a fixed launch part, its power static + core V^2 f + memory, V flat below
a knee. ``layers`` repeats a layer of 90 signatures; otherwise every kernel has its own. ``drift``
lets the compute part wander over stretches of some 300 kernels, as phases of a step do, so that
even slow switches can pay; otherwise each kernel's is drawn alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clockwright.data.units import ClockPair
from clockwright.optimizer import Lag, Problem, SwitchModel

__all__ = ["lag_instance", "make_problem"]

_LAYER_KERNELS = 90
_DRIFT_KERNELS = 300


def make_problem(
    kernels: int,
    pairs: int,
    switch: SwitchModel,
    *,
    seed: int,
    layers: bool = False,
    drift: bool = False,
    cyclic: bool = True,
) -> Problem:
    """A step of ``kernels`` kernels at ``pairs`` clock pairs; the baseline is the top pair."""
    rng = np.random.default_rng(seed)
    n_mem = next((m for m in (5, 4, 2) if pairs % m == 0 and pairs // m >= 8), 1)
    core = np.linspace(345.0, 1980.0, pairs // n_mem).round()
    mem = np.linspace(3201.0, 800.0, n_mem).round()
    grid = [ClockPair(int(c), int(m)) for m in mem for c in core]
    n_rows = min(kernels, _LAYER_KERNELS) if layers else kernels
    time_ns, energy_mj = _roofline(rng, n_rows, core, mem, drift)
    row = (np.arange(kernels) % n_rows).astype(np.int32)
    base = len(core) - 1
    launches = np.bincount(row, minlength=n_rows)
    return Problem(
        tuple(grid),
        time_ns,
        energy_mj,
        row,
        baseline_time_ns=float(launches @ time_ns[:, base]),
        baseline_energy_mj=float(launches @ energy_mj[:, base]),
        baseline_pair=grid[base],
        switch=switch,
        cyclic=cyclic,
    )


def lag_instance(
    kernels: int,
    pairs: int,
    *,
    seed: int,
    core_ns: float = 5e6,
    mem_ns: float = 15e6,
    min_dwell_ns: float = 20e6,
    drift: bool = False,
) -> Problem:
    """A step whose switches lag: a core part and a memory part of the latency, and a dwell."""
    problem = make_problem(kernels, pairs, Lag(0.0, min_dwell_ns), seed=seed, drift=drift)
    core = np.array([pair.core_mhz for pair in problem.pairs])
    mem = np.array([pair.mem_mhz for pair in problem.pairs])
    latency_ns = core_ns * (core[:, None] != core) + mem_ns * (mem[:, None] != mem)
    return replace(problem, switch=Lag(latency_ns, min_dwell_ns))


def _roofline(
    rng: np.random.Generator, rows: int, core: np.ndarray, mem: np.ndarray, drift: bool
) -> tuple[np.ndarray, np.ndarray]:
    low = rng.lognormal(np.log(30e3), np.log(30) / 1.2816, rows)
    high = rng.lognormal(np.log(30e3), np.log(10) / 1.2816, rows)
    duration_ns = np.clip(np.where(rng.random(rows) < 0.5, np.minimum(low, 30e3), high), 800, 2e6)
    compute = (_drifting(rng, rows) if drift else rng.beta(0.7, 0.7, rows))[:, None, None]
    slower_core = (core[-1] / core)[None, None, :]
    slower_mem = (mem[0] / mem)[None, :, None]
    shape = ((compute * slower_core) ** 4 + ((1 - compute) * slower_mem) ** 4) ** 0.25
    shape /= (compute**4 + (1 - compute) ** 4) ** 0.25
    fixed_ns = np.minimum(600.0, duration_ns / 2)[:, None, None]
    time_ns = fixed_ns + (duration_ns[:, None, None] - fixed_ns) * shape
    volt = np.maximum(0.72, 0.72 + 0.4 * (core - 1200) / 800)[None, None, :]
    activity = rng.uniform(0.4, 1.0, rows)[:, None, None] / shape
    core_w = 330 * activity * volt**2 * (core / core[-1])[None, None, :]
    mem_w = (25 + 55 * (mem / mem[0]))[None, :, None] * (0.4 + 0.6 * (1 - compute))
    power_w = 75 + core_w + mem_w
    spread = np.exp(rng.normal(0, 0.003, time_ns.shape))
    time_ns = (time_ns * np.exp(rng.normal(0, 0.002, time_ns.shape))).reshape(rows, -1)
    return time_ns, time_ns * (power_w * spread).reshape(rows, -1) * 1e-6


def _drifting(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(rows,) compute parts: the same distribution as drawn alone, ordered by a slow wave."""
    noise = rng.normal(0, 1, rows)
    wave = np.empty(rows)
    keep = np.exp(-1 / _DRIFT_KERNELS)
    level = noise[0]
    for k in range(rows):
        level = keep * level + np.sqrt(1 - keep**2) * noise[k]
        wave[k] = level
    alone = np.sort(rng.beta(0.7, 0.7, rows))
    part = np.empty(rows)
    part[np.argsort(wave + 0.5 * rng.normal(0, 1, rows), kind="stable")] = alone
    return part
