"""What must be given back, on disk before anything is set: one file a GPU, and one lock a GPU.

``<state>/GPU-....lock`` is held (flock) by whichever process may set that GPU's clocks now: a
keeper under a lease, or whoever repairs after it. The kernel frees it when the holder dies.
``<state>/GPU-....json`` is the journal: the prior state, the boot it belongs to, the keeper and
owner, and which settings may have been touched. It is written to a sibling, fsynced and renamed
before the first set, and removed once all is given back: a journal whose lock is free means a
GPU to repair. Clocks and power caps do not survive a reboot: an entry of another boot is discarded.

Left out: a driver reloaded without a reboot, after which a repair gives back what is already free.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...data._files import read_json
from ...data.errors import DeviceBusyError, FormatError, InputError, KeeperError
from ...data.units import GOVERNOR, ClockPair, parse_pair
from ..gpu.prior_state import PriorState

__all__ = [
    "CLOCKS",
    "POWER_LIMIT",
    "STATE_VARIABLE",
    "GpuJournal",
    "JournalEntry",
    "boot_id",
    "default_state_dir",
    "journalled_uuids",
]

STATE_VARIABLE = "CLOCKWRIGHT_STATE"
CLOCKS, POWER_LIMIT = "clocks", "power_limit"
_FORMAT, _VERSION = "clockwright-journal", 1
_UUID = re.compile(r"[A-Za-z]{3}-[0-9A-Za-z-]{1,80}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = _BOOT_ID) -> str | None:
    """The kernel's name for this boot; None where it gives none."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def default_state_dir() -> Path:
    """$CLOCKWRIGHT_STATE; else /var/lib/clockwright for root; else the user's own state folder."""
    given = os.environ.get(STATE_VARIABLE)
    if given:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/clockwright")
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "clockwright"


@dataclass(frozen=True)
class JournalEntry:
    """What one lease must give back.

    Attributes:
        boot: `boot_id` when it was written.
        keeper_id: the keeper's own random name; a pid alone may come back.
        keeper_pid: the keeper's process.
        owner_pid: the process that holds the lease.
        prior: the GPU's state before the first set.
        standing: the pair to go back to; the governor unless the operator named another.
        touched: which of `CLOCKS` and `POWER_LIMIT` may have been set.
        written_unix_ns: wall time, for people.
    """

    boot: str | None
    keeper_id: str
    keeper_pid: int
    owner_pid: int
    prior: PriorState
    standing: ClockPair = GOVERNOR
    touched: frozenset[str] = frozenset()
    written_unix_ns: int = 0

    def touching(self, what: str) -> JournalEntry:
        """This entry, with one more setting that may have been touched."""
        return replace(self, touched=self.touched | {what})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = asdict(self) | {
            "prior": self.prior.to_json(),
            "standing": str(self.standing),
            "touched": sorted(self.touched),
        }
        return {"format": _FORMAT, "version": _VERSION, **values}

    @classmethod
    def from_json(cls, values: Any) -> JournalEntry:
        """Read back what `to_json` wrote.

        Raises:
            FormatError: not such an entry.
        """
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            raise FormatError("not a clock keeper's journal")
        if values.get("version") != _VERSION:
            raise FormatError(f"journal version {values.get('version')!r}, expected {_VERSION}")
        try:
            return cls(
                boot=values["boot"],
                keeper_id=str(values["keeper_id"]),
                keeper_pid=int(values["keeper_pid"]),
                owner_pid=int(values["owner_pid"]),
                prior=PriorState.from_json(values["prior"]),
                standing=parse_pair(values["standing"]),
                touched=frozenset(values["touched"]) & {CLOCKS, POWER_LIMIT},
                written_unix_ns=int(values["written_unix_ns"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"a clock keeper's journal is damaged: {error}") from error


class GpuJournal:
    """One GPU's journal, with its lock held until `close`."""

    def __init__(self, state: Path, uuid: str, lock_fd: int) -> None:
        self.uuid, self._state, self._lock_fd = uuid, state, lock_fd
        self.path = state / f"{uuid}.json"

    @classmethod
    def acquire(cls, state: Path, uuid: str, *, wait_s: float = 0.0) -> GpuJournal:
        """Take the GPU's lock, waiting a little for a repair that is under way.

        Raises:
            DeviceBusyError: another keeper or repair holds it; the message names the owner.
            KeeperError: the state folder cannot be used.
            InputError: ``uuid`` is no GPU's.
        """
        if not _UUID.fullmatch(uuid):
            raise InputError(f"expected a GPU's UUID (GPU-...), got {uuid!r}")
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock_fd = os.open(state / f"{uuid}.lock", flags, 0o600)
        except OSError as error:
            raise KeeperError(
                f"the keeper's state folder {state} cannot be used: {error.strerror}; nothing was "
                f"set. Name a writable one with --state or {STATE_VARIABLE}"
            ) from error
        journal = cls(state, uuid, lock_fd)
        until = time.monotonic() + wait_s
        while not journal._try_lock():
            if time.monotonic() >= until or journal._keeper_lives():
                journal.close()
                raise DeviceBusyError(journal._busy_message())
            time.sleep(0.01)
        return journal

    @classmethod
    def keeper_of(cls, state: Path, uuid: str) -> str | None:
        """The keeper that a GPU's journal names, read without its lock; None if there is none."""
        path = state / f"{uuid}.json"
        try:
            return JournalEntry.from_json(read_json(path)).keeper_id if path.exists() else None
        except InputError:
            return None  # cleared meanwhile, or unreadable

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise KeeperError(f"{self._state}: cannot lock: {error.strerror}") from error
            return False
        return True

    def _keeper_lives(self) -> bool:
        """True if a living keeper holds the lock, so that waiting for a repair is in vain."""
        try:
            entry = self.read()
        except InputError:
            return False
        return entry is not None and Path(f"/proc/{entry.keeper_pid}").exists()

    def _busy_message(self) -> str:
        held_by = "another clock keeper"
        with contextlib.suppress(InputError):
            entry = self.read()
            if entry is not None:
                held_by = f"process {entry.owner_pid}, through clock keeper {entry.keeper_pid}"
        return f"{self.uuid} is held by {held_by}; wait for it to end, or end it"

    def read(self) -> JournalEntry | None:
        """The entry on disk, or None.

        Raises:
            FormatError: there is one, and it cannot be read.
        """
        if not self.path.exists():
            return None
        return JournalEntry.from_json(read_json(self.path))

    def write(self, entry: JournalEntry) -> None:
        """Put an entry on disk for good, replacing the last; on failure that one stays.

        Raises:
            KeeperError: it cannot be written or synced (a full disk); nothing may be set.
        """
        entry = replace(entry, written_unix_ns=time.time_ns())
        text = json.dumps(entry.to_json(), indent=1, allow_nan=False).encode() + b"\n"
        temporary = self._state / f".{self.uuid}.new"
        try:
            with self._replacing(temporary) as fd:
                view = memoryview(text)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            temporary.replace(self.path)
            self._sync_folder()
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise KeeperError(
                f"cannot write the journal {self.path}: {error.strerror}; nothing was set. Free "
                f"some space, or name another folder with --state or {STATE_VARIABLE}"
            ) from error

    @staticmethod
    @contextlib.contextmanager
    def _replacing(temporary: Path) -> Iterator[int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)

    def clear(self) -> None:
        """Remove the entry: all is given back.

        Raises:
            KeeperError: it cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
            self._sync_folder()
        except OSError as error:
            raise KeeperError(
                f"the clocks of {self.uuid} are given back, but the journal {self.path} cannot be "
                f"removed: {error.strerror}"
            ) from error

    def _sync_folder(self) -> None:
        fd = os.open(self._state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of the lock; the entry, if any, stays for whoever repairs."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def journalled_uuids(state: Path) -> tuple[str, ...]:
    """GPUs with a journal in the folder, live or left behind; none if there is no folder."""
    try:
        found = sorted(path.stem for path in state.glob("*.json"))
    except OSError:
        return ()
    return tuple(uuid for uuid in found if _UUID.fullmatch(uuid))
