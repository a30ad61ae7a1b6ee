"""The keeper: leases for owners, and nothing set without one. It knows no schedules.

This module answers requests and keeps the leases; `server` brings the requests in, `lease` sets
clocks, `guardian` stands by. Every lease ends in one place, `Keeper.end_leases`, whatever ended it:
the owner's own word, its socket, its process, its silence, or the keeper's end.
"""

from __future__ import annotations

import logging
import os
import time
import uuid as uuids
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ...data.errors import ClockwrightError, DeviceBusyError, InputError, KeeperError
from ...data.units import ClockPair, parse_pair
from ..gpu.nvml_probe import is_read_only
from . import protocol
from .granting import KeeperOptions, grant_dry, grant_real
from .guardian import Guardian
from .lease import Lease
from .page import TriggerPage
from .peers import process_name
from .poller import Poller
from .restore import OpenGpu, RepairNote, open_real, repair

__all__ = ["Keeper", "Owner"]

_log = logging.getLogger("clockwright.clocks")
_EVENTS_PER_REPLY = 2_000


class _Who(TypedDict):
    keeper_id: str
    owner_pid: int


@dataclass(eq=False)
class Owner:
    """One connected process.

    Attributes:
        pid: its process, 0 if unknown.
        heard_s: when its last message came (monotonic seconds).
        leases: its GPUs by UUID.
        lost: GPUs whose lease was ended without its asking, and why.
    """

    pid: int
    heard_s: float
    leases: dict[str, Lease] = field(default_factory=dict)
    pollers: dict[str, Poller] = field(default_factory=dict)
    heartbeat_s: dict[str, float] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


class Keeper:
    """All leases of one process.

    Args:
        options: how it was started.
        open_gpu: opens a GPU by UUID; its second argument lets setters through.
    """

    def __init__(self, options: KeeperOptions, open_gpu: OpenGpu = open_real) -> None:
        self.options, self._open_gpu = options, open_gpu
        self.keeper_id = uuids.uuid4().hex
        self.guardian = Guardian(self.keeper_id, options.state)
        self.owners: list[Owner] = []
        self._handlers: dict[str, Callable[[Owner, Mapping[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "beat": self._beat,
            "acquire": self._acquire,
            "lock": lambda o, m: {"event": self._lease(o, m).lock(_pair(m)).to_json()},
            "release": self._release,
            "power": self._power,
            "disarm": self._disarm,
            "events": self._events,
            "state": self._state,
            "end": self._end,
            "status": self._status,
        }

    def start(self) -> list[RepairNote]:
        """Start the guardian, and repair what dead keepers left set; returns what was done."""
        if self.options.dry or is_read_only():
            return []
        self.guardian.start()
        notes = repair(self.options.state, self._open_gpu)
        for note in notes:
            _log.warning("%s", note.text)
        return notes

    def answer(
        self, owner: Owner, message: Mapping[str, Any], fds: deque[int] | None = None
    ) -> dict[str, Any]:
        """The reply to one request. Never raises: an error becomes an error reply.

        Args:
            owner: who asks.
            message: the request.
            fds: file descriptors that came with the connection and are not used yet; ``arm``
                takes the first.
        """
        reply: dict[str, Any] = {"id": message.get("id")}
        try:
            name = protocol.field(message, "op", str)
            if name == "arm":
                result = self._arm(owner, message, fds)
            elif name in self._handlers:
                result = self._handlers[name](owner, message)
            else:
                known = ", ".join(sorted([*self._handlers, "arm"]))
                raise InputError(f"the clock keeper knows {known}; got {name!r}")
        except ClockwrightError as error:
            return reply | {"ok": False, "error": protocol.error_to_json(error)}
        except Exception as error:  # noqa: BLE001  one owner's odd request must not end the others
            _log.exception("request %r failed", message.get("op"))
            return reply | {"ok": False, "error": protocol.error_to_json(error)}
        finally:
            owner.heard_s = time.monotonic()  # while it waits for the answer it cannot beat
        return reply | {"ok": True, **result}

    def tick(self, *, heard_all: bool = True) -> None:
        """What time alone brings: missed heartbeats, and looks at whether locks hold.

        Args:
            heard_all: False if messages may have come that were not read yet, so that an owner's
                silence may be the keeper's own deafness.
        """
        now_s = time.monotonic()
        for owner in self.owners:
            limits_s = list(owner.heartbeat_s.items()) if heard_all else []
            for uuid, limit_s in limits_s:
                if now_s - owner.heard_s > limit_s:
                    why = f"no heartbeat from process {owner.pid} for {limit_s:g} s"
                    self.end_leases(owner, why, only=uuid)
            for lease in owner.leases.values():
                lease.look()

    def end_leases(self, owner: Owner, why: str, only: str | None = None) -> list[str]:
        """End an owner's leases and give their GPUs back; a line for each that could not be."""
        failures = []
        for uuid in [only] if only is not None else list(owner.leases):
            lease = owner.leases.pop(uuid)
            owner.heartbeat_s.pop(uuid)
            poller = owner.pollers.pop(uuid, None)
            if poller is not None:
                poller.close()
            try:
                lease.end()
            except Exception as error:  # noqa: BLE001  the other GPUs must still be given back
                _log.error("%s: %s", uuid, error)
                failures.append(str(error))
            if why:
                owner.lost[uuid] = why
                _log.warning("%s: the lease ended: %s", uuid, why)
        return failures

    def end_unguarded(self, why: str) -> None:
        """End every lease that may set: without a guardian, none may stand."""
        for owner in self.owners:
            for uuid in [uuid for uuid, lease in owner.leases.items() if not lease.dry]:
                self.end_leases(owner, why, only=uuid)

    def close(self, why: str = "the keeper ends") -> None:
        """End every lease, then let the guardian go."""
        for owner in self.owners:
            self.end_leases(owner, why)
        self.guardian.close()

    def _lease(self, owner: Owner, message: Mapping[str, Any]) -> Lease:
        uuid = protocol.field(message, "uuid", str)
        lease = owner.leases.get(uuid)
        if lease is not None:
            return lease
        if uuid in owner.lost:
            raise KeeperError(
                f"the lease on {uuid} was ended and its clocks given back: {owner.lost[uuid]}; "
                "acquire it again"
            )
        raise KeeperError(f"this connection holds no lease on {uuid}; acquire it first")

    def _hello(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        version = protocol.field(message, "protocol", int)
        if version != protocol.PROTOCOL:
            raise KeeperError(
                f"this clock keeper speaks protocol {protocol.PROTOCOL}, the owner {version}: use "
                "the same release of clockwright on both sides"
            )
        return {
            "protocol": protocol.PROTOCOL,
            "keeper_pid": os.getpid(),
            "guardian_pid": self.guardian.pid,
            "owner_pid": owner.pid,
            "dry": self.options.dry,
            "read_only": is_read_only(),
            "max_switches_per_s": self.options.limits.max_switches_per_s,
        }

    def _beat(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        faults = {
            uuid: protocol.error_to_json(lease.fault)
            for uuid, lease in owner.leases.items()
            if lease.fault is not None
        }
        return {"faults": faults, "lost": owner.lost}

    def _acquire(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        uuid = protocol.field(message, "uuid", str)
        table = protocol.table_from_json(protocol.field(message, "table", dict))
        dry = self.options.dry or protocol.field(message, "dry", bool)
        heartbeat_s = self.options.limits.heartbeat_s
        if message.get("heartbeat_s") is not None:
            heartbeat_s = min(max(protocol.field(message, "heartbeat_s", float), 0.1), 3600.0)
        if self.options.gpus and uuid not in self.options.gpus:
            raise InputError(f"this clock keeper serves {', '.join(self.options.gpus)}; not {uuid}")
        self._check_free(uuid)
        who: _Who = {"keeper_id": self.keeper_id, "owner_pid": owner.pid}
        warnings: list[str] = []
        if dry:
            lease = grant_dry(uuid, table, self.options, self._open_gpu, **who)
        else:
            lease, warnings = grant_real(
                uuid, table, self.options, self._open_gpu, guardian=self.guardian, **who
            )
        owner.leases[uuid], owner.heartbeat_s[uuid] = lease, heartbeat_s
        owner.lost.pop(uuid, None)
        return {"dry": dry, "heartbeat_s": heartbeat_s, "warnings": warnings}

    def _check_free(self, uuid: str) -> None:
        for other in self.owners:
            if uuid in other.leases:
                raise DeviceBusyError(
                    f"{uuid} is held by process {process_name(other.pid)}; wait for it to end, or "
                    "end it"
                )

    def _release(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        self._lease(owner, message).release()
        return {}

    def _power(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        lease = self._lease(owner, message)
        limit_w = message.get("limit_w")
        if limit_w is not None:
            limit_w = protocol.field(message, "limit_w", float)
        return {"event": lease.set_power_limit_w(limit_w).to_json()}

    def _arm(
        self, owner: Owner, message: Mapping[str, Any], fds: deque[int] | None
    ) -> dict[str, Any]:
        if not fds:
            raise InputError("arm needs the shared page's file descriptor with the request")
        page = TriggerPage.from_fd(fds.popleft())
        try:
            lease = self._lease(owner, message)
            uuid = protocol.field(message, "uuid", str)
            self._stop_polling(owner, uuid)
            lease.prepare()
        except BaseException:
            page.close()
            raise
        poller = owner.pollers[uuid] = Poller(lease, page, self.options.poll_sleep_s)
        poller.start()
        return {}

    def _stop_polling(self, owner: Owner, uuid: str) -> None:
        poller = owner.pollers.pop(uuid, None)
        if poller is not None:
            poller.close()

    def _disarm(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        lease = self._lease(owner, message)
        self._stop_polling(owner, protocol.field(message, "uuid", str))
        lease.release()
        return {}

    def _events(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        lease = self._lease(owner, message)
        since = protocol.field(message, "since", int)
        first, events = lease.events(since, _EVENTS_PER_REPLY)
        return {
            "first": first,
            "count": lease.event_count,
            "events": [event.to_json() for event in events],
        }

    def _state(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        lease = self._lease(owner, message)
        monitor, reading = lease.monitor, lease.reading
        return {
            "pair": str(lease.pair),
            "judged": monitor.judged or lease.dry,
            "verdict": None if monitor.verdict is None else monitor.verdict.name.lower(),
            "core_mhz": None if reading is None else reading.core_mhz,
            "mem_mhz": None if reading is None else reading.mem_mhz,
            "fault": None if lease.fault is None else protocol.error_to_json(lease.fault),
        }

    def _end(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        self._lease(owner, message)
        failures = self.end_leases(owner, "", only=protocol.field(message, "uuid", str))
        if failures:
            raise KeeperError("; ".join(failures))
        return {}

    def _status(self, owner: Owner, message: Mapping[str, Any]) -> dict[str, Any]:
        held = {
            uuid: {"owner_pid": other.pid, "pair": str(lease.pair), "dry": lease.dry}
            for other in self.owners
            for uuid, lease in other.leases.items()
        }
        return {"leases": held, "state": str(self.options.state)}


def _pair(message: Mapping[str, Any]) -> ClockPair:
    return parse_pair(protocol.field(message, "pair", str))
