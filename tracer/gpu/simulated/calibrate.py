"""Fits the clock model to a table of measured kernels: terms of each kernel, terms of the GPU.

Public tables say how long a kernel took and what it drew at each clock pair, not how much work it
did. So each kernel's terms are fitted together with those all kernels share: first times (core
cycles, bytes, latencies; share of the bus at each memory clock, overlap, lowest real core clock),
then powers (core and memory energy; board, clock tree, memory clocks, voltage curve), by robust
least squares on the logarithm, with the sparsity of one kernel's rows not touching another's terms.
Core and memory energy of a kernel enter power linearly and are solved for at every step.

Bytes come out in units of the bus: a byte the table's kernel moved at an efficiency of its own is
counted as more bytes. Voltage is relative: only its square times an energy shows in power, so the
lowest voltage is held at the specification's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, nnls
from scipy.sparse import lil_matrix

from .model import kernel_time_ns, steady_power_w
from .spec import GpuSpec
from .terms import KernelTerms

__all__ = ["MeasuredRows", "fit_kernel_terms", "fit_spec", "predict"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_ROBUST_SCALE = 0.03
_TIME_TERMS = 4
_MIN_LOG, _MAX_LOG = -40.0, 60.0


@dataclass(frozen=True)
class MeasuredRows:
    """N measured cells; every array is (N,).

    Attributes:
        kernel: int64, which kernel, 0..S-1.
        core_mhz: core clock that ran.
        mem_mhz: memory clock that ran.
        time_ns: duration of a launch.
        power_w: mean power of a long loop of it.
    """

    kernel: Ints
    core_mhz: Floats
    mem_mhz: Floats
    time_ns: Floats
    power_w: Floats

    def where(self, keep: Bools) -> MeasuredRows:
        """The rows that ``keep`` marks."""
        return MeasuredRows(*(getattr(self, entry.name)[keep] for entry in fields(self)))


def predict(spec: GpuSpec, terms: KernelTerms, rows: MeasuredRows) -> tuple[Floats, Floats]:
    """Modelled time (ns) and energy (mJ) of each row, (N,), at the clocks that ran."""
    mine = terms.take(rows.kernel)
    time_ns = kernel_time_ns(mine, spec, rows.core_mhz, rows.mem_mhz)
    return time_ns, time_ns * steady_power_w(
        mine, spec, rows.core_mhz, rows.mem_mhz, time_ns
    ) * 1e-6


def _pack_time(terms: KernelTerms) -> Floats:
    columns = (terms.latency_ns, terms.latency_cycles, terms.core_cycles, terms.dram_bytes)
    return np.log(np.maximum(np.stack(columns, axis=1), 1e-15)).ravel()


def _unpack(base: KernelTerms, time_logs: Floats) -> KernelTerms:
    values = np.exp(np.clip(time_logs, _MIN_LOG, _MAX_LOG))
    latency_ns, cycles, core, dram = values.reshape(-1, _TIME_TERMS).T
    return replace(
        base, latency_ns=latency_ns, latency_cycles=cycles, core_cycles=core, dram_bytes=dram
    )


def _sparsity(kernel: Ints, kernels: int, per_kernel: int, shared: int) -> lil_matrix:
    """Which residual depends on which parameter: shared ones first, then each kernel's own."""
    pattern = lil_matrix((len(kernel), shared + kernels * per_kernel), dtype=np.int8)
    pattern[:, :shared] = 1
    rows = np.arange(len(kernel))
    for term in range(per_kernel):
        pattern[rows, shared + kernel * per_kernel + term] = 1
    return pattern


def _start_terms(rows: MeasuredRows, spec: GpuSpec) -> KernelTerms:
    """Time terms of each kernel alone: the best of fits from a few typical mixtures."""
    count = int(rows.kernel.max()) + 1
    bus = spec.rates.dram_bytes_per_mem_cycle * spec.default_mem_mhz * 1e-3
    top_ghz = spec.top_core_mhz * 1e-3
    empty = KernelTerms.zeros(1)
    found = np.zeros((count, _TIME_TERMS))
    for kernel in range(count):
        mine = rows.where(rows.kernel == kernel)
        alone = replace(mine, kernel=np.zeros_like(mine.kernel))
        residual = partial(_time_residual, base=empty, spec=spec, rows=alone)
        fits = [
            least_squares(
                residual,
                np.log(alone.time_ns.min() * np.array([latency, cycles * top_ghz, core, dram])),
                method="lm",
                max_nfev=300,
            )
            for latency, cycles, core, dram in (
                (0.05, 0.05, 0.9 * top_ghz, 0.5 * bus),
                (0.05, 0.05, 0.3 * top_ghz, 0.9 * bus),
                (0.30, 0.40, 0.1 * top_ghz, 0.1 * bus),
            )
        ]
        found[kernel] = min(fits, key=lambda fit: float(fit.cost)).x
    return _unpack(KernelTerms.zeros(count), found.ravel())


def _time_residual(logs: Floats, *, base: KernelTerms, spec: GpuSpec, rows: MeasuredRows) -> Floats:
    terms = _unpack(base, logs).take(rows.kernel)
    return np.log(kernel_time_ns(terms, spec, rows.core_mhz, rows.mem_mhz) / rows.time_ns)


def _fit_own_power(terms: KernelTerms, spec: GpuSpec, rows: MeasuredRows) -> KernelTerms:
    """Core energy, memory energy and busy share of each kernel, by non-negative least squares.

    Given the shared terms, power is linear in the three, so they need no search. Residuals are
    relative to the measured power.
    """
    names = ("core_mj_per_v2", "dram_mj", "busy_share")
    count = len(terms)
    bare = replace(terms, **{name: np.zeros(count) for name in names})
    clocks = (rows.core_mhz, rows.mem_mhz, rows.time_ns)
    base_w = steady_power_w(bare.take(rows.kernel), spec, *clocks)
    units = (replace(bare, **{name: np.ones(count)}).take(rows.kernel) for name in names)
    slopes = [(steady_power_w(unit, spec, *clocks) - base_w) / rows.power_w for unit in units]
    design, target = np.stack(slopes, axis=1), 1.0 - base_w / rows.power_w
    found = np.zeros((count, len(names)))
    for kernel in range(count):
        mine = rows.kernel == kernel
        scale = design[mine].max(axis=0)
        found[kernel] = nnls(design[mine] / scale, target[mine])[0] / scale
    return replace(terms, **dict(zip(names, found.T, strict=True)))


def fit_kernel_terms(rows: MeasuredRows, spec: GpuSpec) -> KernelTerms:
    """Each kernel's terms, the GPU's own being known; every kernel 0..S-1 needs rows."""
    return _fit_own_power(_start_terms(rows, spec), spec, rows)


def _with_time(spec: GpuSpec, shared: Floats) -> GpuSpec:
    """Shared time terms: overlap, lowest real core clock, share of the bus but at the default."""
    mems = spec.mem_clocks_mhz[1:]
    reach = dict(spec.rates.dram_efficiency)
    full = reach[spec.default_mem_mhz]
    reach |= {mem: full * share for mem, share in zip(mems, shared[2:], strict=True)}
    rates = replace(spec.rates, overlap=float(shared[0]), dram_efficiency=reach)
    return replace(spec, rates=rates, core_floor_mhz=float(shared[1]))


def _with_power(spec: GpuSpec, shared: Floats) -> GpuSpec:
    """Shared power terms: board, clock tree, knee, slope, curve, then the memory clocks."""
    lowest = min(spec.power.mem_clock_w, key=lambda mem: spec.power.mem_clock_w[mem])
    mems = [mem for mem in spec.mem_clocks_mhz if mem != lowest]
    mem_w = {lowest: spec.power.mem_clock_w[lowest], **dict(zip(mems, shared[5:], strict=True))}
    board_w, clock_w, knee_mhz, slope, curve = (float(value) for value in shared[:5])
    power = replace(
        spec.power,
        board_w=board_w,
        clock_w=clock_w,
        knee_mhz=knee_mhz,
        slope_v_per_ghz=slope,
        curve_v_per_ghz2=curve,
        mem_clock_w={mem: float(watts) for mem, watts in mem_w.items()},
    )
    return replace(spec, power=power)


def fit_spec(
    rows: MeasuredRows, spec: GpuSpec, *, knee_range_mhz: tuple[float, float]
) -> tuple[GpuSpec, KernelTerms]:
    """Fit the GPU's shared terms and each kernel's own to measured rows.

    Args:
        rows: measured cells that no power cap held back.
        spec: where to start; terms that a table cannot tell apart (lowest voltage, leakage, the
            power of the lowest memory clock) are kept.
        knee_range_mhz: where the voltage knee may lie.

    Returns:
        The fitted specification, and the terms of the S kernels.
    """
    terms = _start_terms(rows, spec)
    mems = len(spec.mem_clocks_mhz) - 1
    floor = spec.core_floor_mhz
    own_bounds = (
        np.array([1.5, max(floor - 40.0, 0.0), *[0.5] * mems]),
        np.array([20.0, floor + 40.0 if floor else 1.0, *[1.5] * mems]),
    )
    start = np.concatenate([[spec.rates.overlap, floor], np.ones(mems), _pack_time(terms)])

    def time_residual(x: Floats) -> Floats:
        mine = _with_time(spec, x[: 2 + mems])
        return _time_residual(x[2 + mems :], base=terms, spec=mine, rows=rows)

    own = len(start) - len(own_bounds[0])
    low = np.concatenate([own_bounds[0], np.full(own, _MIN_LOG)])
    high = np.concatenate([own_bounds[1], np.full(own, _MAX_LOG)])
    x = least_squares(
        time_residual,
        np.clip(start, low + 1e-9, high - 1e-9),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_ROBUST_SCALE,
        jac_sparsity=_sparsity(rows.kernel, len(terms), _TIME_TERMS, 2 + mems),
        x_scale="jac",
        max_nfev=40,
    ).x
    spec, terms = _with_time(spec, x[: 2 + mems]), _unpack(terms, x[2 + mems :])

    spec = _fit_shared_power(terms, spec, rows, knee_range_mhz)
    return spec, _fit_own_power(terms, spec, rows)


def _fit_shared_power(
    terms: KernelTerms, spec: GpuSpec, rows: MeasuredRows, knee_range_mhz: tuple[float, float]
) -> GpuSpec:
    """Board, clock tree, voltage curve and memory clocks; kernels' own terms follow them."""
    mems = len(spec.mem_clocks_mhz) - 1
    low = np.array([5.0, 1.0, knee_range_mhz[0], 0.0, 0.0, *[0.0] * mems])
    high = np.array([80.0, 200.0, knee_range_mhz[1], 2.0, 2.0, *[150.0] * mems])
    power = spec.power
    lowest = min(power.mem_clock_w, key=lambda mem: power.mem_clock_w[mem])
    mem_w = [power.mem_clock_w[mem] for mem in spec.mem_clocks_mhz if mem != lowest]
    start = np.array(
        [
            power.board_w,
            power.clock_w,
            power.knee_mhz,
            power.slope_v_per_ghz,
            power.curve_v_per_ghz2,
            *mem_w,
        ]
    )

    def residual(shared: Floats) -> Floats:
        mine = _with_power(spec, shared)
        own = _fit_own_power(terms, mine, rows).take(rows.kernel)
        modelled_w = steady_power_w(own, mine, rows.core_mhz, rows.mem_mhz, rows.time_ns)
        return np.asarray(np.log(modelled_w / rows.power_w))

    solution = least_squares(
        residual,
        np.clip(start, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_ROBUST_SCALE,
        x_scale=np.array([10.0, 10.0, 100.0, 0.3, 0.3, *[10.0] * mems]),
    )
    return _with_power(spec, solution.x)
