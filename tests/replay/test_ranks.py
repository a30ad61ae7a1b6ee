"""Under torchrun each rank has its schedule or shares one, and all reach one verdict."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clockwright.data.errors import InputError
from clockwright.replay.distributed import merge_readings
from clockwright.replay.ranks import local_rank, rank, schedule_path, world_size
from clockwright.replay.verify import BlockReading
from tests.replay.loops import BACKWARD, FORWARD, UPDATE

ROOT = Path(__file__).parents[2]


def test_the_launchers_environment_says_which_rank_this_is():
    environment = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert (rank(environment), local_rank(environment), world_size(environment)) == (5, 1, 8)
    assert (rank({}), local_rank({}), world_size({})) == (0, 0, 1)
    with pytest.raises(InputError, match="RANK must be a whole number, got 'one'"):
        rank({"RANK": "one"})


def test_a_schedule_is_shared_or_each_ranks_own():
    environment = {"RANK": "5", "LOCAL_RANK": "1"}
    assert schedule_path(Path("s.json"), environment) == Path("s.json")
    assert schedule_path(Path("s-{rank}.json"), environment) == Path("s-5.json")
    assert schedule_path(Path("{local_rank}/s.json"), environment) == Path("1/s.json")


def test_a_step_of_all_ranks_is_as_slow_as_the_slowest_and_costs_what_all_draw():
    merged = merge_readings(
        [
            BlockReading(5, 10, 100.0, 3.0, 0.1, 50.0, 4, 1500, 7),
            BlockReading(6, 11, 120.0, 4.0, 0.2, 60.0, 1, 1400, 8),
        ]
    )
    assert (merged.time_ns, merged.energy_mj, merged.temperature_c) == (120.0, 7.0, 60.0)
    assert merged.energy_error_mj == pytest.approx(0.3)
    assert (merged.throttle_reasons, merged.switches) == (5, 15)
    unknown = merge_readings([BlockReading(5, 10, 100.0, 3.0), BlockReading(5, 10, 100.0, None)])
    assert unknown.energy_mj is None
    assert unknown.throttle_reasons is None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_two_ranks_play_on_their_own_gpus_and_reach_one_verdict(tmp_path):
    port = str(_free_port())
    workers = []
    for number in range(2):
        environment = os.environ | {
            "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT), "TOLD": str(tmp_path / "told"),
        }  # fmt: skip
        command = [sys.executable, str(ROOT / "tests/replay/rank_worker.py")]
        command.append(str(tmp_path / "s-{rank}.json"))
        workers.append(subprocess.Popen(command, env=environment))
    try:
        assert [worker.wait(120) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    told = [json.loads((tmp_path / f"told-{number}.json").read_text()) for number in range(2)]
    for number, each in enumerate(told):
        train = each["train"]
        assert train["uuid"].endswith(f"-{number}")
        assert train["played"] == 3
        assert (train["held"], train["after"]) == (str(UPDATE), "None")
        assert train["pairs"] == [str(pair) for pair in (FORWARD, BACKWARD, UPDATE)] * 3
    one, other = (each["verify"] for each in told)
    assert one["own_time_ns"] != other["own_time_ns"]
    for shared in ("verdict", "slowdown", "energy_mj", "requests"):
        assert one[shared] == other[shared]
