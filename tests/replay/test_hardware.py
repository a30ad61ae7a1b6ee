"""The player of real GPUs, with the simulated GPU's keeper and a stand-in for CUDA's events.

What only a GPU can show (stream order, graph capture, the counter's own steps) is measured by
``benchmarks/gpu_replay.py``.
"""

from __future__ import annotations

import time

import pytest
import torch

from clockwright.data.errors import InputError, KeeperError, WorkloadError
from clockwright.data.report import BASELINE, SCHEDULE, SINGLE
from clockwright.data.schedule import Anchor, Segment
from clockwright.data.units import GOVERNOR
from clockwright.replay.energy_log import EnergyLog
from clockwright.replay.hardware import HardwarePlayer
from clockwright.replay.plan import constant_plan, plan_of, plan_segments
from clockwright.replay.triggers.runners import EagerRunner, number_arms
from clockwright.replay.triggers.writers import HostWriter
from clockwright.replay.verify import Arm
from clockwright.tracer.clocks import LocalKeeper, TriggerPage
from clockwright.tracer.clocks.limits import Limits
from clockwright.tracer.gpu.protocol import Capabilities, Reading
from clockwright.tracer.workloads import Step
from tests.replay.loops import BACKWARD, FORWARD, UPDATE, Loop, open_gpu, schedule_for


class _Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = time.monotonic()

    def elapsed_time(self, other: _Event) -> float:
        return 1e3 * (other.at_s - self.at_s)


class _Meter:
    """A counter of 1 W on host time, read by the energy log."""

    def capabilities(self) -> Capabilities:
        from clockwright.tracer.gpu.protocol import Capability

        return Capabilities(energy_counter=Capability.YES)

    def read(self, *, energy: bool = True) -> Reading:
        now_ns = time.monotonic_ns()
        return Reading(
            at_ns=now_ns, energy_mj=now_ns // 5_000_000 * 5, temperature_c=50.0,
            throttle_reasons=4, core_mhz=1500,
        )  # fmt: skip

    def now_ns(self) -> int:
        return time.monotonic_ns()


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    loop, gpu = Loop(), open_gpu()
    made = schedule_for(loop)
    plan = plan_of(made)
    arms = [
        Arm(BASELINE, constant_plan(GOVERNOR, plan.kernels)),
        Arm(SCHEDULE, plan),
        Arm(SINGLE, constant_plan(UPDATE, plan.kernels)),
    ]
    places, table = number_arms(arms)
    keeper = LocalKeeper(gpu, limits=Limits(max_switches_per_s=1_000_000))
    keeper.acquire(gpu.info.uuid, table)
    with TriggerPage.create() as page, EnergyLog(_Meter(), period_ns=1_000_000) as log:
        keeper.arm(page)
        step = Step(run=loop.step, model=loop.model, optimizer=loop.optimizer)
        runner = EagerRunner(step, HostWriter(page, keeper))
        player = HardwarePlayer(_Meter(), keeper, page, runner, places, log, 1_000_000, settle_ns=1)
        yield player, {arm.name: arm for arm in arms}, gpu, keeper, runner
        runner.close()
        keeper.close()


def test_arms_have_numbers_of_their_own_in_one_table():
    plan = plan_segments(
        [Segment(0, 1, FORWARD, 0, Anchor("", "step_start")), Segment(1, 2, UPDATE, 1)], 2
    )
    places, table = number_arms([Arm(BASELINE, constant_plan(GOVERNOR, 2)), Arm(SCHEDULE, plan)])
    assert table == {1: GOVERNOR, 2: FORWARD, 3: FORWARD, 4: UPDATE}
    assert (places[BASELINE].entry, places[SCHEDULE].entry) == (1, 2)


def test_each_arm_holds_its_own_pairs(rig):
    player, arms, gpu, keeper, _ = rig
    player.play(arms[SINGLE], 1)
    assert gpu.locked() == UPDATE
    player.play(arms[BASELINE], 1)
    assert gpu.locked() is None
    count = len(keeper.events())
    reading = player.play(arms[SCHEDULE], 5_000_000)
    pairs = [event.pair for event in keeper.events()[count:]]
    assert set(pairs) == {FORWARD, BACKWARD, UPDATE}
    assert reading.switches == 3 * reading.steps == 15
    assert player.requests()["set"] > 15


def test_time_is_the_events_and_energy_the_counters(rig):
    player, arms, *_ = rig
    reading = player.play(arms[BASELINE], 200_000_000)
    assert reading.energy_mj is not None
    assert reading.energy_error_mj is not None
    # 1 W for the time of a step.
    assert reading.energy_mj == pytest.approx(reading.time_ns * 1e-6, rel=0.2)
    assert (reading.temperature_c, reading.throttle_reasons, reading.core_mhz) == (50.0, 4, 1500)


def test_a_keeper_that_does_not_follow_is_told(rig, monkeypatch):
    player, arms, _, keeper, _ = rig
    monkeypatch.setattr("clockwright.replay.hardware._FOLLOW_S", 0.05)
    monkeypatch.setattr(keeper, "poll", lambda: None)
    with pytest.raises(KeeperError, match="has not followed the page"):
        player.play(arms[SINGLE], 1)


def test_a_step_that_fails_is_a_workload_error(rig, monkeypatch):
    player, arms, _, _, runner = rig

    def out_of_memory():
        raise RuntimeError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(runner._step, "run", out_of_memory)
    with pytest.raises(WorkloadError, match=r"CUDA out of memory\. Tried to allocate"):
        player.play(arms[BASELINE], 1)


def test_a_step_without_a_model_has_no_edges(rig):
    _, arms, *_, runner = rig
    runner._step.model = None
    places, _ = number_arms(list(arms.values()))
    with pytest.raises(InputError, match="shows no model"):
        runner.enter(places[SCHEDULE])
