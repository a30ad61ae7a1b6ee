from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import DeviceBusyError, FormatError, InputError, KeeperError
from clockwright.data.units import ClockPair
from clockwright.tracer.clocks.journal import (
    CLOCKS,
    POWER_LIMIT,
    GpuJournal,
    JournalEntry,
    boot_id,
    default_state_dir,
    journalled_uuids,
)
from clockwright.tracer.gpu.prior_state import PriorState

UUID = "GPU-0a7e0000-0000-4000-8000-000000000000"


def entry(**fields: object) -> JournalEntry:
    made = JournalEntry("boot", "keeper", 11, 22, PriorState(UUID, power_limit_w=700.0))
    return JournalEntry(**{**vars(made), **fields})


@given(
    st.builds(
        JournalEntry,
        boot=st.none() | st.text(),
        keeper_id=st.text(),
        keeper_pid=st.integers(1, 2**22),
        owner_pid=st.integers(0, 2**22),
        prior=st.builds(PriorState, st.just(UUID), power_limit_w=st.none() | st.floats(1, 1000)),
        standing=st.builds(ClockPair, st.none() | st.integers(1, 9999), st.none()),
        touched=st.frozensets(st.sampled_from([CLOCKS, POWER_LIMIT])),
        written_unix_ns=st.integers(0, 2**62),
    )
)
def test_an_entry_survives_the_disk(made: JournalEntry) -> None:
    assert JournalEntry.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    "spoil",
    [
        {"format": "other"},
        {"version": 2},
        {"keeper_pid": "x"},
        {"prior": {}},
        {"standing": 5},
        {"touched": 1},
    ],
)
def test_a_damaged_entry_is_refused(spoil: dict[str, object]) -> None:
    with pytest.raises(FormatError, match=r"journal|prior"):
        JournalEntry.from_json(entry().to_json() | spoil)


def test_an_entry_is_written_whole_replaced_and_removed(tmp_path: Path) -> None:
    journal = GpuJournal.acquire(tmp_path / "new" / "folder", UUID)
    assert journal.read() is None
    journal.write(entry())
    journal.write(entry().touching(CLOCKS))
    read = journal.read()
    assert read is not None
    assert read.touched == {CLOCKS}
    assert read.written_unix_ns > 0
    assert journalled_uuids(journal.path.parent) == (UUID,)
    assert journal.path.stat().st_mode & 0o077 == 0
    journal.clear()
    journal.clear()
    assert journalled_uuids(journal.path.parent) == ()
    journal.close()


def test_the_entry_is_synced_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, Path.replace

    def fsync(fd: int) -> None:
        calls.append("sync folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync file")  # noqa: PTH112
        sync(fd)

    def replace(self: Path, target: Path) -> Path:
        calls.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    journal = GpuJournal.acquire(tmp_path, UUID)
    journal.write(entry())
    journal.close()
    assert calls == ["sync file", "rename", "sync folder"]


def test_a_full_disk_is_refused_and_keeps_the_last_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = GpuJournal.acquire(tmp_path, UUID)
    journal.write(entry())
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(full.fileno(), data))
        with pytest.raises(KeeperError, match="No space left on device; nothing was set"):
            journal.write(entry().touching(CLOCKS))
    monkeypatch.undo()
    read = journal.read()
    assert read is not None
    assert read.touched == frozenset()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    journal.close()


def test_one_gpu_has_one_holder_and_the_refusal_names_it(tmp_path: Path) -> None:
    first = GpuJournal.acquire(tmp_path, UUID)
    with pytest.raises(DeviceBusyError, match="another clock keeper"):
        GpuJournal.acquire(tmp_path, UUID)
    first.write(entry(owner_pid=4321))
    with pytest.raises(DeviceBusyError, match="process 4321"):
        GpuJournal.acquire(tmp_path, UUID)
    other = GpuJournal.acquire(tmp_path, UUID[:-1] + "1")
    other.close()
    first.close()
    GpuJournal.acquire(tmp_path, UUID).close()


def test_the_lock_does_not_pass_to_children(tmp_path: Path) -> None:
    journal = GpuJournal.acquire(tmp_path, UUID)
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(command, close_fds=False, text=True, **pipes)
    assert child.stdout is not None
    child.stdout.readline()  # it runs its own program now
    journal.close()
    GpuJournal.acquire(tmp_path, UUID).close()
    child.communicate("\n")


@pytest.mark.parametrize("uuid", ["", "../../etc/passwd", "GPU-1/2", "GPU-1\n", "nvml:0"])
def test_what_is_no_uuid_names_no_file(uuid: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="UUID"):
        GpuJournal.acquire(tmp_path, uuid)
    assert list(tmp_path.iterdir()) == []


def test_a_state_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeeperError, match=r"state folder .*nothing was set.*CLOCKWRIGHT_STATE"):
        GpuJournal.acquire(tmp_path / "file" / "state", UUID)


def test_boot_ids_are_read_from_the_kernel(tmp_path: Path) -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_id(tmp_path / "none") is None


def test_the_state_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCKWRIGHT_STATE", "/somewhere")
    assert default_state_dir() == Path("/somewhere")
    monkeypatch.delenv("CLOCKWRIGHT_STATE")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_state_dir() == Path("/var/lib/clockwright")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "clockwright"
