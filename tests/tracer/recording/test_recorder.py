"""``with clockwright.trace(...)``: a loop of the user's own, traced in a few lines."""

import os

import pytest
import torch

import clockwright
from clockwright.data import trace as trace_file
from clockwright.data.errors import DeviceBusyError, InputError, ReadOnlyError, WorkloadError
from clockwright.data.units import GOVERNOR, ClockPair
from tests.tracer.recording.instruments import ScriptedInstrument

PAIRS = ("1800/9501", "1200/9501")


class Loop:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch, self.calls = torch.randn(16384, 512), 0

    def step(self):
        self.calls += 1
        loss = self.model(self.batch).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.calls


def test_a_loop_is_traced_on_a_simulated_gpu(tmp_path):
    loop, seen = Loop(), []
    with clockwright.trace(
        tmp_path / "T", gpu="sim:rtx3080ti", model=loop.model, optimizer=loop.optimizer,
        pairs=PAIRS, name="my loop",
    ) as recorder:  # fmt: skip
        for _ in range(5):
            seen.append((recorder.step(loop.step), recorder.done))
            if recorder.done:
                break
    assert seen == [(1, False), (2, False), (3, True)]
    made = trace_file.read(tmp_path / "T")
    assert made.simulated
    assert made.workload["name"] == "my loop"
    assert [str(pair) for pair in made.clock_pairs()] == ["governor", *PAIRS]
    assert "0" in set(made.timeline["module"].dropna())
    assert {"forward", "backward", "optimizer"} <= set(made.timeline["phase"])


def test_a_loop_shorter_than_the_warm_up_is_recorded_at_its_end(tmp_path):
    loop = Loop()
    with clockwright.trace(tmp_path / "T", gpu="sim:rtx3080ti", pairs=PAIRS) as recorder:
        recorder.step(loop.step)
        assert not recorder.done
    assert recorder.done
    assert (tmp_path / "T" / "trace.json").exists()


def test_what_the_loop_raises_passes_through_and_nothing_is_written(tmp_path):
    def bad():
        raise ZeroDivisionError("mine")

    with (
        pytest.raises(ZeroDivisionError, match="mine"),
        clockwright.trace(tmp_path / "T", gpu="sim:rtx3080ti") as recorder,
    ):
        recorder.step(bad)
    assert not (tmp_path / "T").exists()


def test_misuse_is_told(tmp_path):
    with (
        pytest.raises(WorkloadError, match=r"call recorder\.step\(run\) within"),
        clockwright.trace(tmp_path / "T", gpu="sim:rtx3080ti"),
    ):
        pass
    with pytest.raises(InputError, match="works within its with block"):
        clockwright.trace(tmp_path / "T", gpu="sim:rtx3080ti").step(lambda: None)
    with pytest.raises(InputError, match="warm_up must be at least 1"):
        clockwright.trace(tmp_path / "T", gpu="sim:rtx3080ti", warm_up=0)
    with pytest.raises(InputError, match="clock pair must be CORE/MEM"):
        clockwright.trace(tmp_path / "T", gpu="sim:rtx3080ti", pairs=["fast"])
    with (
        pytest.raises(WorkloadError, match="launched no kernel"),
        clockwright.trace(tmp_path / "T", gpu="sim:rtx3080ti", warm_up=1) as recorder,
    ):
        recorder.step(lambda: None)


@pytest.fixture
def real(fake, monkeypatch):
    made = []

    def make(workload, opened, *, step, name, **options):
        step.run()
        made.append(ScriptedInstrument(opened, workload=name))
        return made[-1]

    monkeypatch.setattr("clockwright.tracer.recording.recorder.SessionInstrument", make)
    return made


def test_on_a_real_gpu_nothing_is_set(real, fake_nvml, tmp_path):
    calls = []
    with clockwright.trace(tmp_path / "T", gpu="nvml:0", warm_up=2) as recorder:
        while not recorder.done:
            recorder.step(lambda: calls.append(1))
        recorder.step(lambda: calls.append(1))
    assert len(calls) == 4
    assert len(real) == 1
    assert trace_file.read(tmp_path / "T").clock_pairs() == (GOVERNOR,)
    assert fake_nvml.setters() == []


def test_a_real_gpus_clocks_are_swept_if_allowed_and_given_back(real, fake, tmp_path):
    with clockwright.trace(
        tmp_path / "T", gpu=f"nvml:{fake.uuid}", set_clocks=True, pairs=["1785/3201"], warm_up=1
    ) as recorder:
        recorder.step(lambda: None)
    assert recorder.trace.clock_pairs() == (GOVERNOR, ClockPair(1785, 3201))
    assert fake.is_pristine


def test_a_real_gpu_is_refused_on_entering(real, fake, tmp_path):
    with (
        pytest.raises(ReadOnlyError, match="say --set-clocks"),
        clockwright.trace(tmp_path / "T", gpu="nvml:0", pairs=["1785/3201"]),
    ):
        pass
    fake.set_processes([os.getpid(), 4242])
    with (
        pytest.raises(DeviceBusyError, match="process 4242"),
        clockwright.trace(tmp_path / "T", gpu="nvml:0"),
    ):
        pass


def test_a_step_that_fails_while_it_is_recorded_is_told_with_its_place(fake, tmp_path, monkeypatch):
    calls = []

    def run():
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("shape changed")

    def make(workload, opened, *, step, **options):
        step.run()

    monkeypatch.setattr("clockwright.tracer.recording.recorder.SessionInstrument", make)
    with (
        pytest.raises(WorkloadError, match=r"my loop failed: RuntimeError: shape changed \(test_"),
        clockwright.trace(tmp_path / "T", gpu="nvml:0", warm_up=1, name="my loop") as recorder,
    ):
        recorder.step(run)
    assert not (tmp_path / "T").exists()
