"""One owner's right to set one GPU's clocks, and everything that ends it.

A lease knows the granted table (sequence number to pair), the journal entry that undoes it, and
how many switches a second the host allows. Every set passes through here, from the owner's direct
calls and from the poller's thread alike; one lock serialises them, and once `end` holds it nothing
can be set again.

Left out: what the pairs are for. The keeper knows no schedules.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from ...data.errors import (
    ClockwrightError,
    DeviceError,
    InputError,
    KeeperError,
    LockNotHeldError,
    NotSupportedError,
    ReadOnlyError,
    RightsError,
)
from ...data.units import GOVERNOR, ClockPair
from ..gpu.protocol import Gpu, Reading
from .events import ClockEvent, Outcome
from .holding import HoldMonitor
from .journal import CLOCKS, POWER_LIMIT, GpuJournal, JournalEntry
from .limits import NS_PER_S, Limits, SwitchRate, check_table
from .restore import give_back

__all__ = ["Lease"]

_log = logging.getLogger("clockwright.clocks")


class Lease:
    """A lease on one GPU; safe to use from several threads.

    Args:
        gpu: the open GPU; the lease closes it at its end.
        table: sequence number to pair; nothing else may be locked.
        limits: what the keeper allows.
        entry: the prior state, and what to go back to.
        journal: where ``entry`` is kept; None in a dry or simulated lease.
        dry: do everything but the driver's setters.
        owns_gpu: close the GPU at the lease's end.

    Attributes:
        fault: why the keeper stopped following the owner; None while all is well.
        reading: the last reading taken to see whether the lock holds.
    """

    def __init__(
        self,
        gpu: Gpu,
        table: Mapping[int, ClockPair],
        limits: Limits,
        entry: JournalEntry,
        *,
        journal: GpuJournal | None,
        dry: bool,
        owns_gpu: bool = True,
    ) -> None:
        check_table(gpu, table)
        self.gpu, self.dry, self._owns_gpu = gpu, dry, owns_gpu
        self.fault: ClockwrightError | None = None
        self.reading: Reading | None = None
        self.monitor = HoldMonitor(int(limits.settle_s * NS_PER_S))
        self._table = dict(table)
        self._granted = frozenset(table.values()) | {GOVERNOR}
        self._entry, self._journal = entry, journal
        self._lock = threading.RLock()
        self._ended = False
        self._pair = GOVERNOR  # as last set by us; at first nothing is
        self._attempted: set[str] = set()  # settings whose setter this lease has called
        self._sets = 0
        self._rate = SwitchRate(limits.max_switches_per_s, gpu.info.uuid)
        self._events: deque[ClockEvent] = deque(maxlen=limits.kept_events)
        self._event_count = 0

    @property
    def owner_pid(self) -> int:
        """The process that holds the lease."""
        return self._entry.owner_pid

    @property
    def pair(self) -> ClockPair:
        """The pair in force as far as this lease set it; the governor otherwise."""
        return self._pair

    @property
    def event_count(self) -> int:
        """Events so far, dropped ones included."""
        return self._event_count

    def events(self, since: int, most: int) -> tuple[int, list[ClockEvent]]:
        """Up to ``most`` events from number ``since`` on, and the number of the first of them."""
        with self._lock:
            kept = list(self._events)
            first = max(since, self._event_count - len(kept))
            begin = first - (self._event_count - len(kept))
        return first, kept[begin : begin + most]

    def lock(self, pair: ClockPair) -> ClockEvent:
        """Set a granted pair at the owner's direct request.

        Raises:
            InputError: the table does not name it.
            KeeperError: too many switches, or the lease has ended.
            DeviceError: the driver refused; the baseline is back in force.
        """
        with self._lock:
            self._check_open()
            if pair not in self._granted:
                raise InputError(
                    f"the pair {pair} is not in the table granted for {self.gpu.info.uuid}; "
                    "acquire the GPU with every pair that is to be set"
                )
            self.fault = None
            return self._set(pair, 0, 0, self.gpu.now_ns())

    def follow(self, sequence: int, step: int, seen_ns: int) -> ClockEvent:
        """Set what the table names for a sequence number seen on the page.

        Raises:
            InputError: the table does not name the number.
            KeeperError, DeviceError: as `lock`.
        """
        with self._lock:
            self._check_open()
            if self.fault is not None:
                raise self.fault
            pair = self._table.get(sequence)
            if pair is None:
                self._record(sequence, step, seen_ns, seen_ns, None, Outcome.REFUSED)
                raise InputError(
                    f"sequence number {sequence} is not in the table granted for "
                    f"{self.gpu.info.uuid}"
                )
            return self._set(pair, sequence, step, seen_ns)

    def release(self) -> None:
        """Go back to the baseline and keep the lease. Does nothing if nothing was set.

        Raises:
            KeeperError: the clocks could not be given back, or the lease has ended.
        """
        with self._lock:
            self._check_open()
            self._to_baseline()

    def set_power_limit_w(self, limit_w: float | None) -> ClockEvent:
        """Set the power cap; None goes back to the prior one.

        Raises:
            InputError, RightsError, NotSupportedError: as the GPU says.
            KeeperError: too many switches, the journal cannot be kept, or the lease has ended.
        """
        with self._lock:
            self._check_open()
            seen_ns = self.gpu.now_ns()
            if limit_w is None:
                if not self.dry and POWER_LIMIT in self._entry.touched:
                    self._give_back(POWER_LIMIT)
                prior_w = self._entry.prior.power_limit_w
                outcome = Outcome.DRY if self.dry else Outcome.SET
                return self._record(0, 0, seen_ns, seen_ns, self._pair, outcome, prior_w)
            self._rate.count(seen_ns)
            call_ns = self.gpu.now_ns()
            outcome = Outcome.DRY
            if not self.dry:
                self._touch(POWER_LIMIT)
                self._request_power_limit(limit_w)
                outcome = Outcome.SET
            return self._record(0, 0, seen_ns, call_ns, self._pair, outcome, limit_w)

    def prepare(self) -> None:
        """Write the journal for clocks now, so that the poller never waits for a disk.

        Raises:
            KeeperError: it cannot be written.
        """
        with self._lock:
            self._check_open()
            self.fault = None
            if not self.dry:
                self._touch(CLOCKS)

    def fail(self, error: ClockwrightError) -> None:
        """Stop following the owner: keep the error for it and go back to the baseline."""
        with self._lock:
            if self._ended:
                return
            self.fault = error
            _log.warning("%s: %s; back to the baseline", self.gpu.info.uuid, error)
            try:
                self._to_baseline()
            except ClockwrightError as failure:
                _log.error("%s: %s", self.gpu.info.uuid, failure)
                self.fault = KeeperError(f"{error}; then {failure}")

    def look(self) -> None:
        """Read back, when it is time to, whether the lock holds; a lock that does not is a fault.

        A GPU that cannot be read is left to the next request to find.
        """
        with self._lock:
            now_ns = self.gpu.now_ns()
            if self._ended or self.dry or not self.monitor.due(now_ns):
                return
            try:
                self.reading = self.gpu.read(energy=False)
            except DeviceError as error:
                self.fail(error)
                return
            if self.monitor.look(self.reading, now_ns):
                self.fail(
                    LockNotHeldError(
                        f"locking {self.gpu.info.uuid} to {self._pair} returned success, but the "
                        f"driver reports {self.reading.core_mhz} MHz core and "
                        f"{self.reading.mem_mhz} MHz memory (reasons "
                        f"{self.reading.throttle_reasons}); the baseline is restored. Choose "
                        "pairs that this GPU holds"
                    )
                )

    def end(self) -> None:
        """Give everything back and let the GPU go; nothing can be set afterwards.

        Raises:
            KeeperError: something could not be given back; the journal stays for a repair.
        """
        with self._lock:
            if self._ended:
                return
            self._ended = True
            try:
                if not self.dry:
                    self._give_back_all()
                    if self._journal is not None:
                        self._journal.clear()
            finally:
                if self._journal is not None:
                    self._journal.close()
                if self._owns_gpu:
                    self.gpu.close()

    def _check_open(self) -> None:
        if self._ended:
            raise KeeperError(f"the lease on {self.gpu.info.uuid} has ended; acquire it again")

    def _set(self, pair: ClockPair, sequence: int, step: int, seen_ns: int) -> ClockEvent:
        if pair == self._pair:
            return self._record(sequence, step, seen_ns, seen_ns, pair, Outcome.SAME)
        try:
            self._rate.count(seen_ns)
        except KeeperError:
            self._record(sequence, step, seen_ns, seen_ns, pair, Outcome.REFUSED)
            raise
        if not self.dry:
            self._touch(CLOCKS)
        call_ns = self.gpu.now_ns()
        if self.dry:
            self._pair = pair
            return self._record(sequence, step, seen_ns, call_ns, pair, Outcome.DRY)
        try:
            self._request(pair)
        except DeviceError:
            self._record(sequence, step, seen_ns, call_ns, pair, Outcome.FAILED)
            self._after_refusal()
            raise
        self._sets += 1
        self._pair = pair
        self.monitor.note_set(pair, self.gpu.now_ns())
        return self._record(sequence, step, seen_ns, call_ns, pair, Outcome.SET)

    def _request(self, pair: ClockPair) -> None:
        """A clock that was locked and is None in the new pair must be given back first."""
        held = self._pair
        drops_mem = held.mem_mhz is not None and pair.mem_mhz is None
        drops_core = held.core_mhz is not None and pair.core_mhz is None
        self._attempted.add(CLOCKS)
        if pair.is_governor:
            self._back_to_standing()
            return
        if drops_mem or drops_core:
            self.gpu.release()
        self.gpu.lock(pair)

    def _request_power_limit(self, limit_w: float) -> None:
        self._attempted.add(POWER_LIMIT)
        try:
            self.gpu.set_power_limit_w(limit_w)
        except (InputError, RightsError, ReadOnlyError, NotSupportedError):
            if not self._sets:
                self._forget_touch(POWER_LIMIT)
            raise
        self._sets += 1

    def _back_to_standing(self) -> None:
        self.gpu.release()
        if not self._entry.standing.is_governor:
            self.gpu.lock(self._entry.standing)

    def _after_refusal(self) -> None:
        """A set that failed may have been half done; a refusal for rights was not done at all."""
        try:
            self._to_baseline(always=True)
        except RightsError:
            if self._sets:
                raise
            self._forget_touch(CLOCKS)

    def _to_baseline(self, *, always: bool = False) -> None:
        if self.dry or (self._pair.is_governor and not always):
            self._pair = GOVERNOR
            return
        self._give_back(CLOCKS)
        self._pair = GOVERNOR
        self.monitor.note_set(GOVERNOR, self.gpu.now_ns())

    def _give_back(self, what: str) -> None:
        give_back(self.gpu, replace(self._entry, touched=frozenset({what})))

    def _give_back_all(self) -> None:
        # What the journal names but no setter was called for is as its owner left it.
        touched = self._entry.touched & self._attempted
        try:
            give_back(self.gpu, replace(self._entry, touched=touched))
        except RightsError as error:
            if self._sets:
                uuid = self.gpu.info.uuid
                raise KeeperError(f"{uuid} could not be given back: {error}") from error

    def _touch(self, what: str) -> None:
        if what in self._entry.touched:
            return
        entry = self._entry.touching(what)
        if self._journal is not None:
            self._journal.write(entry)
        self._entry = entry

    def _forget_touch(self, what: str) -> None:
        self._attempted.discard(what)
        entry = replace(self._entry, touched=self._entry.touched - {what})
        if self._journal is not None:
            self._journal.write(entry)
        self._entry = entry

    def _record(
        self,
        sequence: int,
        step: int,
        seen_ns: int,
        call_ns: int,
        pair: ClockPair | None,
        outcome: Outcome,
        power_limit_w: float | None = None,
    ) -> ClockEvent:
        event = ClockEvent(
            sequence=sequence,
            step=step,
            seen_ns=seen_ns,
            call_ns=call_ns,
            done_ns=self.gpu.now_ns(),
            pair=pair,
            outcome=outcome,
            power_limit_w=power_limit_w,
        )
        self._events.append(event)
        self._event_count += 1
        return event
