"""How time and power answer to the clocks: the laws that `joint_fit` fits to a sweep.

*Time* of a kernel: a part that follows the core clock, a part that follows the memory clock, an
overlap between sharp (the larger one counts) and none (they add), and a part that follows neither:
t ~ (core^q + memory^q)^(1/q) + core' + fixed. Clocks do not quite do what their numbers say (a low
memory clock has other timings, a low core clock another ratio to the crossbar's), so the GPU's
effective clocks may leave the nominal ones smoothly, the same for all kernels.

*Power*, in watts, so that what the GPU draws whatever it runs is common to all kernels: leakage (V)
and clock tree (f V^2), memory by its clock, each kernel's own clocked units (f V^2), its work
(V^2 per unit of work done) and its traffic; all of it a little more than linear, since leakage
follows heat and converters lose more at more current. V is flat below a knee, with smooth
departures at the clocks.

Sources: roofline (Williams, Waterman, Patterson, CACM 52(4), 2009); power's parts as in Guerreiro
et al., HPCA 2018; voltage flat below a knee: their section III and Mei et al., e-Energy 2013.

How far parameters may go (priors) was set by hand on the public sweeps named in docs/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...data.units import ClockPair
from .joint_fit import Floats, Prior

__all__ = ["PowerLaw", "TimeLaw"]

Rows = npt.NDArray[np.int64]


def _softplus(x: Floats | float) -> Floats:
    return np.asarray(np.logaddexp(0.0, x))


def _sigmoid(x: Floats | float) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(x))))


class _Departure:
    """Smooth departures over the logarithm of a clock, zero at its top: (F, G) of unit normals."""

    def __init__(self, clocks: Floats, sd: float, length: float) -> None:
        log = np.log(clocks)
        gap = log[:, None] - np.append(log, log.max())[None, :]
        cover = np.exp(-0.5 * (gap / length) ** 2)
        inner, top = cover[:, :-1], cover[:, -1]
        values, vectors = np.linalg.eigh(sd**2 * (inner - np.outer(top, top)))
        keep = values > max(1e-3 * values.max(), 1e-9)
        self.basis = vectors[:, keep] * np.sqrt(values[keep])

    @property
    def size(self) -> int:
        return int(self.basis.shape[1])


class _Clocks:
    """Both clocks of all pairs; one memory clock where none is known."""

    def __init__(self, pairs: Sequence[ClockPair]) -> None:
        self.core = np.array([pair.core_mhz for pair in pairs], dtype=float)
        self.mem = np.array([pair.mem_mhz or 1 for pair in pairs], dtype=float)


class TimeLaw:
    """Log time over the pairs. Own parameters: level, balance, fixed share, overlap, core share."""

    def __init__(self, pairs: Sequence[ClockPair]) -> None:
        clocks = _Clocks(pairs)
        self._core = np.log(clocks.core.max() / clocks.core)
        self._mem = np.log(clocks.mem.max() / clocks.mem)
        self._of_core = _Departure(clocks.core, 0.05, 0.8)
        self._of_mem = _Departure(clocks.mem, 0.12, 1.2)
        size = self._of_core.size + self._of_mem.size
        self.own = Prior(np.array([0, 0, -3, 0.7, -2.5]), np.array([3, 2, 2, 1, 1.5]))
        self.shared = Prior(np.zeros(size), np.ones(size))
        self.starts: list[Floats] = [
            np.array([0, balance, -3, 0.7, -2.5]) for balance in (-3.0, -1.0, 0.0, 1.0, 3.0)
        ]

    def values(self, own: Floats, shared: Floats, rows: Rows) -> Floats:
        """Log time (S, R)."""
        split = self._of_core.size
        core = self._core[rows] + self._of_core.basis[rows] @ shared[:split]
        mem = self._mem[rows] + self._of_mem.basis[rows] @ shared[split:]
        level, balance, fixed, sharp, more = (own[:, [column]] for column in range(5))
        overlap = 1 + np.exp(sharp)
        body = np.logaddexp(
            overlap * (core - _softplus(balance)), overlap * (mem - _softplus(-balance))
        )
        return np.asarray(level + np.logaddexp(np.logaddexp(body / overlap, fixed), more + core))


class PowerLaw:
    """Log power over the pairs, relative to the largest measured.

    Own parameters: clocked units, work, traffic (each relative to the mean kernel), level. Shared:
    leakage, clock tree, memory, memory's part that does not follow its clock, voltage below the
    knee, the knee, the mean kernel's three, what is more than linear, departures.
    """

    def __init__(self, pairs: Sequence[ClockPair], log_rate: Floats) -> None:
        """Take the pairs and each kernel's log rate (S, F): its work per time, 0 at its fastest."""
        clocks = _Clocks(pairs)
        self._share = clocks.core / clocks.core.max()
        self._mem = clocks.mem / clocks.mem.max()
        self._rate = log_rate
        self._of_core = _Departure(clocks.core, 0.04, 0.5)
        self._of_mem = _Departure(clocks.mem, 0.1, 1.2)
        size = self._of_core.size + self._of_mem.size
        self.own = Prior(np.zeros(4), np.array([1.5, 1.5, 1.5, 0.05]))
        mean = [-2, -2, -2, -1, 1.2, 0.7, -1.5, -1.5, -2, -1.5]
        spread = [1, 1, 0.8, 1, 0.6, 1.2, 1, 1, 1, 1]
        self.shared = Prior(
            np.concatenate([mean, np.zeros(size)]), np.concatenate([spread, np.ones(size)])
        )
        self.starts: list[Floats] = [np.zeros(4)]

    def values(self, own: Floats, shared: Floats, rows: Rows) -> Floats:
        """Log power (S, R)."""
        volts, memory = self._curves(shared, rows)
        tree = np.log(self._share[rows]) + 2 * volts
        units, work, traffic, level = (own[:, [column]] for column in range(4))
        rate = self._rate[:, rows]
        common = np.logaddexp(np.logaddexp(shared[0] + volts, shared[1] + tree), shared[2] + memory)
        total = np.logaddexp(common, shared[6] + units + tree)
        total = np.logaddexp(total, shared[7] + work + 2 * volts + rate)
        total = level + np.logaddexp(total, shared[8] + traffic + rate)
        return np.asarray(total + np.log1p(np.exp(shared[9] + total)))

    def _curves(self, shared: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """Log voltage and log memory power at ``rows``, 0 at the top clocks."""
        split = 10 + self._of_core.size
        low, knee = _sigmoid(shared[4]), _sigmoid(shared[5])
        above = _softplus(20 * (self._share[rows] - knee)) / _softplus(20 * (1 - knee))
        volts = np.log(low + (1 - low) * above) + self._of_core.basis[rows] @ shared[10:split]
        kept = _sigmoid(shared[3])
        memory = np.log(kept + (1 - kept) * self._mem[rows])
        return volts, memory + self._of_mem.basis[rows] @ shared[split:]
