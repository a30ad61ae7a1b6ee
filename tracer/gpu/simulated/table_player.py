"""Plays a table of kernel time and energy per pair: a trace's own profile, or an imported sweep.

The table's cells already hold what the power cap did, so no governor and no heat act here; clocks
are rows of the pair table. Switches, noise, sensors and the keeper act as on a `SimulatedGpu`.

Left out: what a pair's own history would change (temperature, cap), and streams side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ....data.errors import InputError
from ....data.units import GOVERNOR, ClockPair
from ..protocol import GpuInfo
from . import places as at
from .behaviour import Faults, Noise
from .result import SimulatedRun
from .switching import SwitchBehaviour
from .virtual import Axes, VirtualGpu

__all__ = ["TablePlayer"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SENSOR_PERIOD_NS = 100e6
_FOREVER_NS = 1e18


class TablePlayer(VirtualGpu):
    """A virtual GPU whose kernels cost what a table says.

    Args:
        time_ns: (S, F) mean duration of each signature at each pair.
        energy_mj: (S, F) mean energy of one launch.
        pairs: F pairs; `GOVERNOR` may be one.
        baseline: the pair that holds before the first request and after `release`; by default
            `GOVERNOR` if it is among ``pairs``, else the first.
        idle_power_w: power between kernels, one number or (F,). By default each pair's least mean
            kernel power, which is no less than the idle power.
        name: what to call the GPU.
        switch: how clocks change; free by default.
        seed, noise, faults: as for `open_simulated`.

    Raises:
        InputError: shapes disagree, a cell is not finite and positive, a pair twice.
    """

    def __init__(
        self,
        time_ns: npt.ArrayLike,
        energy_mj: npt.ArrayLike,
        pairs: Sequence[ClockPair],
        *,
        baseline: ClockPair | None = None,
        idle_power_w: npt.ArrayLike | None = None,
        name: str = "table",
        switch: SwitchBehaviour | None = None,
        seed: int = 0,
        noise: Noise | None = None,
        faults: Faults | None = None,
    ) -> None:
        time_array = np.asarray(time_ns, dtype=np.float64)
        energy_array = np.asarray(energy_mj, dtype=np.float64)
        self._pairs = tuple(pairs)
        _check(time_array, energy_array, self._pairs)
        self._row = {pair: row for row, pair in enumerate(self._pairs)}
        if baseline is None:
            baseline = GOVERNOR if GOVERNOR in self._row else self._pairs[0]
        power_w = energy_array * 1e6 / time_array
        count = len(self._pairs)
        least_w = power_w.min(axis=0)
        idle_w = least_w if idle_power_w is None else np.asarray(idle_power_w, dtype=np.float64)
        idle_w = np.broadcast_to(idle_w, (count,))
        if not (np.isfinite(idle_w).all() and (idle_w >= 0).all()):
            raise InputError("idle power must be finite and at least 0 W at every pair")
        self._time_ns = np.ascontiguousarray(time_array[:, :, None])
        self._power_w = np.ascontiguousarray(power_w[:, :, None])
        self._labels = np.array(
            [[-1 if clock is None else clock for clock in pair] for pair in self._pairs],
            dtype=np.int64,
        )
        super().__init__(
            GpuInfo(
                name=f"{name} (simulated)",
                uuid=f"SIM-TABLE-{seed}",
                driver="simulated",
                simulated=True,
            ),
            Axes(
                core_mhz=np.arange(1.0, count + 1.0),
                mem_mhz=np.zeros(1),
                idle_w=np.ascontiguousarray(idle_w[:, None]),
                leak_w_per_c=np.zeros(count),
                settings=_settings(),
            ),
            switch=SwitchBehaviour.free() if switch is None else switch,
            noise=Noise() if noise is None else noise,
            faults=Faults() if faults is None else faults,
            seed=seed,
            rest=baseline,
        )

    def pairs(self) -> tuple[ClockPair, ...]:
        """The table's pairs, in the table's order."""
        return self._pairs

    def run(
        self,
        sequence: npt.ArrayLike,
        *,
        requests: Mapping[int, ClockPair] | None = None,
        gap_ns: npt.ArrayLike = 0.0,
        scale: npt.ArrayLike | None = None,
    ) -> SimulatedRun:
        """Play K launches in order, with noise.

        Args:
            sequence: (K,) row of the table that each launch is.
            requests: item before which a trigger fires -> pair asked for.
            gap_ns: idle time before each launch, one number or (K,).
            scale: (K,) factor on each launch's time and energy; 1 by default.

        Raises:
            InputError: a row, item or pair that is not there; a negative gap or scale.
        """
        work = np.asarray(sequence, dtype=np.int64)
        if work.ndim != 1 or (len(work) and not 0 <= work.min() <= work.max() < len(self._time_ns)):
            raise InputError(
                f"the sequence must be one row of signatures 0..{len(self._time_ns) - 1}"
            )
        gaps = np.array(np.broadcast_to(np.asarray(gap_ns, dtype=np.float64), work.shape))
        scales = None if scale is None else np.asarray(scale, dtype=np.float64)
        if (gaps < 0).any() or (scales is not None and (scales.shape != work.shape)):
            raise InputError("gaps must be at least 0 ns, and scale one number a launch")
        if scales is not None and not (scales > 0).all():
            raise InputError("every scale must be over 0")
        return self._play(self._time_ns, self._power_w, work, gaps, scales, requests)

    def truth(
        self,
        sequence: npt.ArrayLike,
        pair_rows: npt.ArrayLike,
        *,
        scale: npt.ArrayLike | None = None,
    ) -> tuple[float, float]:
        """Noiseless time (ns) and energy (mJ) of K launches, each at its row of the pair table."""
        work = np.asarray(sequence, dtype=np.int64)
        rows = np.broadcast_to(np.asarray(pair_rows, dtype=np.int64), work.shape)
        factor = 1.0 if scale is None else np.asarray(scale, dtype=np.float64)
        time_ns = self._time_ns[work, rows, 0] * factor
        return float(time_ns.sum()), float((time_ns * self._power_w[work, rows, 0]).sum() * 1e-6)

    def _index(self, pair: ClockPair) -> tuple[int, int]:
        try:
            return self._row[pair], 0
        except KeyError:
            raise InputError(
                f"the table has no pair {pair}; it has {len(self._pairs)}, such as {self._pairs[0]}"
            ) from None

    def _clocks_mhz(self, core: Ints, mem: Ints) -> tuple[Ints, Ints, Ints | None]:
        return self._labels[core, 0], self._labels[core, 1], core.copy()


def _check(time_ns: Floats, energy_mj: Floats, pairs: tuple[ClockPair, ...]) -> None:
    if time_ns.ndim != 2 or time_ns.shape != energy_mj.shape or time_ns.shape[1] != len(pairs):
        raise InputError(
            f"time and energy must be (signatures, {len(pairs)} pairs), got {time_ns.shape} "
            f"and {energy_mj.shape}"
        )
    if not time_ns.size:
        raise InputError("a table to play needs at least one signature and one pair")
    if len(set(pairs)) != len(pairs):
        raise InputError("a table to play names a pair twice")
    for what, cells in (("time", time_ns), ("energy", energy_mj)):
        if not (np.isfinite(cells).all() and (cells > 0).all()):
            row, column = np.argwhere(~(np.isfinite(cells) & (cells > 0)))[0]
            raise InputError(
                f"every {what} must be finite and over 0; signature {row} at {pairs[column]} "
                f"is {cells[row, column]}"
            )


def _settings() -> Floats:
    """No cap, no heat: nothing changes but what is asked for."""
    settings = np.zeros(at.SETTINGS_SIZE)
    settings[at.TIME_CONSTANT_NS] = _FOREVER_NS
    settings[at.CAP_W] = np.inf
    settings[at.TICK_NS] = _FOREVER_NS
    settings[at.SENSOR_NS] = _SENSOR_PERIOD_NS
    settings[at.DROOP_START_C] = np.inf
    settings[at.DROOP_STEP_C] = 1.0
    settings[at.TOP_MHZ] = np.inf
    settings[at.STEP_MHZ] = 0.5
    return settings
