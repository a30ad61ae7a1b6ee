"""One line in a training script plays the schedule, and always gives the clocks back."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import clockwright
from clockwright.data import schedule as schedule_file
from clockwright.data.errors import InputError, KeeperError, LockNotHeldError, MismatchError
from clockwright.data.schedule import Anchor, Segment
from clockwright.data.sequence import pack
from clockwright.data.units import GOVERNOR
from clockwright.replay.follower import FollowerState
from clockwright.replay.matching import scheduled_sequence
from clockwright.tracer.clocks import LocalKeeper, Outcome
from clockwright.tracer.gpu.simulated import Faults
from tests.replay.builders import small_step
from tests.replay.loops import BACKWARD, FORWARD, UPDATE, Loop, Net, open_gpu, schedule_for

CYCLE = [FORWARD, BACKWARD, UPDATE]


def _pairs(session) -> list:
    return [event.pair for event in session.events() if event.outcome is Outcome.SET]


def test_the_package_can_be_called_and_imports_no_torch():
    code = (
        "import sys, clockwright; clockwright.replay; "
        "assert callable(clockwright.replay); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_loop_plays_the_schedule_from_its_third_step_on():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu) as session:
        for _ in range(5):
            loop.step()
        assert gpu.locked() == UPDATE
    assert session.steps_played == 3
    assert _pairs(session) == CYCLE * 3
    assert gpu.locked() is None
    assert session.match is not None
    assert session.match.difference is None


def test_each_pair_is_in_force_where_its_kernels_are_launched():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    seen: dict[str, set] = {"forward": set(), "backward": set(), "update": set()}
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu):
        loop.step()
        loop.step()
        loop.model.last.register_forward_hook(lambda *_: seen["forward"].add(gpu.locked()))
        loop.model.first.weight.register_hook(lambda _: seen["backward"].add(gpu.locked()))
        loop.optimizer.register_step_post_hook(lambda *_: seen["update"].add(gpu.locked()))
        loop.step()
        loop.step()
    assert seen == {"forward": {FORWARD}, "backward": {BACKWARD}, "update": {UPDATE}}


def test_evaluation_and_short_batches_run_at_the_baseline():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu) as session:
        for _ in range(3):
            loop.step()
        loop.evaluate()
        assert gpu.locked() is None
        loop.step()
        assert gpu.locked() == UPDATE
        loop.step(batch=2)
        assert gpu.locked() is None
        loop.step()
        assert (session.steps_played, session.times_outside) == (3, 2)


def test_accumulated_micro_batches_that_were_scheduled_are_played():
    loop = Loop()
    made, gpu = schedule_for(loop, micro=2), open_gpu()
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu) as session:
        for _ in range(3):
            loop.step(micro=2)
        assert session.steps_played == 1
        loop.step(micro=3)
        assert gpu.locked() is None
    assert _pairs(session)[:3] == [FORWARD, BACKWARD, FORWARD]


def test_an_exception_in_the_loop_gives_the_clocks_back():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    with (
        pytest.raises(RuntimeError, match="user"),
        clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu),
    ):
        for _ in range(3):
            loop.step()
        raise RuntimeError("user")
    assert gpu.locked() is None


def test_after_the_end_nothing_is_asked_for():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu) as session:
        for _ in range(3):
            loop.step()
    count = len(session.events())
    loop.step()
    session.close()
    assert len(session.events()) == count
    assert gpu.locked() is None


def test_another_model_is_refused_with_the_first_difference():
    made, gpu = schedule_for(Loop()), open_gpu()
    other = Loop(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU()))
    # Names of modules are not the question here, the kernels are.
    anchored = replace(
        made, segments=tuple(replace(s, anchor=made.segments[0].anchor) for s in made.segments[:1])
    )
    anchored = replace(
        anchored, segments=(replace(anchored.segments[0], end=made.trace["kernels"]),)
    )
    with (
        pytest.raises(MismatchError, match="kernel 0: the schedule expects"),
        clockwright.replay(anchored, other.model, other.optimizer, gpu=gpu),
    ):
        for _ in range(3):
            other.step()
    assert gpu.locked() is None


def test_allowed_drift_plays_the_segments_that_match():
    class Longer(Net):
        def forward(self, x):
            return super().forward(x).tanh()

    made, gpu = schedule_for(Loop()), open_gpu()
    loop = Loop(Longer())
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu, allow_drift=0.3) as session:
        for _ in range(4):
            loop.step()
    assert session.match is not None
    assert 0 < session.match.drift < 0.3
    assert UPDATE in _pairs(session)
    assert session.steps_played == 2


def test_a_loop_that_stands_still_is_put_to_the_baseline():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu, idle_s=0.2) as session:
        for _ in range(3):
            loop.step()
        assert gpu.locked() == UPDATE
        deadline = time.monotonic() + 10
        while gpu.locked() is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert gpu.locked() is None
        assert session.state is FollowerState.OUTSIDE
        loop.step()
        assert session.steps_played == 2


def test_a_keeper_that_gives_up_ends_the_playing_and_not_the_training():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu) as session:
        for _ in range(3):
            loop.step()
        gpu.set_faults(Faults(rights=False))
        loop.step()
        loop.step()
        assert session.fault is not None
        gpu.set_faults(Faults())
        loop.step()
        assert session.steps_played < 4
    assert gpu.locked() is None


def test_a_fault_can_be_raised_instead():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    keeper = LocalKeeper(gpu)
    with (
        pytest.raises(KeeperError, match="more than 50 clock switches"),
        clockwright.replay(
            made, loop.model, loop.optimizer, gpu=gpu, keeper=keeper, on_fault="raise"
        ),
    ):
        for _ in range(60):
            loop.step()
    assert gpu.locked() is None


def test_a_lock_that_does_not_hold_ends_the_playing():
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu(faults=Faults(locks_hold=False))
    keeper = LocalKeeper(gpu)
    with clockwright.replay(made, loop.model, loop.optimizer, gpu=gpu, keeper=keeper) as session:
        for _ in range(3):
            loop.step()
        for _ in range(10):
            # Busy, or the driver's idle clocks would explain what it reports.
            gpu.run(small_step(8))
            keeper._lease.look()  # as the keeper's own process does between requests
        loop.step()
        assert isinstance(session.fault, LockNotHeldError)


def test_another_gpu_or_none_is_told_on_entering():
    loop = Loop()
    made = schedule_for(loop)
    with pytest.raises(MismatchError, match="made for"):
        clockwright.replay(made, loop.model, loop.optimizer, gpu="sim:v100").__enter__()
    with pytest.raises(InputError, match="say which GPU"):
        clockwright.replay(made, loop.model, loop.optimizer).__enter__()


def test_a_schedule_without_anchors_is_refused_before_anything_is_opened():
    loop = Loop()
    made = schedule_for(loop)
    bare = replace(made, segments=tuple(replace(s, anchor=None) for s in made.segments))
    with pytest.raises(InputError, match="no module begins or ends"):
        clockwright.replay(bare, loop.model, loop.optimizer, gpu=open_gpu())


def test_each_rank_can_have_a_schedule_file_of_its_own(tmp_path, monkeypatch):
    loop = Loop()
    made, gpu = schedule_for(loop), open_gpu()
    schedule_file.write(made, tmp_path / "s-1.json")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with clockwright.replay(tmp_path / "s-{local_rank}.json", loop.model, loop.optimizer, gpu=gpu):
        loop.step()
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match=r"s-2\.json: no such file"):
        clockwright.replay(tmp_path / "s-{local_rank}.json", loop.model, loop.optimizer, gpu=gpu)


def test_inference_counts_each_forward_as_a_step():
    model = Net().eval()

    class Inference(Loop):
        def step(self, batch: int = 6, micro: int = 1) -> None:
            x = torch.ones(batch, 8)
            with torch.no_grad():
                self.model(x)

    loop = Inference(model)
    whole, gpu = schedule_for(loop), open_gpu()
    ran = scheduled_sequence(whole)
    assert ran is not None
    ran = replace(ran, order=ran.order[1:])  # the input is made outside the model
    made = replace(
        whole,
        trace={"fingerprint": ran.fingerprint, "kernels": len(ran)},
        segments=(Segment(0, len(ran), FORWARD, 0, Anchor("", "step_start")),),
        extra={"sequence": pack(ran)},
    )
    with clockwright.replay(made, model, gpu=gpu) as session:
        for _ in range(4):
            loop.step()
        assert gpu.locked() == FORWARD
        loop.step(batch=3)
        assert gpu.locked() is None
    assert session.steps_played == 2
    assert GOVERNOR in [event.pair for event in session.events()]


@pytest.mark.parametrize("options", [{"allow_drift": float("nan")}, {"idle_s": 0.0}])
def test_options_that_make_no_sense_are_refused_at_once(options):
    loop = Loop()
    with pytest.raises(InputError, match="must"):
        clockwright.replay(
            schedule_for(loop), loop.model, loop.optimizer, gpu=open_gpu(), **options
        )
