"""The callback plays a schedule in the real Hugging Face Trainer, on the simulated GPU."""

from __future__ import annotations

import warnings

import pytest
import torch

pytest.importorskip("transformers", reason="the optional extra 'transformers' is not installed")
pytest.importorskip("accelerate", reason="the Hugging Face Trainer needs accelerate")

from transformers import Trainer, TrainerCallback, TrainingArguments

from clockwright.data.errors import MismatchError
from clockwright.replay.integrations.huggingface import ClockwrightCallback
from clockwright.tracer.clocks import Outcome
from tests.replay.loops import BACKWARD, FORWARD, UPDATE, Net, StepRecorder, open_gpu, schedule_of

# Other libraries warn as they please.
pytestmark = pytest.mark.filterwarnings("ignore")


class Model(Net):
    def forward(self, x, labels=None):
        y = super().forward(x)
        return {"loss": (y - labels).square().mean(), "logits": y}


class Recorder(TrainerCallback):
    recorder: StepRecorder

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        self.recorder = StepRecorder(model, getattr(optimizer, "optimizer", optimizer))


def _data(count: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.ones(8), "labels": torch.zeros(4)} for _ in range(count)]


def _train(folder, callback, examples=24, batch=4, **options) -> None:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **options,
    )
    trainer = Trainer(
        model=Model(), args=arguments, train_dataset=_data(examples), eval_dataset=_data(4),
        callbacks=[callback],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()


def _schedule(folder, **options):
    recorder = Recorder()
    _train(folder, recorder, **options)
    assert recorder.recorder.step is not None
    return schedule_of(recorder.recorder.step)


def _pairs(session) -> list:
    return [event.pair for event in session.events() if event.outcome is Outcome.SET]


def test_known_steps_are_played_and_the_clocks_given_back(tmp_path):
    made, gpu = _schedule(tmp_path), open_gpu()
    callback = ClockwrightCallback(made, gpu=gpu)
    _train(tmp_path, callback)
    assert callback.session is not None
    assert callback.session.steps_played == 4
    assert _pairs(callback.session) == [FORWARD, BACKWARD, UPDATE] * 4
    assert gpu.locked() is None


def test_gradient_accumulation_that_was_scheduled_is_one_step(tmp_path):
    made, gpu = _schedule(tmp_path, gradient_accumulation_steps=2), open_gpu()
    callback = ClockwrightCallback(made, gpu=gpu)
    _train(tmp_path, callback, examples=32, gradient_accumulation_steps=2)
    assert callback.session is not None
    assert callback.session.steps_played == 2
    assert _pairs(callback.session) == [FORWARD, BACKWARD, FORWARD, BACKWARD, UPDATE] * 2


def test_evaluation_and_a_short_last_batch_are_outside(tmp_path):
    made, gpu = _schedule(tmp_path), open_gpu()
    callback = ClockwrightCallback(made, gpu=gpu)
    _train(tmp_path, callback, examples=26, eval_strategy="steps", eval_steps=4)
    assert callback.session is not None
    assert callback.session.steps_played == 4
    assert callback.session.times_outside == 2


def test_a_training_that_fails_gives_the_clocks_back(tmp_path):
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 3:
                raise RuntimeError("user")

    made, gpu = _schedule(tmp_path), open_gpu()
    with (
        pytest.raises(RuntimeError, match="user"),
        ClockwrightCallback(made, gpu=gpu) as callback,
    ):
        torch.manual_seed(0)
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=4, use_cpu=True, report_to=[],
            disable_tqdm=True, save_strategy="no", remove_unused_columns=False,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(
            model=Model(), args=arguments, train_dataset=_data(24), callbacks=[callback, Fails()]
        )
        try:
            trainer.train()
        finally:
            assert gpu.locked() == UPDATE
    assert gpu.locked() is None


def test_a_schedule_for_another_batch_size_is_refused(tmp_path):
    made, gpu = _schedule(tmp_path), open_gpu()
    with (
        pytest.raises(MismatchError, match="the schedule expects"),
        ClockwrightCallback(made, gpu=gpu) as callback,
    ):
        _train(tmp_path, callback, batch=3)
    assert gpu.locked() is None
