"""A simulated GPU: the clock model behind the `Gpu` protocol, on virtual time.

`SimulatedGpu.truth` is what a noiseless, endless loop of one kernel would show;
`SimulatedGpu.run` plays a whole step with noise, switches, governor and heat. Every number it gives
is modelled; ``docs/simulator.md`` says against what it was checked and how far off it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ....data.errors import InputError, NotSupportedError
from ....data.units import GOVERNOR, ClockPair
from ...work import KernelWork, StepWork
from ..protocol import GpuInfo
from . import engine
from . import places as at
from .behaviour import Faults, Noise
from .model import (
    ClockTables,
    build_tables,
    clock_index,
    highest_core_index,
    idle_tables,
)
from .result import SimulatedRun
from .spec import GpuSpec
from .specs import spec_named
from .switching import SwitchBehaviour
from .terms import KernelTerms, estimate_terms
from .virtual import Axes, VirtualGpu

__all__ = ["SimulatedGpu", "open_simulated"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_KEPT_TABLES = 8
_STALL = SwitchBehaviour(kind="stall", core_ns=20e3, mem_ns=60e3, spread=0.1)


class SimulatedGpu(VirtualGpu):
    """One simulated GPU; implements `clockwright.tracer.gpu.protocol.Gpu`. See `open_simulated`."""

    def __init__(
        self,
        spec: GpuSpec,
        *,
        seed: int = 0,
        noise: Noise | None = None,
        switch: SwitchBehaviour | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.spec = spec
        idle_w, leak_w_per_c = idle_tables(spec)
        super().__init__(
            GpuInfo(
                name=f"{spec.name} (simulated)",
                uuid=f"SIM-{spec.key}-{seed}",
                driver="simulated",
                power_limit_w=spec.power_limit_w,
                default_power_limit_w=spec.power_limit_w,
                power_limit_range_w=spec.power_limit_range_w,
                memory_bytes=spec.memory_bytes,
                simulated=True,
            ),
            Axes(
                core_mhz=np.array(spec.core_clocks_mhz, dtype=np.float64),
                mem_mhz=np.array(spec.mem_clocks_mhz, dtype=np.float64),
                idle_w=idle_w,
                leak_w_per_c=leak_w_per_c,
                settings=_settings(spec),
            ),
            switch=spec.switch if switch is None else switch,
            noise=Noise() if noise is None else noise,
            faults=Faults() if faults is None else faults,
            seed=seed,
            mem_lockable=spec.mem_lockable,
            energy_read_ns=spec.energy_read_ns,
        )
        self._tables: dict[tuple[KernelWork, ...], ClockTables] = {}

    def pairs(self) -> tuple[ClockPair, ...]:
        """Every supported pair, memory clock descending, then core clock descending."""
        return self.spec.pairs()

    def sweep_pairs(self) -> tuple[ClockPair, ...]:
        """The default sweep's subset of `pairs`, same order; the governor is not among them."""
        return self.spec.sweep_pairs()

    def truth(
        self, work: KernelWork, pair: ClockPair, *, temperature_c: float | None = None
    ) -> tuple[float, float, ClockPair]:
        """Noiseless duration (ns), energy (mJ) and the pair that really runs, for one kernel.

        The kernel repeats alone for ever, so the power cap has settled. Faults are left out.

        Raises:
            InputError: the pair is not supported.
        """
        time_ns, energy_mj, core_mhz = self.truth_table([work], [pair], temperature_c=temperature_c)
        _, mem = self._index(pair)
        runs = ClockPair(int(core_mhz[0, 0]), self.spec.mem_clocks_mhz[mem])
        return float(time_ns[0, 0]), float(energy_mj[0, 0]), runs

    def truth_table(
        self,
        works: Sequence[KernelWork],
        pairs: Sequence[ClockPair],
        *,
        temperature_c: float | None = None,
    ) -> tuple[Floats, Floats, Ints]:
        """`truth` for S kernels at F pairs.

        Args:
            works: S kernels.
            pairs: F pairs; `GOVERNOR` is allowed.
            temperature_c: temperature for leakage; the specification's reference by default.

        Returns:
            time_ns (S, F) float64, energy_mj (S, F) float64, effective core MHz (S, F) int64.

        Raises:
            InputError: a pair is not supported.
        """
        return self._truth(self._tables_of(tuple(works)), pairs, temperature_c)

    def truth_of_terms(
        self, terms: KernelTerms, pairs: Sequence[ClockPair]
    ) -> tuple[Floats, Floats, Ints]:
        """`truth_table` for kernels whose terms are known rather than their work."""
        return self._truth(build_tables(terms, self.spec), pairs, None)

    def measure_table(
        self,
        works: Sequence[KernelWork],
        pairs: Sequence[ClockPair],
        *,
        windows: int = 5,
        bursts: bool = False,
        temperature_c: float | None = None,
    ) -> tuple[Floats, Floats]:
        """What a sweep would measure: `truth_table` with the scatter of whole windows.

        A window is long enough (thousands of launches) that single launches average out, so each
        cell carries the run-to-run scatter alone. ``bursts`` are loops cut short by rests, so that
        the power cap takes no clock away; their temperature is the step's, ``temperature_c``.

        Returns:
            time_ns and energy_mj, (windows, S, F) float64.
        """
        tables = self._tables_of(tuple(works))
        time_ns, energy_mj, _ = self._truth(tables, pairs, temperature_c, capped=not bursts)
        shape = (windows, *time_ns.shape)
        slower = 1.0 + self._noise.run_time * self._rng_run.standard_normal(shape)
        hotter = 1.0 + self._noise.run_power * self._rng_run.standard_normal(shape)
        return time_ns * slower, energy_mj * slower * hotter

    def run(
        self,
        step: StepWork,
        *,
        requests: Mapping[int, ClockPair] | None = None,
        gap_ns: float | Floats | None = None,
    ) -> SimulatedRun:
        """Play one step's items in order, one after the other, with noise.

        State (virtual time, temperature, governor, requests under way) carries from run to run.
        Streams are not told apart: items follow each other.

        Args:
            step: works and items.
            requests: item before which a trigger fires -> pair asked for. With ``stall`` that item
                already runs at the pair; with ``lag`` it takes hold later, perhaps in a later run.
            gap_ns: idle time before each item, one for all or (K,); the specification's by
                default.

        Raises:
            InputError: an item out of range or an unsupported pair.
            RightsError: the fault says so.
        """
        tables = self._tables_of(step.works)
        work = np.fromiter((item.work for item in step.items), np.int64, len(step.items))
        gap = self.spec.rates.gap_ns if gap_ns is None else gap_ns
        gaps = np.broadcast_to(np.asarray(gap, dtype=np.float64), len(work)).copy()
        return self._play(tables.time_ns, tables.power_w, work, gaps, None, requests)

    def run_table(
        self,
        terms: KernelTerms,
        sequence: npt.ArrayLike,
        *,
        requests: Mapping[int, ClockPair] | None = None,
    ) -> SimulatedRun:
        """`run` for kernels whose terms are known; ``sequence`` (K,) names them by row."""
        tables = build_tables(terms, self.spec)
        work = np.asarray(sequence, dtype=np.int64)
        gaps = np.full(len(work), self.spec.rates.gap_ns)
        return self._play(tables.time_ns, tables.power_w, work, gaps, None, requests)

    def spin(self, cycles: int) -> int:
        """Run a kernel of ``cycles`` core cycles, and return how long it took in ns.

        A stall owed is part of what is seen, as it would be on the GPU's own timer.
        """
        if cycles <= 0:
            raise InputError(f"a sensing kernel needs at least one cycle, got {cycles}")
        base = self._axes.idle_w[:, :, None]
        time_ns = np.broadcast_to(
            (cycles * 1e3 / self.spec.running_core_mhz())[None, :, None],
            (1, *self._axes.idle_w.shape),
        )
        scale = np.array([1.0 + self._noise.spin * self._rng_run.standard_normal()])
        begin_ns = self._state[at.NOW]
        self._play(
            np.ascontiguousarray(time_ns),
            np.ascontiguousarray(base[None, :, :, 0]),
            np.zeros(1, dtype=np.int64),
            np.zeros(1),
            scale,
            None,
            noisy=False,
        )
        return round(float(self._state[at.NOW] - begin_ns))

    def lock(self, pair: ClockPair) -> None:
        """Request a pair; see `VirtualGpu.lock`.

        A memory clock named on a GPU that has only that one is left alone, not set.
        """
        self._check_memory(pair)
        super().lock(pair)

    def request(self, pair: ClockPair) -> None:
        """Ask for a pair without blocking; see `VirtualGpu.request`."""
        self._check_memory(pair)
        super().request(pair)

    def sleep_ns(self, duration_ns: int) -> None:
        """Idle that long; a GPU left to the governor rests at its idle clocks."""
        state = self._state
        resting = self._asked == GOVERNOR and state[at.PENDING] == 0 and state[at.POSTED] == 0
        if not resting:
            super().sleep_ns(duration_ns)
            return
        awake = state[at.CORE], state[at.MEM]
        state[at.CORE], state[at.MEM] = self._index(self.spec.idle_pair)
        self._refresh()
        super().sleep_ns(duration_ns)
        state[at.CORE], state[at.MEM] = awake
        self._refresh()

    def _check_memory(self, pair: ClockPair) -> None:
        other = pair.mem_mhz not in (None, self.spec.default_mem_mhz)
        if other and not self.spec.mem_lockable:
            raise NotSupportedError(
                f"{self._info.name} runs memory at {self.spec.default_mem_mhz} MHz only; "
                f"{pair.mem_mhz} MHz cannot be locked"
            )

    def _refresh(self) -> None:
        engine.refresh(self._state, self._axes.settings, self._axes.core_mhz)

    def _index(self, pair: ClockPair) -> tuple[int, int]:
        return clock_index(self.spec, pair)

    def _clocks_mhz(self, core: Ints, mem: Ints) -> tuple[Ints, Ints, Ints | None]:
        axes = self._axes
        return axes.core_mhz[core].astype(np.int64), axes.mem_mhz[mem].astype(np.int64), None

    def _tables_of(self, works: tuple[KernelWork, ...]) -> ClockTables:
        tables = self._tables.get(works)
        if tables is None:
            if len(self._tables) >= _KEPT_TABLES:
                self._tables.pop(next(iter(self._tables)))
            tables = build_tables(estimate_terms(works, self.spec), self.spec)
            self._tables[works] = tables
        return tables

    def _truth(
        self,
        tables: ClockTables,
        pairs: Sequence[ClockPair],
        temperature_c: float | None,
        *,
        capped: bool = True,
    ) -> tuple[Floats, Floats, Ints]:
        warm_c = 0.0 if temperature_c is None else temperature_c - self.spec.thermal.reference_c
        power_w = tables.power_w + (self._axes.leak_w_per_c * warm_c)[None, :, None]
        highest = highest_core_index(power_w, self.spec, float(self._axes.settings[at.CAP_W]))
        indexes = [self._index(pair) for pair in pairs]
        core = np.array([index[0] for index in indexes], dtype=np.int64)
        mem = np.array([index[1] for index in indexes], dtype=np.int64)
        running = np.broadcast_to(core[None, :], (len(power_w), len(core)))
        if capped:
            running = np.minimum(running, highest[:, mem])
        row = np.arange(len(power_w))[:, None]
        time_ns = tables.time_ns[row, running, mem[None, :]]
        energy_mj = time_ns * power_w[row, running, mem[None, :]] * 1e-6
        return time_ns, energy_mj, self._axes.core_mhz[running].astype(np.int64)


def _settings(spec: GpuSpec) -> Floats:
    settings = np.zeros(at.SETTINGS_SIZE)
    thermal = spec.thermal
    settings[at.AMBIENT_C] = thermal.ambient_c
    settings[at.C_PER_W] = thermal.c_per_w
    settings[at.TIME_CONSTANT_NS] = thermal.time_constant_s * 1e9
    settings[at.REFERENCE_C] = thermal.reference_c
    settings[at.CAP_W] = spec.power_limit_w
    settings[at.TICK_NS] = spec.governor_tick_ns
    settings[at.SENSOR_NS] = spec.sensor_period_ns
    settings[at.DROOP_START_C] = thermal.droop_start_c
    settings[at.DROOP_STEP_C] = thermal.droop_step_c
    settings[at.TOP_MHZ] = spec.top_core_mhz
    settings[at.STEP_MHZ] = spec.core_clocks_mhz[-1] - spec.core_clocks_mhz[-2]
    return settings


def open_simulated(
    name: str,
    *,
    seed: int = 0,
    noise: Noise | None = None,
    switch: SwitchBehaviour | Literal["stall", "lag", "free"] | None = None,
    faults: Faults | None = None,
) -> SimulatedGpu:
    """Open a simulated GPU.

    Args:
        name: ``rtx3080ti``, ``v100`` or ``h200``.
        seed: of every random draw; equal seeds and calls give equal results.
        noise: scatter; `Noise.none` for none, default `Noise`.
        switch: how clocks change: a `SwitchBehaviour`; ``lag`` (the specification's own, and the
            default); ``stall`` (20 us core, 60 us memory); ``free``.
        faults: what is wrong with it; nothing by default.

    Raises:
        InputError: no such simulated GPU, or no such switch behaviour.
    """
    spec = spec_named(name)
    if isinstance(switch, str):
        named = {"stall": _STALL, "lag": spec.switch, "free": SwitchBehaviour.free()}
        if switch not in named:
            raise InputError(f"switch must be stall, lag or free, got {switch!r}")
        switch = named[switch]
    return SimulatedGpu(spec, seed=seed, noise=noise, switch=switch, faults=faults)
