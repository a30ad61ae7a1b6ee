"""A step captured as a graph gets its arm's triggers; each arm has a graph of its own."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest
import torch

from clockwright.data.errors import WorkloadError
from clockwright.data.report import BASELINE, SCHEDULE, SINGLE
from clockwright.data.units import GOVERNOR
from clockwright.replay.plan import constant_plan, plan_segments
from clockwright.replay.triggers.cuda_driver import CudaDriver, NodeKind
from clockwright.replay.triggers.graph import triggers_of
from clockwright.replay.triggers.runners import GraphRunner, number_arms
from clockwright.replay.triggers.writers import StreamWriter
from clockwright.replay.verify import Arm
from clockwright.tracer.clocks import TriggerPage
from clockwright.tracer.workloads import Step
from tests.replay.builders import A, B, segments

KERNELS = 6
ARMS = [
    Arm(BASELINE, constant_plan(GOVERNOR, KERNELS)),
    Arm(SCHEDULE, plan_segments(segments((0, 2, A), (2, 6, B)), KERNELS)),
    Arm(SINGLE, constant_plan(A, KERNELS)),
]


class _Stream:
    def wait_stream(self, _other) -> None: ...


@pytest.fixture
def rig(fake_cuda, monkeypatch):
    """PyTorch's side of capturing, over graphs of the fake driver."""
    made: list = []

    class Graph:
        def __init__(self, keep_graph: bool) -> None:
            assert keep_graph
            self.raw, _ = fake_cuda.chain([NodeKind.KERNEL] * KERNELS)
            self.nodes_when_instantiated, self.replays = 0, 0
            made.append(self)

        def raw_cuda_graph(self) -> int:
            return self.raw

        def instantiate(self) -> None:
            self.nodes_when_instantiated = len(driver.graph_nodes(self.raw))

        def replay(self) -> None:
            self.replays += 1

        def pool(self) -> tuple[int, int]:
            return (0, id(made[0]))

    @contextmanager
    def capture(_graph, pool):
        runs["captured"] = True
        runs.setdefault("pools", []).append(pool)
        yield

    runs: dict = {}
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    driver = CudaDriver(fake_cuda.library)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter], foreach=False)
    step = Step(run=lambda: runs.update(count=runs.get("count", 0) + 1), optimizer=optimizer)
    with TriggerPage.create() as page, StreamWriter(page, driver, stream=lambda: 0) as writer:
        yield GraphRunner(step, writer, driver), made, driver, writer, step, runs


def test_the_schedules_graph_has_its_triggers_before_it_is_instantiated(rig):
    runner, made, driver, writer, _, _ = rig
    places, _ = number_arms(ARMS)
    runner.enter(places[SCHEDULE])
    assert triggers_of(driver, runner.raw_graph(), writer.sequence_pointer) == [(0, 3), (2, 4)]
    assert made[0].nodes_when_instantiated == KERNELS + 2
    runner.run()
    assert made[0].replays == 1


def test_arms_without_triggers_share_a_plain_graph(rig):
    runner, made, driver, writer, _, _ = rig
    places, _ = number_arms(ARMS)
    for name in (BASELINE, SCHEDULE, SINGLE, BASELINE):
        runner.enter(places[name])
    assert len(made) == 2
    assert triggers_of(driver, runner.raw_graph(), writer.sequence_pointer) == []


def test_the_optimizer_is_made_capturable_before_warming(rig):
    runner, _, _, _, step, runs = rig
    places, _ = number_arms(ARMS)
    runner.enter(places[BASELINE])
    assert step.optimizer.param_groups[0]["capturable"] is True
    assert runs["count"] > 1


def test_a_step_that_cannot_be_captured_is_told_with_a_way_out(rig):
    runner, _, _, _, step, runs = rig

    def refuses():
        if runs.get("captured"):
            raise RuntimeError("operation not permitted when stream is capturing\n(more)")

    step.run = refuses
    places, _ = number_arms(ARMS)
    with pytest.raises(WorkloadError, match=r"not permitted.*--triggers eager"):
        runner.enter(places[BASELINE])
