"""What must hold of triggers on whatever real NVIDIA GPU this machine has. Sets no clock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clockwright.data.report import BASELINE, SCHEDULE
from clockwright.data.units import GOVERNOR
from clockwright.replay.observe import KernelObserver
from clockwright.replay.plan import constant_plan, plan_segments
from clockwright.replay.triggers.cuda_driver import CudaDriver
from clockwright.replay.triggers.graph import kernel_count, triggers_of
from clockwright.replay.triggers.runners import GraphRunner, number_arms
from clockwright.replay.triggers.writers import StreamWriter
from clockwright.replay.verify import Arm
from clockwright.tracer.clocks import TriggerPage
from clockwright.tracer.workloads import Step
from tests.replay.builders import A, B, C, segments
from tests.replay.loops import Net

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.gpu


@pytest.fixture
def step() -> Step:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU here")
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = torch.ones(6, 8, device="cuda")

    def run() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return Step(run=run, model=model, optimizer=optimizer, device="cuda:0")


def _arms(kernels: int) -> list[Arm]:
    rows = segments((0, 3, A), (3, kernels - 1, B), (kernels - 1, kernels, C))
    return [
        Arm(BASELINE, constant_plan(GOVERNOR, kernels)),
        Arm(SCHEDULE, plan_segments(rows, kernels)),
    ]


@pytest.mark.parametrize("placing", ["branch", "chain"])
def test_a_captured_step_writes_its_triggers_where_they_were_put(step, placing):
    driver = CudaDriver.load()
    with TriggerPage.create() as page, StreamWriter(page, driver) as writer:
        runner = GraphRunner(step, writer, driver, placing)
        places, _ = number_arms([Arm(BASELINE, constant_plan(GOVERNOR, 1))])
        runner.enter(places[BASELINE])
        kernels = kernel_count(driver, runner.raw_graph())
        arms = _arms(kernels)
        places, _ = number_arms(arms)
        runner.enter(places[SCHEDULE])
        wanted = [
            (trigger.kernel, trigger.sequence + places[SCHEDULE].shift)
            for trigger in arms[1].plan.triggers
        ]
        assert triggers_of(driver, runner.raw_graph(), writer.sequence_pointer) == wanted
        for _ in range(3):
            page.sequence = 0
            runner.run()
            torch.cuda.synchronize()
            assert page.sequence == wanted[-1][1]


def test_a_stream_write_waits_for_the_work_before_it(step):
    driver = CudaDriver.load()
    with TriggerPage.create() as page, StreamWriter(page, driver) as writer:
        step.run()
        torch.cuda._sleep(200_000_000)
        writer.write(7)
        assert page.sequence == 0
        torch.cuda.synchronize()
        assert page.sequence == 7


def test_a_profiled_step_is_seen_alike_each_time(step):
    for _ in range(3):
        step.run()
    seen = []
    for _ in range(2):
        observer = KernelObserver()
        observer.start()
        step.run()
        seen.append(observer.end())
    assert len(seen[0]) > 5
    assert seen[0].fingerprint == seen[1].fingerprint


def test_two_ranks_over_nccl_play_on_their_own_gpus(tmp_path):
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs and NCCL")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    workers = []
    for number in range(2):
        environment = os.environ | {
            "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CLOCKWRIGHT_READ_ONLY": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TOLD": str(tmp_path / "told"),
        }  # fmt: skip
        command = [sys.executable, str(ROOT / "tests/replay/nccl_worker.py")]
        workers.append(subprocess.Popen(command, env=environment))
    try:
        assert [worker.wait(120) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    told = [json.loads((tmp_path / f"told-{number}.json").read_text()) for number in range(2)]
    assert told[0]["uuid"] != told[1]["uuid"]
    for each in told:
        assert each["played"] == 3
        assert each["outcomes"]["DRY"] >= 1
        assert each["all"] == [told[0]["uuid"], told[1]["uuid"]]
