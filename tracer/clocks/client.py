"""The owner's side: ask a keeper for a lease, and keep it alive.

`KeeperClient.start` finds the operator's keeper (a socket) or starts a private one, which ends with
this process. The client itself sets nothing. A thread sends heartbeats; what it hears of a fault is
raised by the next call. After a fork the child must not use it: the lease is its parent's.

Left out: simulated GPUs, which live in the caller's process and have `local.LocalKeeper`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from ...data.errors import ClockwrightError, InputError, KeeperError, ReadOnlyError
from ...data.units import ClockPair
from ..gpu.nvml_probe import READ_ONLY_VARIABLE, is_read_only
from . import protocol
from .events import ClockEvent
from .link import DEFAULT_SOCKET, PRIVATE, SOCKET_VARIABLE, KeeperLink
from .page import TriggerPage

__all__ = ["KeeperClient", "numbered"]

_log = logging.getLogger("clockwright.clocks")
_BEATS_PER_TIMEOUT = 5


def numbered(pairs: Iterable[ClockPair]) -> dict[int, ClockPair]:
    """A table that grants ``pairs``, numbered from 1, for an owner that locks them directly."""
    return dict(enumerate(dict.fromkeys(pairs), start=1))


class KeeperClient:
    """A connection to a keeper. Use as a context manager, or call `close`.

    Made by `start`; the constructor takes a link that is up.

    Attributes:
        dry: True if every lease of this client sets nothing.
        keeper_pid: the keeper's process.
        guardian_pid: its guardian's; None in a dry keeper.
        warnings: what the keeper said at `acquire`, one line each.
    """

    def __init__(self, link: KeeperLink, *, dry: bool) -> None:
        self._link = link
        self._lock = threading.RLock()
        self._closed = False
        self._uuids: list[str] = []
        self._faults: dict[str, ClockwrightError] = {}
        self._told: dict[str, str] = {}  # faults already raised, by GPU
        self._stop_beats = threading.Event()
        self._beats: threading.Thread | None = None
        self._beat_s = float("inf")
        self.warnings: list[str] = []
        hello = link.ask("hello", protocol=protocol.PROTOCOL)
        self.dry = dry or bool(hello["dry"])
        self.keeper_pid: int = hello["keeper_pid"]
        self.guardian_pid: int | None = hello["guardian_pid"]

    @classmethod
    def start(
        cls,
        gpu_spec: str = "nvml",
        *,
        dry: bool = False,
        socket: str | os.PathLike[str] | None = None,
        options: Iterable[str] = (),
    ) -> Self:
        """Connect to the operator's keeper, or start a private one.

        Args:
            gpu_spec: the GPU as the user named it; only real GPUs have a keeper.
            dry: do everything but set.
            socket: the keeper's socket, or ``private`` to start one. By default
                $CLOCKWRIGHT_KEEPER, then /run/clockwright/keeper.sock if it is there, then
                private.
            options: further command-line options for a private keeper.

        Raises:
            InputError: a simulated GPU.
            KeeperError: the keeper cannot be reached or started.
            RightsError: this user may not use the operator's keeper.
        """
        if gpu_spec.strip().lower().startswith("sim"):
            raise InputError(
                f"{gpu_spec} is simulated and lives in this process: use LocalKeeper for it"
            )
        where = os.fspath(socket) if socket is not None else os.environ.get(SOCKET_VARIABLE, "")
        if not where:
            where = str(DEFAULT_SOCKET) if DEFAULT_SOCKET.exists() else PRIVATE
        if where == PRIVATE:
            link = KeeperLink.to_private([*(["--dry"] if dry else []), *options])
        else:
            link = KeeperLink.to_socket(Path(where))
        try:
            return cls(link, dry=dry)
        except BaseException:
            link.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except ClockwrightError as error:
            if kind is None:
                raise
            _log.error("%s", error)  # what ended the block is the error to raise

    def acquire(
        self, uuid: str, table: Mapping[int, ClockPair], *, heartbeat_s: float | None = None
    ) -> None:
        """Take the lease on a GPU.

        Args:
            uuid: the GPU's UUID.
            table: sequence number (1 or more) to pair; only these pairs, and the governor, may be
                set. `numbered` makes one from pairs.
            heartbeat_s: the lease is lost if this process is silent for longer; the keeper's
                default if None.

        Raises:
            RightsError, ReadOnlyError, NotSupportedError, NoDeviceError: it cannot be set here.
            DeviceBusyError: somebody else holds it; the message names the process.
            InputError: the table names what the GPU does not list.
            KeeperError: the journal cannot be kept, or the keeper is gone.
        """
        if is_read_only() and not self.dry:
            raise ReadOnlyError(
                f"{READ_ONLY_VARIABLE} is set: no lease to set clocks is asked for; unset it, or "
                "use dry mode"
            )
        rows = protocol.table_to_json(table)
        reply = self._link.ask(
            "acquire", uuid=uuid, table=rows, dry=self.dry, heartbeat_s=heartbeat_s
        )
        self.warnings += reply["warnings"]
        for warning in reply["warnings"]:
            _log.warning("%s", warning)
        if uuid not in self._uuids:
            self._uuids.append(uuid)
        self._forget_fault(uuid)
        self._start_beats(float(reply["heartbeat_s"]))

    def lock(self, pair: ClockPair, uuid: str | None = None) -> ClockEvent:
        """Set a granted pair now, and return what was done and when.

        Raises:
            InputError: the table granted does not name it.
            KeeperError: too many switches in a second, or the lease is lost.
            DeviceError: the driver refused; the baseline is back in force.
        """
        self._forget_fault(uuid)
        reply = self._ask_leased("lock", uuid, pair=str(pair))
        return ClockEvent.from_json(reply["event"])

    def confirm(self, uuid: str | None = None, *, timeout_s: float = 2.0) -> str | None:
        """Wait until the keeper has read back whether the lock holds (about 0.3 s).

        Returns:
            ``held``, or why the clock may be off the lock: ``power_capped``, ``thermal``, ``idle``
            (the driver drops an idle GPU's clocks), ``unknown``. None in dry mode, or if nothing is
            locked.

        Raises:
            LockNotHeldError: the lock returned success and does not hold; the baseline is restored.
            KeeperError: no answer in time.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            state = self._ask_leased("state", uuid)
            if state["fault"] is not None:
                raise protocol.error_from_json(state["fault"])
            if state["judged"]:
                return state["verdict"] if state["verdict"] is None else str(state["verdict"])
            if time.monotonic() >= until_s:
                raise KeeperError(f"the keeper has not read the lock back in {timeout_s:g} s")
            time.sleep(0.01)

    def release(self, uuid: str | None = None) -> None:
        """Go back to the baseline and keep the lease.

        Raises:
            KeeperError: the clocks could not be given back, or the lease is lost.
        """
        self._ask_leased("release", uuid)

    def set_power_limit_w(self, limit_w: float | None, uuid: str | None = None) -> ClockEvent:
        """Set the power cap under the lease; None goes back to the prior cap.

        Raises:
            InputError, RightsError, NotSupportedError: as the GPU says.
            KeeperError: too many requests in a second, or the lease is lost.
        """
        reply = self._ask_leased("power", uuid, limit_w=limit_w)
        return ClockEvent.from_json(reply["event"])

    def arm(self, page: TriggerPage, uuid: str | None = None) -> None:
        """Have the keeper follow the page: each number written there sets what the table names.

        Raises:
            FormatError: not a page this keeper reads.
            KeeperError: the journal cannot be kept, or the lease is lost.
        """
        self._forget_fault(uuid)
        self._ask_leased("arm", uuid, fds=(page.fd,))

    def disarm(self, uuid: str | None = None) -> None:
        """Stop following the page and go back to the baseline."""
        self._ask_leased("disarm", uuid)

    def poll(self) -> None:
        """Nothing: the keeper's own process looks at the page (`LocalKeeper.poll` must)."""

    def events(self, uuid: str | None = None) -> tuple[ClockEvent, ...]:
        """Everything asked of the driver under this lease, oldest first, as far as it is kept."""
        events: list[ClockEvent] = []
        since, count = 0, 1
        while since < count:
            reply = self._ask_leased("events", uuid, since=since, check=False)
            events += [ClockEvent.from_json(values) for values in reply["events"]]
            since, count = reply["first"] + len(reply["events"]), reply["count"]
            if not reply["events"]:
                break
        return tuple(events)

    def check(self) -> None:
        """Raise what the last heartbeat brought: why the keeper no longer follows this owner.

        Raises:
            LockNotHeldError, InputError, KeeperError, DeviceError: the fault, once.
        """
        self._link.require_maker()
        with self._lock:
            if self._faults:
                uuid, fault = self._faults.popitem()
                self._told[uuid] = str(fault)
                raise fault

    def status(self) -> dict[str, Any]:
        """Who holds which GPU of this keeper: ``{"leases": {uuid: {...}}, "state": folder}``."""
        return self._link.ask("status")

    def end(self, uuid: str | None = None) -> None:
        """Give one GPU back and keep the connection.

        Raises:
            KeeperError: something could not be given back.
        """
        uuid = self._one(uuid)
        self._uuids.remove(uuid)
        self._link.ask("end", uuid=uuid)

    def close(self) -> None:
        """Give everything back and part; a private keeper ends. Safe to call twice.

        Raises:
            KeeperError: something could not be given back; the keeper's journal still names it.
        """
        if self._closed:
            return
        self._closed = True
        if self._link.is_forked:
            self._link.close()  # this copy only; the lease is the parent's
            return
        self._stop_beats.set()
        if self._beats is not None:
            self._beats.join()
        failure: ClockwrightError | None = None
        for uuid in self._uuids:
            try:
                self._link.ask("end", uuid=uuid)
            except ClockwrightError as error:
                failure = failure or error
        self._link.close()
        if failure is not None:
            raise failure

    def _one(self, uuid: str | None) -> str:
        if uuid is not None:
            return uuid
        if len(self._uuids) != 1:
            raise InputError(
                f"this client holds {len(self._uuids)} leases; acquire one, or say which GPU"
            )
        return self._uuids[0]

    def _ask_leased(
        self,
        op: str,
        uuid: str | None,
        *,
        fds: tuple[int, ...] = (),
        check: bool = True,
        **fields: Any,
    ) -> dict[str, Any]:
        if check:
            self.check()
        return self._link.ask(op, fds=fds, uuid=self._one(uuid), **fields)

    def _forget_fault(self, uuid: str | None) -> None:
        """A new request starts afresh: the same fault, if it comes again, is told again."""
        self._told.pop(uuid if uuid is not None else self._one(None), None)

    def _start_beats(self, heartbeat_s: float) -> None:
        self._beat_s = min(self._beat_s, heartbeat_s / _BEATS_PER_TIMEOUT)
        if self._beats is None:
            self._beats = threading.Thread(
                target=self._beat, name="clockwright-heartbeat", daemon=True
            )
            self._beats.start()

    def _beat(self) -> None:
        while not self._stop_beats.wait(min(self._beat_s, 1.0)):
            try:
                reply = self._link.ask("beat")
            except ClockwrightError as error:
                self._faults[""] = error
                return
            ended = "was ended and its clocks given back"
            lost = {
                uuid: KeeperError(f"the lease on {uuid} {ended}: {why}")
                for uuid, why in reply["lost"].items()
            }
            found = {
                uuid: protocol.error_from_json(fault) for uuid, fault in reply["faults"].items()
            }
            for uuid, fault in (found | lost).items():
                if self._told.get(uuid) != str(fault):
                    self._faults[uuid] = fault
