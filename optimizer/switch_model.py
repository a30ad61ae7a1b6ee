"""What a change of clocks costs: the switch models a problem can hold.

Two semantics, chosen by the device's measured switch table:

* *stall*: going from one pair to another stops the GPU for a time and costs an energy. The cost
  is one constant (`ConstantStall`), a core part plus a memory part (`TwoPartStall`), or a full
  matrix (`MatrixStall`). `Free` is the limit in which a switch costs nothing.
* *lag* (`Lag`): a request takes effect a latency later and nothing stops. A kernel runs, from its
  start to its end, at the pair in effect when it starts, so kernels that start before the request
  has taken effect run at the old pair. Requests are issued at the start of a kernel, may be issued
  before the kernel they are meant for, are at least a dwell apart, and only one is in flight.

Left out: a kernel whose clock changes halfway (lag counts it at the old pair); stalls that hide in
an idle gap; requests that overtake each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InputError
from ..data.units import ClockPair

__all__ = ["ConstantStall", "Free", "Lag", "MatrixStall", "SwitchModel", "TwoPartStall"]

Array = NDArray[np.float64]


def _cost(value: float, what: str) -> float:
    """A cost as a float, refused unless finite and not negative."""
    number = float(value)
    if not np.isfinite(number) or number < 0:
        raise InputError(f"{what} must be finite and not negative, got {value!r}")
    return number


def _matrix(value: object, what: str) -> Array:
    """A square matrix of costs, read-only, with a zero diagonal."""
    array = np.array(value, dtype=np.float64, order="C")
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise InputError(
            f"{what} must be a square matrix, one row and one column a clock pair; "
            f"got shape {array.shape}"
        )
    bad = ~np.isfinite(array) | (array < 0)
    if bad.any():
        i, j = (int(x[0]) for x in np.nonzero(bad))
        raise InputError(
            f"{what} must be finite and not negative, got {array[i, j]} from pair {i} to pair {j}"
        )
    if np.diagonal(array).any():
        i = int(np.flatnonzero(np.diagonal(array))[0])
        raise InputError(f"{what} must be 0 from a pair to itself, got {array[i, i]} at pair {i}")
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class Free:
    """Switches cost nothing, the setting of per-kernel oracle studies."""


@dataclass(frozen=True)
class ConstantStall:
    """Every change of pair stops the GPU for ``time_ns`` and costs ``energy_mj``."""

    time_ns: float
    energy_mj: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_ns", _cost(self.time_ns, "switch time_ns"))
        object.__setattr__(self, "energy_mj", _cost(self.energy_mj, "switch energy_mj"))


@dataclass(frozen=True)
class TwoPartStall:
    """A core part, paid if the core clock changes, plus a memory part, paid if the memory does."""

    core_time_ns: float
    mem_time_ns: float
    core_energy_mj: float = 0.0
    mem_energy_mj: float = 0.0

    def __post_init__(self) -> None:
        for name in ("core_time_ns", "mem_time_ns", "core_energy_mj", "mem_energy_mj"):
            object.__setattr__(self, name, _cost(getattr(self, name), f"switch {name}"))


@dataclass(frozen=True, eq=False)
class MatrixStall:
    """A cost for each ordered couple of pairs: (F, F) ns and (F, F) mJ, from row to column."""

    time_ns: Array
    energy_mj: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_ns", _matrix(self.time_ns, "switch time_ns"))
        object.__setattr__(self, "energy_mj", _matrix(self.energy_mj, "switch energy_mj"))
        if self.time_ns.shape != self.energy_mj.shape:
            raise InputError(
                "switch time_ns and energy_mj must have one shape, got "
                f"{self.time_ns.shape} and {self.energy_mj.shape}"
            )

    @classmethod
    def from_pairs(
        cls,
        names: Sequence[ClockPair],
        time_ns: Array,
        energy_mj: Array,
        pairs: Sequence[ClockPair],
    ) -> MatrixStall:
        """Reorder a matrix over ``names`` into the order of a problem's ``pairs``.

        Args:
            names: the pair of each row and column of the two (N, N) matrices.
            time_ns: (N, N) ns.
            energy_mj: (N, N) mJ.
            pairs: the problem's pairs, every one of which must be named.

        Raises:
            InputError: a matrix is not square, names a pair twice, or lacks or adds a pair.
        """
        measured = cls(time_ns, energy_mj)
        if len(names) != measured.time_ns.shape[0]:
            raise InputError(
                f"switch matrix has {measured.time_ns.shape[0]} rows but {len(names)} pairs named"
            )
        where = {pair: i for i, pair in enumerate(names)}
        if len(where) != len(names):
            raise InputError("switch matrix names a clock pair twice")
        if unknown := [str(pair) for pair in names if pair not in set(pairs)]:
            raise InputError(
                f"switch matrix names pairs the problem does not have: {', '.join(unknown[:5])}"
            )
        if lacking := [str(pair) for pair in pairs if pair not in where]:
            raise InputError(f"switch matrix lacks pairs: {', '.join(lacking[:5])}")
        order = np.array([where[pair] for pair in pairs])
        grid = np.ix_(order, order)
        return cls(measured.time_ns[grid], measured.energy_mj[grid])


@dataclass(frozen=True, eq=False)
class Lag:
    """A request takes effect ``latency_ns`` later; two requests are ``min_dwell_ns`` apart.

    ``latency_ns`` is one number or an (F, F) matrix, from row to column.
    """

    latency_ns: float | Array
    min_dwell_ns: float = 0.0

    def __post_init__(self) -> None:
        if np.ndim(self.latency_ns) == 0:
            latency: float | Array = _cost(float(self.latency_ns), "switch latency_ns")
        else:
            latency = _matrix(self.latency_ns, "switch latency_ns")
        object.__setattr__(self, "latency_ns", latency)
        object.__setattr__(self, "min_dwell_ns", _cost(self.min_dwell_ns, "switch min_dwell_ns"))


SwitchModel = Free | ConstantStall | TwoPartStall | MatrixStall | Lag
