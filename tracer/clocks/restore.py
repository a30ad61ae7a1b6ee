"""Give back what a journal says: at a lease's end, in the guardian, and at a keeper's next start.

`give_back` undoes one entry on an open GPU; `repair` looks through a state folder for journals
whose keeper is gone. A failing driver is asked again a few times; what cannot be given back stays
in the journal and is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...data.errors import (
    ClockwrightError,
    DeviceBusyError,
    DeviceError,
    FormatError,
    KeeperError,
    ReadOnlyError,
    RightsError,
)
from ..gpu.nvml_probe import READ_ONLY_VARIABLE, is_read_only
from ..gpu.prior_state import PriorState
from ..gpu.protocol import Gpu
from .journal import (
    CLOCKS,
    POWER_LIMIT,
    GpuJournal,
    JournalEntry,
    boot_id,
    journalled_uuids,
)

__all__ = ["OpenGpu", "RepairNote", "give_back", "open_real", "repair", "repair_locked"]

OpenGpu = Callable[[str, bool], Gpu]


def open_real(uuid: str, allow_set: bool) -> Gpu:
    """A real GPU by UUID; ``allow_set`` lets its setters through."""
    from ..gpu.select import open_gpu

    return open_gpu(f"nvml:{uuid}", allow_set=allow_set)


@dataclass(frozen=True)
class RepairNote:
    """What was found and done about one journal.

    Attributes:
        uuid: the GPU.
        done: True if nothing is left to do for it.
        text: one line for people.
    """

    uuid: str
    done: bool
    text: str


def give_back(gpu: Gpu, entry: JournalEntry, *, tries: int = 5, pause_s: float = 0.05) -> None:
    """Undo what the entry says may have been touched, each setting on its own.

    Raises:
        ReadOnlyError, RightsError: at once, since asking again would not help.
        KeeperError: a setting could not be given back after ``tries``.
    """
    undo: dict[str, Callable[[], None]] = {}
    if CLOCKS in entry.touched:
        undo[CLOCKS] = lambda: _give_back_clocks(gpu, entry)
    if POWER_LIMIT in entry.touched:
        undo[POWER_LIMIT] = lambda: _give_back_power_limit(gpu, entry)
    failure: DeviceError | None = None
    for attempt in range(tries):
        if attempt:
            time.sleep(pause_s * 2 ** (attempt - 1))
        for what, act in list(undo.items()):
            try:
                act()
            except DeviceError as error:
                failure = error
            else:
                del undo[what]
        if not undo or isinstance(failure, RightsError | ReadOnlyError):
            break
    if not undo:
        return
    if isinstance(failure, RightsError | ReadOnlyError):
        raise failure
    raise KeeperError(
        f"{' and '.join(undo)} of {gpu.info.uuid} could not be given back: {failure}"
    ) from failure


def _give_back_clocks(gpu: Gpu, entry: JournalEntry) -> None:
    gpu.release()
    if not entry.standing.is_governor:
        gpu.lock(entry.standing)


def _give_back_power_limit(gpu: Gpu, entry: JournalEntry) -> None:
    if entry.prior.power_limit_w is None:
        gpu.reset_power_limit()
    else:
        gpu.set_power_limit_w(entry.prior.power_limit_w)


def repair(
    state: Path,
    open_gpu: OpenGpu = open_real,
    *,
    keeper_id: str | None = None,
    wait_s: float = 0.0,
) -> list[RepairNote]:
    """Give back whatever dead keepers left set. Journals of living ones are passed over.

    Args:
        state: the folder of journals.
        open_gpu: opens a GPU by UUID; its second argument lets setters through.
        keeper_id: only that keeper's journals (the guardian's case).
        wait_s: how long to wait for a GPU's lock.

    Returns:
        One note for each journal that was dealt with or could not be.
    """
    notes = []
    for uuid in journalled_uuids(state):
        try:
            journal = GpuJournal.acquire(state, uuid, wait_s=wait_s)
        except DeviceBusyError:
            # A starting keeper may be at it. Whoever answers for this journal sees it through.
            if keeper_id is not None and GpuJournal.keeper_of(state, uuid) == keeper_id:
                text = f"{uuid}: another process has begun to give back what it names"
                notes.append(RepairNote(uuid, False, text))
            continue
        except KeeperError as error:
            notes.append(RepairNote(uuid, False, str(error)))
            continue
        try:
            note = repair_locked(journal, open_gpu, keeper_id=keeper_id)
        finally:
            journal.close()
        if note is not None:
            notes.append(note)
    return notes


def repair_locked(
    journal: GpuJournal, open_gpu: OpenGpu, *, keeper_id: str | None = None
) -> RepairNote | None:
    """`repair` of one journal whose lock is held; None if there was nothing to do."""
    uuid = journal.uuid
    try:
        entry = journal.read()
    except FormatError as error:
        if keeper_id is not None:
            return None
        # Which settings it named is lost. An unlocked clock is the rule; the cap is left, since
        # what it was is not known.
        unknown = JournalEntry(
            boot_id(), "unknown", 0, 0, PriorState(uuid), touched=frozenset({CLOCKS})
        )
        note = _undo(journal, unknown, open_gpu)
        return RepairNote(uuid, note.done, f"{note.text} (its journal was unreadable: {error})")
    if entry is None or (keeper_id is not None and entry.keeper_id != keeper_id):
        return None
    here = boot_id()
    if entry.boot is not None and here is not None and entry.boot != here:
        journal.clear()
        text = f"{uuid}: a journal of an earlier boot was discarded; clocks do not survive a reboot"
        return RepairNote(uuid, True, text)
    if not entry.touched:
        journal.clear()
        return RepairNote(uuid, True, f"{uuid}: nothing had been set under the journal found")
    return _undo(journal, entry, open_gpu)


def _undo(journal: GpuJournal, entry: JournalEntry, open_gpu: OpenGpu) -> RepairNote:
    uuid, whose = journal.uuid, f"keeper {entry.keeper_pid} for process {entry.owner_pid}"
    what = " and ".join(sorted(entry.touched))
    if is_read_only():
        text = f"{uuid}: {what} set by {whose} stay set, since {READ_ONLY_VARIABLE} forbids setting"
        return RepairNote(uuid, False, text)
    try:
        gpu = open_gpu(uuid, True)
        try:
            give_back(gpu, entry)
        finally:
            gpu.close()
        journal.clear()
    except ClockwrightError as error:
        text = f"{uuid}: {what} set by {whose} could not be given back: {error}"
        return RepairNote(uuid, False, text)
    return RepairNote(uuid, True, f"{uuid}: gave back {what}, left set by {whose}")
