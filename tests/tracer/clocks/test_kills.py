"""Whatever kills whatever, no clock stays locked: kills at random moments, seeded."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fake_nvml.driver import FakeGpu, FakeNvml
from tests.tracer.clocks.processes import Processes, Trainer, is_alive, kill, wait_until

KINDS = ("trainer", "keeper", "both")


def settled(gpu: FakeGpu, state: Path) -> bool:
    return gpu.is_pristine and not (state / f"{gpu.uuid}.json").exists()


def kill_at_a_random_moment(
    seed: int, fake_nvml: FakeNvml, gpu: FakeGpu, state: Path, processes: Processes
) -> int:
    """One kill. Returns how many setter calls came before it, to know that it hit something."""
    draw = random.Random(seed)
    gpu.set(lock_call_ns=draw.choice([0, 1_000_000, 4_000_000]), effect_first=draw.randint(0, 1))
    trainer = processes.trainer(
        draw.choice(["direct", "page"]),
        private=True,
        uuid=gpu.uuid,
        power_limit_w=draw.choice([None, 400.0]),
        heartbeat_s=3.0,
    )
    after = draw.choice(["hello", "leased", "switching", "switching", "switching"])
    if after != "hello":
        trainer.wait_for(after)
    time.sleep(draw.uniform(0, 0.03))
    victims = {"trainer": [trainer.pid], "keeper": [trainer.keeper_pid]}
    kind = KINDS[seed % len(KINDS)]
    kill(*victims.get(kind, [trainer.pid, trainer.keeper_pid]))
    calls = fake_nvml.setters()
    ends = [trainer.keeper_pid, trainer.guardian_pid]
    if kind == "keeper":
        # Its owner sees it gone and ends by itself; its guardian gives back.
        wait_until(lambda: not is_alive(trainer.pid), f"seed {seed}: the trainer notices")
    wait_until(lambda: not any(map(is_alive, ends)), f"seed {seed}: keeper and guardian end")
    assert settled(gpu, state), f"seed {seed}: {gpu.core_lock} {gpu.mem_lock} left by {kind}"
    return sum(call.pid == trainer.keeper_pid for call in calls)


def test_no_clock_stays_locked_after_a_kill_at_a_random_moment(
    fake_nvml: FakeNvml, gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    hits = [kill_at_a_random_moment(i, fake_nvml, gpu, state, processes) for i in range(9)]
    assert sum(sets > 0 for sets in hits) > 4, "most kills must come after a set"


@pytest.mark.slow
def test_no_clock_stays_locked_after_100_kills_at_random_moments(
    fake_nvml: FakeNvml, state: Path, processes: Processes
) -> None:
    """Four GPUs at once: their keepers share the host's state folder and driver."""
    fake_nvml.set_count(4)

    def kill_on(index: int) -> list[int]:
        gpu = fake_nvml.gpu(index)
        seeds = range(100 + index, 200, 4)
        return [kill_at_a_random_moment(seed, fake_nvml, gpu, state, processes) for seed in seeds]

    with ThreadPoolExecutor(4) as pool:
        hits = [sets for found in pool.map(kill_on, range(4)) for sets in found]
    assert len(hits) == 100
    assert sum(sets > 0 for sets in hits) > 50, "most kills must come after a set"


def kill_trainer_keeper_and_guardian(trainer: Trainer) -> None:
    # Stopped first: a keeper that saw its guardian die would start another, which gives back.
    kill(trainer.keeper_pid, number=signal.SIGSTOP)
    kill(trainer.guardian_pid, trainer.keeper_pid, trainer.pid)
    wait_until(lambda: not is_alive(trainer.keeper_pid), "the keeper is dead")


def test_the_next_start_repairs_what_a_kill_of_trainer_keeper_and_guardian_left(
    gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    trainer = processes.trainer("hold", private=True, uuid=gpu.uuid, power_limit_w=300.0)
    trainer.wait_for("switching")
    kill_trainer_keeper_and_guardian(trainer)
    assert gpu.core_lock == (1410, 1410)
    assert gpu.raw.power_limit_mw == 300_000
    said = processes.repair()
    assert "gave back clocks and power_limit" in said
    assert str(trainer.pid) in said
    assert settled(gpu, state)
    assert processes.repair() == ""


def test_a_keeper_repairs_before_it_serves(gpu: FakeGpu, state: Path, processes: Processes) -> None:
    trainer = processes.trainer("hold", private=True, uuid=gpu.uuid)
    trainer.wait_for("switching")
    kill_trainer_keeper_and_guardian(trainer)
    assert gpu.core_lock is not None
    processes.keeper()
    assert settled(gpu, state)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_keeper_told_to_end_gives_back_first(
    number: signal.Signals, gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    keeper = processes.keeper()
    trainer = processes.trainer("hold", private=False, uuid=gpu.uuid, power_limit_w=300.0)
    trainer.wait_for("switching")
    kill(keeper.pid, number=number)
    assert keeper.wait(10) == 0
    assert settled(gpu, state)
    assert not processes.socket.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_trainer_loses_its_clocks_and_the_keeper_serves_on(
    number: signal.Signals, gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    keeper = processes.keeper()
    trainer = processes.trainer("hold", private=False, uuid=gpu.uuid)
    trainer.wait_for("switching")
    assert gpu.core_lock == (1410, 1410)
    kill(trainer.pid, number=number)
    wait_until(lambda: settled(gpu, state), "the clocks are given back", 5.0)
    again = processes.trainer("hold", private=False, uuid=gpu.uuid)
    again.wait_for("switching")
    assert again.keeper_pid == keeper.pid


@pytest.mark.parametrize("raises", [False, True])
def test_clocks_go_back_when_the_trainer_ends_normally_or_by_an_exception(
    raises: bool, gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    processes.keeper()
    trainer = processes.trainer("direct", private=False, uuid=gpu.uuid, turns=4, raises=raises)
    trainer.wait_for("switching")
    assert (trainer.process.wait(10) != 0) == raises
    assert settled(gpu, state)


def test_a_trainer_whose_children_keep_its_socket_open_is_still_seen_to_end(
    gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    processes.keeper("--heartbeat", "3600s")
    trainer = processes.trainer("hold", private=False, uuid=gpu.uuid, forks=True)
    trainer.wait_for("switching")
    kill(trainer.pid)
    wait_until(lambda: settled(gpu, state), "the clocks are given back", 5.0)


def test_a_stopped_trainer_misses_its_heartbeat_and_learns_of_it_when_it_goes_on(
    gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    processes.keeper()
    trainer = processes.trainer("hold", private=False, uuid=gpu.uuid, heartbeat_s=0.3)
    trainer.wait_for("switching")
    kill(trainer.pid, number=signal.SIGSTOP)
    waited_s = wait_until(lambda: settled(gpu, state), "the clocks are given back", 5.0)
    assert waited_s > 0.1
    assert is_alive(trainer.pid)
    kill(trainer.pid, number=signal.SIGCONT)
    assert trainer.process.wait(10) != 0
    assert gpu.is_pristine


def test_a_killed_guardian_is_replaced_and_the_new_one_guards(
    gpu: FakeGpu, state: Path, processes: Processes
) -> None:
    trainer = processes.trainer("hold", private=True, uuid=gpu.uuid)
    trainer.wait_for("switching")
    kill(trainer.guardian_pid)
    children = Path(f"/proc/{trainer.keeper_pid}/task/{trainer.keeper_pid}/children")

    def guardians() -> list[int]:
        pids = [int(pid) for pid in children.read_text().split()]
        return [pid for pid in pids if pid != trainer.guardian_pid and is_alive(pid)]

    wait_until(lambda: bool(guardians()), "another guardian starts")
    assert gpu.core_lock == (1410, 1410), "a guardian's death must not disturb the owner"
    time.sleep(0.5)  # it watches once it has started
    kill(trainer.keeper_pid, trainer.pid)
    wait_until(lambda: settled(gpu, state), "the new guardian gives back", 5.0)
