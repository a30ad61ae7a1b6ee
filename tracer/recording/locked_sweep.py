"""A sweep over locked clock pairs on a real GPU, planned, resumable, and safe to interrupt.

Clocks are set by the clock keeper alone (`clockwright.tracer.clocks`), under a lease on the pairs
of the sweep; whatever ends this process, the keeper gives them back. At each pair the instrument
measures the whole step: timeline, times and energies. A lock is read back by the keeper before and
after, and held against the clock that the instrument sensed. One that does not hold is reported and
its pair left out; one that the power cap or heat takes down is kept as it ran, its row marked with
the sensed clock and the reasons, and enters the fit at the sensed clock (heat: not at all).

The planner (`measure.sweep_plan`) asks for the pair where the fit is least sure, and stops at the
stated error. Every pair's result is a file (`sweep_store`), so a second run goes on.

Left out: clocks that differ from kernel to kernel within a capped step (one mean clock stands for
the step).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ...data.errors import (
    ClockwrightError,
    InputError,
    LockNotHeldError,
    NotSupportedError,
    ReadOnlyError,
)
from ...data.trace import Trace
from ...data.units import GOVERNOR, ClockPair
from ..clocks import ClockKeeper, numbered, open_keeper
from ..gpu.nvml_probe import READ_ONLY_VARIABLE, is_read_only
from ..gpu.protocol import ThrottleReason
from ..measure.sweep_plan import Cells, SweepPlan
from .alignment import align
from .instrument import Instrument
from .merge_pairs import MeasuredPair, merge, usable_cells
from .sweep_store import SweepStore

__all__ = ["LockedSweep", "Progress", "SweepOptions"]

# A measurement holds Python's lock for seconds at a time (the profiler's export does).
_HEARTBEAT_S = 60.0
# The sensed clock may be off the lock by half a usual step, or by the spread of its probes.
_TOLERANCE_MHZ, _TOLERANCE = 8.0, 0.01
_COOL_LOOK_NS = 500_000_000
_WARMER_C = 10.0


@dataclass(frozen=True)
class SweepOptions:
    """What to visit and when to stop.

    Attributes:
        pairs: visit these and no others; None: every pair the GPU lists is measured or fitted.
        exhaustive: measure every pair.
        target_error: stated median error at which a planned sweep stops.
        most_pairs: pairs a planned sweep may measure; a quarter of them by default.
        deadline_s: begin no pair so long after the start.
        cool_s: wait for at most so long for thermal throttling to pass before a pair.
    """

    pairs: Sequence[ClockPair] | None = None
    exhaustive: bool = False
    target_error: float = 0.02
    most_pairs: int | None = None
    deadline_s: float | None = None
    cool_s: float = 60.0


@dataclass(frozen=True)
class Progress:
    """Where a sweep is: pairs measured, the most there may be, the pair at work, the stated error.

    ``stated_error`` is None while nothing can be fitted yet.
    """

    measured: int
    most: int
    pair: ClockPair
    stated_error: float | None


class LockedSweep:
    """One sweep; `run` it, and take `trace` also where it was cut short.

    Args:
        instrument: measures the step.
        folder: where results are kept from run to run.
        options: what to visit.
        keeper: a keeper to use instead of opening one; it stays open.
        on_progress: called before each pair.

    Raises:
        ReadOnlyError: CLOCKWRIGHT_READ_ONLY forbids setting.
        NotSupportedError: the driver lists no clock pair.
        InputError: a pair that the GPU does not list, or a folder that is no sweep's.
        MismatchError: the folder holds a sweep of another step or GPU.
    """

    def __init__(
        self,
        instrument: Instrument,
        folder: Path,
        options: SweepOptions | None = None,
        *,
        keeper: ClockKeeper | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._instrument, self._options = instrument, options or SweepOptions()
        self._keeper_given, self._on_progress = keeper, on_progress
        self._gpu = instrument.gpu
        if is_read_only() and not self._gpu.info.simulated:
            raise ReadOnlyError(
                f"{READ_ONLY_VARIABLE} is set: no clock is locked, so there is no locked sweep; "
                "trace without --set-clocks, or unset it"
            )
        self._pairs = self._choose_pairs()
        self._store = SweepStore.open(Path(folder), instrument.workload, self._gpu.info)
        self._base: Trace | None = None
        self._measured: dict[ClockPair, MeasuredPair] = {}
        self._left_out: dict[ClockPair, str] = {}
        self._notes: list[str] = []
        self._partial: str | None = None
        self._begin_s = time.monotonic()

    @property
    def measured(self) -> tuple[ClockPair, ...]:
        """Locked pairs measured so far, earlier runs included."""
        return tuple(self._measured)

    def _choose_pairs(self) -> tuple[ClockPair, ...]:
        listed = self._gpu.pairs()
        if not listed:
            raise NotSupportedError(
                f"{self._gpu.info.name}: the driver lists no clock pair, so none can be locked; "
                "trace without --set-clocks"
            )
        if self._options.pairs is None:
            return tuple(listed)
        chosen = tuple(dict.fromkeys(self._options.pairs))
        unknown = [pair for pair in chosen if pair not in listed]
        if unknown or not chosen:
            some = ", ".join(map(str, listed[:3]))
            raise InputError(
                f"{self._gpu.info.name} lists no pair {unknown[0] if unknown else '(none given)'}; "
                f"it lists {len(listed)}, such as {some} (see `clockwright doctor`)"
            )
        return chosen

    def run(self) -> Trace:
        """Measure until the plan is done, and return the trace.

        Raises:
            RightsError, DeviceBusyError, KeeperError: clocks cannot be set here.
            WorkloadError, DeviceError: measuring failed; `trace` gives what there is.
            KeyboardInterrupt: likewise.
        """
        keeper = self._keeper_given or open_keeper(self._gpu)
        try:
            keeper.acquire(self._gpu.info.uuid, numbered(self._pairs), heartbeat_s=_HEARTBEAT_S)
            self._notes += keeper.warnings
            # Tried first of all: a right that is missing is told before minutes of measuring.
            keeper.lock(self._pairs[0])
            keeper.release()
            self._resume()
            self._visit_all(keeper)
        except KeyboardInterrupt:
            self._partial = f"interrupted after {len(self._measured)} of the sweep's pairs"
            raise
        except ClockwrightError as error:
            self._partial = f"stopped after {len(self._measured)} of the sweep's pairs: {error}"
            raise
        finally:
            if self._keeper_given is None:
                keeper.close()
            else:
                keeper.end(self._gpu.info.uuid)
        return self._finished()

    def trace(self) -> Trace | None:
        """What has been measured, put together; None before the baseline was."""
        return None if self._base is None else self._finished()

    def _resume(self) -> None:
        kept = self._store.measured()
        self._base = kept.pop(GOVERNOR, None)
        if self._base is None:
            if kept:
                raise InputError(
                    f"{self._store.folder} has measured pairs and no baseline; remove it"
                )
            self._tell(GOVERNOR)
            trace = self._instrument.measure(self._store.raw_folder(GOVERNOR))
            self._base = self._store.keep(GOVERNOR, trace)
        # What an earlier run measured belongs to the trace, asked for this time or not.
        self._pairs += tuple(pair for pair in kept if pair not in self._pairs)
        for pair, trace in kept.items():
            self._take(pair, trace)

    def _visit_all(self, keeper: ClockKeeper) -> None:
        took_s = 0.0
        while (pair := self._next_pair()) is not None:
            begin_s = time.monotonic()
            deadline_s = self._options.deadline_s
            if deadline_s is not None and begin_s + took_s > self._begin_s + deadline_s:
                self._partial = f"stopped by its time limit of {deadline_s / 60:g} minutes"
                return
            self._tell(pair)
            self._visit(keeper, pair)
            took_s = time.monotonic() - begin_s

    def _visit(self, keeper: ClockKeeper, pair: ClockPair) -> None:
        self._cool_down(keeper)
        try:
            keeper.lock(pair)
            keeper.confirm()
            trace = self._instrument.measure(self._store.raw_folder(pair))
            keeper.check()
            keeper.confirm()
        except LockNotHeldError as error:
            self._leave_out(pair, str(error))
            return
        off = _off_the_lock(trace, pair)
        if off is not None and not _reasons(trace) & _EXPLAINS:
            self._leave_out(pair, f"lock {pair}: {off}, and the driver gives no reason")
            return
        self._take(pair, self._store.keep(pair, trace))

    def _leave_out(self, pair: ClockPair, why: str) -> None:
        self._left_out[pair] = why
        self._notes.append(f"{pair} is left out, its lock does not hold: {why}")

    def _cool_down(self, keeper: ClockKeeper) -> None:
        """Wait, unlocked, while the GPU throttles for heat."""
        until_ns = self._gpu.now_ns() + int(self._options.cool_s * 1e9)
        waited = False
        while (self._gpu.read(energy=False).throttle_reasons or 0) & ThrottleReason.THERMAL:
            if self._gpu.now_ns() >= until_ns:
                return  # measured hot: the row's reasons say so
            if not waited:
                keeper.release()
                waited = True
            self._gpu.sleep_ns(_COOL_LOOK_NS)

    def _take(self, pair: ClockPair, trace: Trace) -> None:
        """Match a measurement with the baseline's, and note what a reader must know of it."""
        assert self._base is not None
        alignment = align(self._base, trace, str(pair))
        if alignment.difference is not None:
            self._notes.append(
                f"another algorithm was chosen: {alignment.difference}; {alignment.unknown} of "
                f"{len(alignment.rows)} signatures have no cell at {pair}"
            )
        reasons, off = _reasons(trace), _off_the_lock(trace, pair)
        if off is not None:
            why = "under the power cap" if reasons & ThrottleReason.POWER else "by a slowdown"
            why = "for heat" if reasons & ThrottleReason.THERMAL else why
            self._notes.append(f"lock {pair}: {off} {why}; its row is the step as it ran")
        warmer = _temperature(trace) - _temperature(self._base)
        if abs(warmer) > _WARMER_C:
            self._notes.append(
                f"at {pair} the GPU was {abs(warmer):.0f} C "
                f"{'warmer' if warmer > 0 else 'cooler'} than at the baseline"
            )
        self._measured[pair] = MeasuredPair(trace, alignment, self._ran_at(pair, trace))

    def _ran_at(self, pair: ClockPair, trace: Trace) -> ClockPair | None:
        """The pair for the fit: as locked, or with the sensed clock; None if it cannot be used."""
        if _reasons(trace) & ThrottleReason.THERMAL:
            return None
        if _off_the_lock(trace, pair) is None:
            return pair
        ran = ClockPair(round(_sensed_mhz(trace) or 0), pair.mem_mhz)
        taken = {found.fitted_at for found in self._measured.values()} | set(self._pairs)
        return None if ran in taken else ran

    def _next_pair(self) -> ClockPair | None:
        if self._options.exhaustive or self._options.pairs is not None:
            done = {*self._measured, *self._left_out}
            return next((pair for pair in self._pairs if pair not in done), None)
        plan = self._plan()
        return None if plan is None else plan.next_pair()

    def _plan(self) -> SweepPlan | None:
        """The plan as it stands: pairs that fell out are gone, capped ones are where they ran."""
        useless = {pair for pair, found in self._measured.items() if found.fitted_at is None}
        gone = useless | set(self._left_out)
        ran = {pair: found.fitted_at for pair, found in self._measured.items() if found.fitted_at}
        pairs = [ran.get(pair, pair) for pair in self._pairs if pair not in gone]
        room = self._most() - len(gone)
        if not pairs or room < 1:
            return None
        cells = {ran[pair]: usable_cells(self._measured[pair]) for pair in ran}
        known = np.ones(len(self._base.signatures) if self._base is not None else 0, dtype=bool)
        for time_ns, _ in cells.values():
            known &= np.isfinite(time_ns)
        if cells and not known.any():
            raise NotSupportedError(
                "no kernel has a time and an energy at every measured pair, so nothing can be "
                "fitted; measure every pair: --exhaustive"
            )
        return SweepPlan(
            pairs,
            target_error=self._options.target_error,
            most_pairs=room,
            measured={
                pair: Cells(time_ns[known], energy_mj[known])
                for pair, (time_ns, energy_mj) in cells.items()
            },
        )

    def _most(self) -> int:
        """How many pairs may be visited."""
        if self._options.exhaustive or self._options.pairs is not None:
            return len(self._pairs)
        quarter = max(3, len(self._pairs) // 4)
        return min(self._options.most_pairs or quarter, len(self._pairs))

    def _stated_error(self) -> float | None:
        plan = self._plan()
        if plan is None or len(plan.measured) < 3:
            return None
        return plan.predict().median_error

    def _tell(self, pair: ClockPair) -> None:
        if self._on_progress is not None:
            error = None if pair.is_governor else self._stated_error()
            self._on_progress(Progress(len(self._measured), self._most(), pair, error))

    def _finished(self) -> Trace:
        assert self._base is not None
        notes = list(self._notes)
        planned = not self._options.exhaustive and self._options.pairs is None
        fitted = [p for p in self._pairs if p not in self._left_out] if planned else []
        count = len(self._measured)
        error = self._stated_error() if planned else None
        partial = self._partial
        if planned and error is not None:
            notes.append(
                f"{count} of {len(self._pairs)} clock pairs were measured, the others fitted with "
                f"a stated median error of {error:.1%}"
            )
        elif planned and partial is None and count:
            partial = f"{count} pairs held their locks; nothing is fitted to fewer than three"
        if not planned and partial is not None:
            partial += f": {count} of {len(self._pairs)} pairs are measured"
        if not count and partial is None:
            partial = "no clock pair held its lock"
        hot = [found for found in self._measured.values() if _reasons(found.trace) & _HEAT]
        if hot and len(hot) == count:
            notes.append(
                "the GPU throttled for heat at every pair: times and energies are those of a hot "
                "GPU; see to its cooling and trace again"
            )
        return merge(self._base, self._measured, fitted, notes=notes, partial=partial)


_HEAT = ThrottleReason.THERMAL
_EXPLAINS = ThrottleReason.THERMAL | ThrottleReason.POWER | ThrottleReason.HW_SLOWDOWN


def _sensed_mhz(trace: Trace) -> float | None:
    value = trace.pairs["sensed_core_mhz"].iloc[0]
    return None if pd.isna(value) else float(value)


def _reasons(trace: Trace) -> int:
    value = trace.pairs["throttle_reasons"].iloc[0]
    return 0 if pd.isna(value) else int(value)


def _temperature(trace: Trace) -> float:
    value = trace.pairs["temperature_c"].iloc[0]
    return float("nan") if pd.isna(value) else float(value)


def _off_the_lock(trace: Trace, pair: ClockPair) -> str | None:
    """How the sensed clock differs from the lock, in words; None if it does not or is unknown."""
    sensed = _sensed_mhz(trace)
    if sensed is None or pair.core_mhz is None:
        return None
    if abs(sensed - pair.core_mhz) <= max(_TOLERANCE_MHZ, _TOLERANCE * pair.core_mhz):
        return None
    return f"the core clock was sensed at {sensed:.0f} MHz"
