"""The keeper's interface for a simulated GPU, which lives in the caller's process on virtual time.

There is no clock on hardware to give back, so there is no process, journal or guardian; the table,
the rate of switches, the events and the check that locks hold are those of a real lease. Nobody
looks at a page between the simulation's own steps: call `LocalKeeper.poll` after a kernel that
wrote to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from ...data.errors import ClockwrightError, DeviceBusyError, InputError, KeeperError
from ...data.units import ClockPair
from ..gpu.prior_state import PriorState
from ..gpu.protocol import Gpu
from .client import KeeperClient
from .events import ClockEvent
from .journal import JournalEntry
from .lease import Lease
from .limits import NS_PER_S, Limits
from .page import TriggerPage
from .poller import PageFollower

__all__ = ["ClockKeeper", "LocalKeeper", "open_keeper"]

_LOOK_NS = 10_000_000


class ClockKeeper(Protocol):
    """What `KeeperClient` and `LocalKeeper` have in common; see `KeeperClient` for each."""

    dry: bool
    warnings: list[str]

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def acquire(
        self, uuid: str, table: Mapping[int, ClockPair], *, heartbeat_s: float | None = None
    ) -> None:
        """Take the lease on a GPU."""

    def lock(self, pair: ClockPair, uuid: str | None = None) -> ClockEvent:
        """Set a granted pair now."""
        ...

    def confirm(self, uuid: str | None = None, *, timeout_s: float = 2.0) -> str | None:
        """Wait until the lock has been read back."""

    def release(self, uuid: str | None = None) -> None:
        """Go back to the baseline and keep the lease."""

    def set_power_limit_w(self, limit_w: float | None, uuid: str | None = None) -> ClockEvent:
        """Set the power cap; None goes back to the prior one."""
        ...

    def arm(self, page: TriggerPage, uuid: str | None = None) -> None:
        """Follow the page."""

    def disarm(self, uuid: str | None = None) -> None:
        """Stop following the page and go back to the baseline."""

    def poll(self) -> None:
        """Look at the page now, where no other process does."""

    def events(self, uuid: str | None = None) -> tuple[ClockEvent, ...]:
        """Everything asked of the GPU under this lease, oldest first."""
        ...

    def check(self) -> None:
        """Raise why the keeper no longer follows this owner, if so."""

    def end(self, uuid: str | None = None) -> None:
        """Give one GPU back."""

    def close(self) -> None:
        """Give everything back."""


class LocalKeeper:
    """A keeper of one simulated GPU, in this process.

    Args:
        gpu: the simulated GPU; it stays open at the end.
        dry: do everything but set.
        limits: as a real keeper's.

    Raises:
        InputError: a real GPU, whose clocks only the keeper process may set.
    """

    def __init__(self, gpu: Gpu, *, dry: bool = False, limits: Limits | None = None) -> None:
        if not gpu.info.simulated:
            raise InputError(
                f"{gpu.info.name} is real: only the keeper process may set its clocks; use "
                "KeeperClient.start"
            )
        self.dry = dry
        self.warnings: list[str] = []
        self._gpu, self._limits = gpu, limits or Limits()
        self._lease: Lease | None = None
        self._page: TriggerPage | None = None
        self._follower: PageFollower | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def acquire(
        self, uuid: str, table: Mapping[int, ClockPair], *, heartbeat_s: float | None = None
    ) -> None:
        """Take the lease; ``heartbeat_s`` has no meaning here.

        Raises:
            InputError: another GPU's UUID, or a table naming what the GPU does not list.
            DeviceBusyError: this keeper has granted it already.
        """
        info = self._gpu.info
        if uuid != info.uuid:
            raise InputError(f"this keeper serves the simulated GPU {info.uuid}, not {uuid}")
        if self._lease is not None:
            raise DeviceBusyError(f"{uuid} is held by process {os.getpid()}, this one")
        prior = PriorState(uuid, power_limit_w=info.power_limit_w)
        entry = JournalEntry(None, "local", os.getpid(), os.getpid(), prior)
        self._lease = Lease(
            self._gpu, table, self._limits, entry, journal=None, dry=self.dry, owns_gpu=False
        )

    def lock(self, pair: ClockPair, uuid: str | None = None) -> ClockEvent:
        """Set a granted pair now."""
        return self._leased(uuid).lock(pair)

    def confirm(self, uuid: str | None = None, *, timeout_s: float = 2.0) -> str | None:
        """Let virtual time pass until the lock can be read back, and judge it."""
        lease = self._leased(uuid)
        until_ns = self._gpu.now_ns() + int(timeout_s * NS_PER_S)
        while not lease.dry and not lease.monitor.judged:
            if self._gpu.now_ns() >= until_ns:
                raise KeeperError(f"the lock could not be read back in {timeout_s:g} s")
            self._gpu.sleep_ns(_LOOK_NS)
            lease.look()
        if lease.fault is not None:
            raise lease.fault
        verdict = lease.monitor.verdict
        return None if verdict is None or lease.dry else verdict.name.lower()

    def release(self, uuid: str | None = None) -> None:
        """Go back to the baseline and keep the lease."""
        self._leased(uuid).release()

    def set_power_limit_w(self, limit_w: float | None, uuid: str | None = None) -> ClockEvent:
        """Set the power cap; None goes back to the prior one."""
        return self._leased(uuid).set_power_limit_w(limit_w)

    def arm(self, page: TriggerPage, uuid: str | None = None) -> None:
        """Follow the page, whenever `poll` is called."""
        lease = self._leased(uuid)
        lease.prepare()
        page.fault, page.armed = False, True
        self._page, self._follower = page, PageFollower(lease, page)

    def disarm(self, uuid: str | None = None) -> None:
        """Stop following the page and go back to the baseline."""
        if self._page is not None:
            self._page.armed = False
        self._page = self._follower = None
        self._leased(uuid).release()

    def poll(self) -> None:
        """Look at the page once and set what it asks for; a fault is kept for `check`."""
        if self._follower is None or self._page is None or self._lease is None:
            return
        try:
            self._follower.look()
        except ClockwrightError as error:
            self._lease.fail(error)
            self._page.fault, self._page.armed = True, False
            self._page = self._follower = None

    def events(self, uuid: str | None = None) -> tuple[ClockEvent, ...]:
        """Everything asked of the GPU under this lease, oldest first."""
        return tuple(self._leased(uuid).events(0, self._limits.kept_events)[1])

    def check(self) -> None:
        """Raise the fault, if there is one."""
        if self._lease is not None and self._lease.fault is not None:
            raise self._lease.fault

    def end(self, uuid: str | None = None) -> None:
        """Give the GPU back."""
        lease, self._lease = self._leased(uuid), None
        if self._page is not None:
            self._page.armed = False
        self._page = self._follower = None
        lease.end()

    def close(self) -> None:
        """Give the GPU back, if it is held. Safe to call twice."""
        if self._lease is not None:
            self.end()

    def _leased(self, uuid: str | None) -> Lease:
        if self._lease is None or uuid not in (None, self._gpu.info.uuid):
            raise KeeperError(f"no lease on {uuid or self._gpu.info.uuid}; acquire it first")
        return self._lease


def open_keeper(
    gpu: Gpu, *, dry: bool = False, socket: str | os.PathLike[str] | None = None
) -> ClockKeeper:
    """The keeper for a GPU: in this process for a simulated one, else `KeeperClient.start`."""
    if gpu.info.simulated:
        return LocalKeeper(gpu, dry=dry)
    return KeeperClient.start(f"nvml:{gpu.info.uuid}", dry=dry, socket=socket)
