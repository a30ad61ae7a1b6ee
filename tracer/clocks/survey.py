"""What a doctor asks about clock keepers here: is one running, who holds what, what was left set.

`survey` only reads. `run_repair` has a keeper process give back what dead keepers left set, so that
the caller still sets nothing itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data.errors import ClockwrightError, DeviceBusyError, InputError, KeeperError
from .client import KeeperClient
from .journal import GpuJournal, boot_id, default_state_dir, journalled_uuids
from .link import DEFAULT_SOCKET, PRIVATE, SOCKET_VARIABLE
from .restore import RepairNote

__all__ = ["KeeperSurvey", "Leftover", "run_repair", "survey"]


@dataclass(frozen=True)
class Leftover:
    """A journal found.

    Attributes:
        uuid: the GPU.
        live: True if a living keeper or repair holds it; nothing is wrong then.
        text: one line for people.
    """

    uuid: str
    live: bool
    text: str


@dataclass(frozen=True)
class KeeperSurvey:
    """What was found.

    Attributes:
        socket: where the operator's keeper would be; None if a private one would be started.
        answer: the keeper's status (``leases``, ``state``, ``keeper_pid``); None if none answers.
        problem: why the operator's keeper cannot be used; None if it can, or if there is none.
        state: the folder of journals looked through.
        leftovers: journals there; one that is not live is a GPU to repair.
    """

    socket: Path | None
    answer: dict[str, Any] | None
    problem: str | None
    state: Path
    leftovers: tuple[Leftover, ...]


def survey(*, socket: Path | None = None, state: Path | None = None) -> KeeperSurvey:
    """Look for a keeper and for journals, without setting or repairing anything."""
    given = os.environ.get(SOCKET_VARIABLE, "")
    if socket is None and given not in ("", PRIVATE):
        socket = Path(given)
    if socket is None and given != PRIVATE and DEFAULT_SOCKET.exists():
        socket = DEFAULT_SOCKET
    answer, problem = None, None
    if socket is not None:
        try:
            with KeeperClient.start(socket=socket) as client:
                answer = client.status() | {"keeper_pid": client.keeper_pid, "dry": client.dry}
        except ClockwrightError as error:
            problem = str(error)
    folder = state if state is not None else default_state_dir()
    leftovers = tuple(_leftover(folder, uuid) for uuid in journalled_uuids(folder))
    return KeeperSurvey(socket, answer, problem, folder, leftovers)


def _leftover(folder: Path, uuid: str) -> Leftover:
    try:
        journal = GpuJournal.acquire(folder, uuid)
    except DeviceBusyError as error:
        return Leftover(uuid, True, str(error))
    except KeeperError as error:
        return Leftover(uuid, False, str(error))
    try:
        entry = journal.read()
    except InputError as error:
        return Leftover(uuid, False, f"{uuid}: {error}")
    finally:
        journal.close()
    if entry is None:
        return Leftover(uuid, True, f"{uuid}: given back just now")
    if entry.boot is not None and entry.boot != boot_id():
        return Leftover(uuid, False, f"{uuid}: a journal of an earlier boot, to be discarded")
    what = " and ".join(sorted(entry.touched)) or "nothing"
    who = f"keeper {entry.keeper_pid} for process {entry.owner_pid}, both gone"
    return Leftover(uuid, False, f"{uuid}: {what} left set by {who}")


def run_repair(state: Path | None = None, *, timeout_s: float = 120.0) -> list[RepairNote]:
    """Have a keeper process give back what dead keepers left set, and end.

    Raises:
        KeeperError: the process could not be run.
    """
    command = [sys.executable, "-P", "-m", __package__, "repair", "--json"]
    command += [] if state is None else ["--state", str(state)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        found = json.loads(done.stdout)
        return [RepairNote(note["uuid"], note["done"], note["text"]) for note in found]
    except (OSError, ValueError, subprocess.TimeoutExpired, KeyError, TypeError) as error:
        raise KeeperError(f"the repair could not be run: {error}") from error
