"""Journals that dead keepers left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clockwright.data.units import ClockPair
from clockwright.tracer.clocks import run_repair, survey
from clockwright.tracer.clocks.journal import (
    CLOCKS,
    POWER_LIMIT,
    GpuJournal,
    JournalEntry,
    boot_id,
    journalled_uuids,
)
from clockwright.tracer.clocks.restore import repair
from clockwright.tracer.gpu.prior_state import PriorState
from clockwright.tracer.gpu.select import open_gpu
from tests.fake_nvml.driver import UNKNOWN_ERROR, FakeGpu, FakeNvml
from tests.tracer.clocks.processes import Processes


def leave(gpu: FakeGpu, state: Path, *, boot: str | None = "", **fields: object) -> None:
    """Leave a GPU locked and capped, with the journal of a keeper that is gone."""
    with open_gpu(f"nvml:{gpu.uuid}", allow_set=True) as opened:  # type: ignore[attr-defined]
        opened.lock(ClockPair(1410, 3201))
        opened.set_power_limit_w(400.0)
    made = JournalEntry(
        boot=boot_id() if boot == "" else boot,
        keeper_id="gone",
        keeper_pid=2**22 - 1,
        owner_pid=2**22 - 2,
        prior=PriorState(gpu.uuid, power_limit_w=700.0),
        touched=frozenset({CLOCKS, POWER_LIMIT}),
    )
    journal = GpuJournal.acquire(state, gpu.uuid)
    journal.write(JournalEntry(**{**vars(made), **fields}))
    journal.close()


def test_a_dead_keepers_journal_is_replayed_and_removed(gpu: FakeGpu, state: Path) -> None:
    leave(gpu, state)
    (note,) = repair(state)
    assert note.done
    assert "gave back clocks and power_limit, left set by keeper 4194303" in note.text
    assert gpu.is_pristine
    assert journalled_uuids(state) == ()
    assert repair(state) == []


def test_a_journal_of_another_boot_is_discarded_with_a_note_and_nothing_is_set(
    gpu: FakeGpu, state: Path, fake_nvml: FakeNvml, processes: Processes
) -> None:
    leave(gpu, state, boot="11111111-2222-3333-4444-555555555555")
    before = len(fake_nvml.setters())
    said = processes.repair()
    assert "of an earlier boot was discarded; clocks do not survive a reboot" in said
    assert len(fake_nvml.setters()) == before
    assert journalled_uuids(state) == ()


def test_where_the_kernel_names_no_boot_the_journal_is_replayed(gpu: FakeGpu, state: Path) -> None:
    leave(gpu, state, boot=None)
    assert repair(state)[0].done
    assert gpu.is_pristine


def test_only_what_was_touched_is_given_back(gpu: FakeGpu, state: Path) -> None:
    leave(gpu, state, touched=frozenset({POWER_LIMIT}))
    assert repair(state)[0].done
    assert gpu.core_lock == (1410, 1410)
    assert gpu.raw.power_limit_mw == 700_000


def test_a_journal_under_which_nothing_was_set_sets_nothing(
    gpu: FakeGpu, state: Path, fake_nvml: FakeNvml
) -> None:
    leave(gpu, state, touched=frozenset())
    before = len(fake_nvml.setters())
    assert repair(state)[0].text.endswith("nothing had been set under the journal found")
    assert len(fake_nvml.setters()) == before


def test_an_unknown_prior_cap_goes_back_to_the_default(gpu: FakeGpu, state: Path) -> None:
    leave(gpu, state, prior=PriorState(gpu.uuid))
    assert repair(state)[0].done
    assert gpu.is_pristine


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "clockwright-journal"}'])
def test_an_unreadable_journal_unlocks_the_clocks_and_says_so(
    text: str, gpu: FakeGpu, state: Path
) -> None:
    leave(gpu, state)
    (state / f"{gpu.uuid}.json").write_text(text)
    (note,) = repair(state)
    assert note.done
    assert "its journal was unreadable" in note.text
    assert gpu.core_lock is None
    assert journalled_uuids(state) == ()


def test_read_only_leaves_the_journal_and_says_so(
    gpu: FakeGpu, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(gpu, state)
    monkeypatch.setenv("CLOCKWRIGHT_READ_ONLY", "1")
    (note,) = repair(state)
    assert not note.done
    assert "CLOCKWRIGHT_READ_ONLY forbids setting" in note.text
    assert gpu.core_lock == (1410, 1410)
    assert journalled_uuids(state) == (gpu.uuid,)


def test_a_gpu_that_is_gone_keeps_its_journal_and_the_others_are_repaired(
    gpu: FakeGpu, state: Path, fake_nvml: FakeNvml
) -> None:
    leave(gpu, state)
    text = json.loads((state / f"{gpu.uuid}.json").read_text())
    (state / "GPU-00000000-gone.json").write_text(json.dumps(text))
    notes = repair(state)
    assert [note.done for note in notes] == [False, True]
    assert gpu.is_pristine


def test_a_repair_that_fails_keeps_the_journal_for_the_next(
    gpu: FakeGpu, state: Path, fake_nvml: FakeNvml, processes: Processes
) -> None:
    leave(gpu, state)
    fake_nvml.fail("nvmlDeviceResetGpuLockedClocks", UNKNOWN_ERROR)
    assert "could not be given back" in processes.repair()
    assert gpu.raw.power_limit_mw == 700_000, "the cap does not wait for the clocks"
    fake_nvml.heal()
    assert "gave back" in processes.repair()
    assert gpu.is_pristine


def test_a_living_keepers_journal_is_passed_over(gpu: FakeGpu, state: Path) -> None:
    leave(gpu, state)
    held = GpuJournal.acquire(state, gpu.uuid)
    assert repair(state) == []
    assert gpu.core_lock == (1410, 1410)
    held.close()


def test_another_keepers_guardian_passes_it_over(gpu: FakeGpu, state: Path) -> None:
    leave(gpu, state)
    assert repair(state, keeper_id="another") == []
    assert gpu.core_lock == (1410, 1410)


def test_a_guardian_sees_through_what_another_has_begun(gpu: FakeGpu, state: Path) -> None:
    """A starting keeper holds the lock to repair; if it dies at that, the guardian goes on."""
    leave(gpu, state, keeper_pid=os.getpid())  # as a zombie's, its process can still be seen
    other = GpuJournal.acquire(state, gpu.uuid)
    (note,) = repair(state, keeper_id="gone")
    assert not note.done
    assert "another process has begun" in note.text
    assert repair(state, keeper_id="someone else's") == []
    other.close()
    (note,) = repair(state, keeper_id="gone")
    assert note.done
    assert gpu.is_pristine


def test_the_survey_tells_and_the_repair_run_mends(gpu: FakeGpu, state: Path) -> None:
    assert survey().leftovers == ()
    leave(gpu, state)
    (found,) = survey().leftovers
    assert not found.live
    assert "clocks and power_limit left set by keeper" in found.text
    assert gpu.core_lock == (1410, 1410)
    (note,) = run_repair()
    assert note.done
    assert gpu.is_pristine


def test_the_survey_tells_who_holds_what(gpu: FakeGpu, state: Path, processes: Processes) -> None:
    keeper = processes.keeper()
    trainer = processes.trainer("hold", private=False, uuid=gpu.uuid)
    trainer.wait_for("switching")
    found = survey(socket=processes.socket)
    assert found.problem is None
    assert found.answer is not None
    assert found.answer["keeper_pid"] == keeper.pid
    assert found.answer["leases"][gpu.uuid]["owner_pid"] == trainer.pid
    assert found.leftovers[0].live


def test_the_survey_tells_why_a_keeper_cannot_be_reached(state: Path, tmp_path: Path) -> None:
    found = survey(socket=tmp_path / "none.sock")
    assert found.answer is None
    assert found.problem is not None
    assert "no clock keeper can be reached" in found.problem


def test_repair_needs_no_gpu_when_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCKWRIGHT_STATE", str(tmp_path / "none"))
    assert run_repair() == []
    assert not os.path.exists(tmp_path / "none")  # noqa: PTH110
