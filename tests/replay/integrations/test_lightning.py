"""The callback plays a schedule in the real Lightning Trainer, on the simulated GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("lightning", reason="the optional extra 'lightning' is not installed")

import lightning.pytorch as pl

from clockwright.data.errors import InputError, MismatchError
from clockwright.replay.integrations.lightning import ClockwrightCallback
from clockwright.tracer.clocks import Outcome
from tests.replay.loops import BACKWARD, FORWARD, UPDATE, Loop, Net, open_gpu, schedule_for

# Other libraries warn as they please.
pytestmark = pytest.mark.filterwarnings("ignore")

PHASES = [FORWARD, BACKWARD, UPDATE]


class Module(pl.LightningModule):
    """As Lightning modules often are: the module's own forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def validation_step(self, batch, _):
        self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def _loader(count: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(torch.ones(count, 8), batch_size=6)


def _fit(callback, module=None, batches=6, short=0, validate=False, **options) -> None:
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback], **options,
    )  # fmt: skip
    loaders = [_loader(6)] if validate else []
    trainer.fit(module or Module(), _loader(6 * batches + short), *loaders)


def _schedule(micro: int = 1):
    class Captured(Loop):
        batch = torch.ones(6, 8)

        def step(self, batch: int = 6, micro: int = 1) -> None:
            for _ in range(micro):
                # Lightning always divides the loss, and keeps a copy of it for its loggers.
                loss = self.model(self.batch).square().mean() / micro
                loss.detach().clone()
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    return schedule_for(Captured(), micro=micro)


def _pairs(session) -> list:
    return [event.pair for event in session.events() if event.outcome is Outcome.SET]


@pytest.fixture
def options():
    return {"gpu": open_gpu(), "module": "net"}


def test_known_steps_are_played_and_the_clocks_given_back(options):
    callback = ClockwrightCallback(_schedule(), **options)
    _fit(callback)
    assert callback.session is not None
    assert callback.session.steps_played == 4
    assert _pairs(callback.session) == PHASES * 4
    assert options["gpu"].locked() is None


def test_each_pair_is_in_force_where_its_kernels_are_launched(options):
    """Lightning runs forward and backward inside ``optimizer.step``."""
    seen: list = []

    class Watching(Module):
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            seen.append(("forward", options["gpu"].locked()))
            return loss

        def on_after_backward(self):
            seen.append(("backward", options["gpu"].locked()))

        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(("update", options["gpu"].locked()))

    _fit(ClockwrightCallback(_schedule(), **options), Watching())
    assert seen[6:] == [("forward", FORWARD), ("backward", BACKWARD), ("update", UPDATE)] * 4


def test_accumulated_batches_that_were_scheduled_are_one_step(options):
    callback = ClockwrightCallback(_schedule(micro=2), **options)
    _fit(callback, batches=10, accumulate_grad_batches=2)
    assert callback.session is not None
    assert callback.session.steps_played == 3
    assert _pairs(callback.session) == [FORWARD, BACKWARD, FORWARD, BACKWARD, UPDATE] * 3


def test_validation_and_a_short_last_batch_are_outside(options):
    callback = ClockwrightCallback(_schedule(), **options)
    _fit(callback, batches=6, short=2, validate=True, val_check_interval=4)
    assert callback.session is not None
    assert callback.session.steps_played == 4
    assert callback.session.times_outside >= 2
    assert options["gpu"].locked() is None


def test_an_exception_gives_the_clocks_back(options):
    class Fails(Module):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 3:
                assert options["gpu"].locked() == UPDATE
                raise RuntimeError("user")

    with pytest.raises(RuntimeError, match="user"):
        _fit(ClockwrightCallback(_schedule(), **options), Fails())
    assert options["gpu"].locked() is None


def test_manual_optimization_is_refused(options):
    class Manual(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(InputError, match="automatic optimization only"):
        _fit(ClockwrightCallback(_schedule(), **options), Manual())


def test_another_model_is_refused(options):
    with pytest.raises(MismatchError, match="the schedule expects"):
        _fit(ClockwrightCallback(_schedule(micro=2), **options))
    assert options["gpu"].locked() is None
