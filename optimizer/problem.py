"""The problem: one pair for each kernel of a step, least energy within a time budget.

A step is a sequence of K items (kernels, or blocks of kernels that overlap). Item k takes
``time_scale[k] * time_ns[row[k], f]`` and ``energy_scale[k] * energy_mj[row[k], f]`` at pair f;
tables are kept per signature so that a million kernels cost no more memory than their indexes.
The idle gap before item k lasts ``gap_ns[k]`` at every pair and draws ``idle_power_w[f]`` at the
pair held through it: that of the item before, since a switch is made at the start of the item that
wants it (before the first item of a step that does not repeat, that item's own pair).
The budget is on the sum of item times, gaps and stalls: time <= (1 + budget) * baseline time.

Left out: power caps, temperature, and any influence of one item's pair on another's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..data.errors import InputError
from ..data.units import GOVERNOR, ClockPair
from .switch_model import Free, Lag, MatrixStall, SwitchModel

__all__ = ["Problem"]

_T = TypeVar("_T", bound=np.generic)
_FREE = Free()
_LARGEST = 1e18  # ns (31 years) or mJ: sums stay well inside float64 and int64


@dataclass(frozen=True, eq=False)
class Problem:
    """One step to schedule. Arrays are copied, checked and made read-only.

    Attributes:
        pairs: the F clock pairs, no two alike.
        time_ns: (S, F) float64 ns, a signature's duration at each pair.
        energy_mj: (S, F) float64 mJ, its energy at each pair.
        row: (K,) int32, the signature of each item.
        baseline_time_ns: what the budget is relative to, gaps included.
        baseline_energy_mj: what the saving is relative to, gaps included.
        baseline_pair: the pair (or the governor) the baseline was measured at.
        time_scale: (K,) factor on the item's duration, or None for 1.
        energy_scale: (K,) factor on its energy, or None for 1.
        gap_ns: (K,) idle ns before each item, or None for none.
        idle_power_w: (F,) W drawn in a gap at each pair; needed with ``gap_ns``.
        switch: what a change of pair costs.
        boundary: (K,) bool, True where a switch may be made (under lag: requested) at the item's
            start; None for everywhere.
        cyclic: True if the step repeats, so that its end meets its start.
        allowed: (F,) bool, the pairs that may be chosen; None for all but the governor.
        signatures: S names for error messages, or None.
    """

    pairs: tuple[ClockPair, ...]
    time_ns: NDArray[np.float64]
    energy_mj: NDArray[np.float64]
    row: NDArray[np.int32]
    baseline_time_ns: float
    baseline_energy_mj: float
    baseline_pair: ClockPair = GOVERNOR
    time_scale: NDArray[np.float64] | None = None
    energy_scale: NDArray[np.float64] | None = None
    gap_ns: NDArray[np.float64] | None = None
    idle_power_w: NDArray[np.float64] | None = None
    switch: SwitchModel = _FREE
    boundary: NDArray[np.bool_] | None = None
    cyclic: bool = True
    allowed: NDArray[np.bool_] | None = None
    signatures: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check one assumption at a time.

        Raises:
            InputError: the first assumption that does not hold, with where and what came.
        """
        set_ = object.__setattr__
        set_(self, "pairs", tuple(self.pairs))
        self._check_pairs()
        names = None if self.signatures is None else tuple(self.signatures)
        set_(self, "signatures", names)
        set_(self, "time_ns", self._table(self.time_ns, "time_ns"))
        set_(self, "energy_mj", self._table(self.energy_mj, "energy_mj"))
        if self.energy_mj.shape != self.time_ns.shape:
            raise InputError(
                f"time_ns and energy_mj must have one shape, got {self.time_ns.shape} and "
                f"{self.energy_mj.shape}"
            )
        set_(self, "row", self._rows())
        for name in ("time_scale", "energy_scale"):
            set_(self, name, self._items(getattr(self, name), name, positive=True))
        set_(self, "gap_ns", self._items(self.gap_ns, "gap_ns", positive=False))
        set_(self, "idle_power_w", self._idle_power())
        set_(self, "boundary", _flags(self.boundary, self.n_items, "boundary", "item"))
        set_(self, "allowed", self._allowed())
        self._check_switch()
        self._check_baseline()
        self._check_sums()

    @property
    def n_items(self) -> int:
        """K, the length of the step."""
        return len(self.row)

    @property
    def n_pairs(self) -> int:
        """F, choosable or not."""
        return len(self.pairs)

    def budget_time_ns(self, budget: float) -> float:
        """The longest time a slowdown of ``budget`` (a fraction) allows.

        Raises:
            InputError: the budget is negative or not finite.
        """
        if not np.isfinite(budget) or budget < 0:
            raise InputError(f"slowdown budget must be finite and not negative, got {budget!r}")
        return self.baseline_time_ns * (1.0 + budget)

    def signature(self, index: int) -> str:
        """The name of a signature, or its number."""
        return f"#{index}" if self.signatures is None else repr(self.signatures[index])

    def _check_pairs(self) -> None:
        if not self.pairs:
            raise InputError("a problem needs at least one clock pair, got none")
        if len(set(self.pairs)) != len(self.pairs):
            twice = next(p for i, p in enumerate(self.pairs) if p in self.pairs[:i])
            raise InputError(f"clock pair {twice} is given twice")

    def _table(self, value: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        table = np.array(value, dtype=np.float64, order="C")
        if table.ndim != 2 or table.shape[1] != self.n_pairs:
            raise InputError(
                f"{what} must have one row a signature and one column for each of the "
                f"{self.n_pairs} pairs, got shape {table.shape}"
            )
        bad = ~np.isfinite(table) | (table < 0)
        if bad.any():
            s, f = (int(x[0]) for x in np.nonzero(bad))
            raise InputError(
                f"{what} must be finite and not negative, got {table[s, f]} for signature "
                f"{self.signature(s)} at pair {self.pairs[f]}"
            )
        table.flags.writeable = False
        return table

    def _rows(self) -> NDArray[np.int32]:
        row = np.asarray(self.row)
        if row.ndim != 1 or row.size == 0:
            raise InputError("the step is empty: a schedule needs at least one kernel")
        if not np.issubdtype(row.dtype, np.integer):
            raise InputError(f"row must hold whole numbers, got {row.dtype}")
        n = len(self.time_ns)
        outside = (row < 0) | (row >= n)
        if outside.any():
            k = int(np.flatnonzero(outside)[0])
            raise InputError(f"row[{k}] is {row[k]}, outside the {n} signatures")
        return _frozen(row.astype(np.int32))

    def _items(
        self, value: NDArray[np.float64] | None, what: str, *, positive: bool
    ) -> NDArray[np.float64] | None:
        if value is None:
            return None
        array = np.array(value, dtype=np.float64)
        if array.shape != (self.n_items,):
            raise InputError(
                f"{what} must have one value for each of the {self.n_items} items, "
                f"got shape {array.shape}"
            )
        bad = ~np.isfinite(array) | ((array <= 0) if positive else (array < 0))
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            must = "positive" if positive else "not negative"
            raise InputError(f"{what} must be finite and {must}, got {array[k]} at item {k}")
        return _frozen(array)

    def _idle_power(self) -> NDArray[np.float64] | None:
        if self.idle_power_w is None:
            if self.gap_ns is not None and self.gap_ns.any():
                raise InputError("gap_ns needs idle_power_w, the power drawn in a gap at each pair")
            return None
        power = np.array(self.idle_power_w, dtype=np.float64)
        if power.shape != (self.n_pairs,):
            raise InputError(
                f"idle_power_w must have one value for each of the {self.n_pairs} pairs, "
                f"got shape {power.shape}"
            )
        bad = ~np.isfinite(power) | (power < 0)
        if bad.any():
            f = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"idle_power_w must be finite and not negative, got {power[f]} at {self.pairs[f]}"
            )
        return _frozen(power)

    def _allowed(self) -> NDArray[np.bool_]:
        if self.allowed is None:
            chosen = np.array([not pair.is_governor for pair in self.pairs])
            if not chosen.any():
                raise InputError("there is no clock pair to choose: the only one is the governor")
            return _frozen(chosen)
        flags = _flags(self.allowed, self.n_pairs, "allowed", "pair")
        if flags is None or not flags.any():
            raise InputError("allowed must leave at least one clock pair to choose")
        return flags

    def _check_switch(self) -> None:
        matrix = None
        if isinstance(self.switch, MatrixStall):
            matrix = self.switch.time_ns
        elif isinstance(self.switch, Lag) and not isinstance(self.switch.latency_ns, float):
            matrix = self.switch.latency_ns
        if matrix is not None and len(matrix) != self.n_pairs:
            raise InputError(
                f"switch matrix must be {self.n_pairs} x {self.n_pairs}, one row a clock pair; "
                f"got {matrix.shape[0]} x {matrix.shape[1]}"
            )

    def _check_baseline(self) -> None:
        for name in ("baseline_time_ns", "baseline_energy_mj"):
            value = float(getattr(self, name))
            if not np.isfinite(value) or value <= 0:
                raise InputError(f"{name} must be finite and positive, got {value}")
            object.__setattr__(self, name, value)

    def _check_sums(self) -> None:
        for what, table, scale in (
            ("time", self.time_ns, self.time_scale),
            ("energy", self.energy_mj, self.energy_scale),
        ):
            worst = table.max(axis=1)[self.row]
            total = float(worst.sum() if scale is None else worst @ scale)
            if total > _LARGEST:
                raise InputError(f"the step's {what} adds up to {total:.3g}, over {_LARGEST:.0g}")


def _frozen(array: NDArray[_T]) -> NDArray[_T]:
    array.flags.writeable = False
    return array


def _flags(value: object, n: int, what: str, of: str) -> NDArray[np.bool_] | None:
    if value is None:
        return None
    flags = np.array(value)
    if flags.shape != (n,) or flags.dtype != np.bool_:
        raise InputError(
            f"{what} must hold {n} booleans, one for each {of}; got {flags.dtype} of shape "
            f"{flags.shape}"
        )
    return _frozen(flags)
