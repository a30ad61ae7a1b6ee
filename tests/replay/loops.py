"""A small training loop, and a schedule for its step, for the tests of replay in scripts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from clockwright.data.schedule import Schedule, Segment
from clockwright.data.sequence import pack
from clockwright.data.units import ClockPair
from clockwright.optimizer.anchors import find_anchors
from clockwright.replay.source import sequence_of_step
from clockwright.tracer.gpu.simulated import SimulatedGpu, open_simulated
from clockwright.tracer.work import StepWork
from clockwright.tracer.workloads.capture import recording
from tests.replay.builders import schedule

FORWARD, BACKWARD, UPDATE = (ClockPair(core, 9501) for core in (1695, 1500, 1050))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.act = nn.GELU()
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


class Loop:
    """Runs steps of one batch size, evaluations, and micro-batches."""

    def __init__(self, model: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        self.model = Net() if model is None else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self, batch: int = 6, micro: int = 1) -> None:
        self.model.train()
        for _ in range(micro):
            self.model(torch.ones(batch, 8)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(torch.ones(6, 8))


def open_gpu(**options) -> SimulatedGpu:
    return open_simulated("rtx3080ti", **{"seed": 3, "switch": "free"} | options)


def schedule_for(loop: Loop, **step_options) -> Schedule:
    """One pair a phase, anchored as the optimizer would; made by recording one real step."""
    loop.step(**step_options)
    with recording(loop.model, on_cuda=False) as recorded:
        loop.step(**step_options)
    return schedule_of(recorded())


def schedule_of(
    step: StepWork,
    pairs: tuple[ClockPair, ClockPair, ClockPair] = (FORWARD, BACKWARD, UPDATE),
    gpu: str | None = None,
) -> Schedule:
    """One pair a phase, at the anchors of a recorded step."""
    import pandas as pd

    phases = [item.phase for item in step.items]
    modules = [item.module for item in step.items]
    anchors = find_anchors(pd.DataFrame({"module": modules, "phase": phases}))
    rows: list[Segment] = []
    for kernel, anchor in enumerate(anchors):
        pair = {"forward": pairs[0], "backward": pairs[1]}.get(phases[kernel], pairs[2])
        if rows and (rows[-1].pair == pair or anchor is None):
            rows[-1] = replace(rows[-1], end=kernel + 1)
        else:
            rows.append(Segment(kernel, kernel + 1, pair, kernel, anchor))
    ran = sequence_of_step(step)
    made = schedule(rows, gpu={"name": gpu or open_gpu().info.name, "simulated": gpu is None})
    return replace(
        made,
        trace={"fingerprint": ran.fingerprint, "kernels": len(ran)},
        extra={"sequence": pack(ran)},
    )


class StepRecorder:
    """Records the second step of somebody else's loop, from its first forward to its optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.step: StepWork | None = None
        self._model, self._count, self._stack, self._recorded = model, 0, ExitStack(), None
        self._handles = [
            model.register_forward_pre_hook(self.begin, prepend=True),
            optimizer.register_step_post_hook(self.end),
        ]

    def begin(self, *_) -> None:
        if self._count == 1 and self._recorded is None and torch.is_grad_enabled():
            self._recorded = self._stack.enter_context(recording(self._model, on_cuda=False))

    def end(self, *_) -> None:
        self._count += 1
        if self._recorded is not None:
            self._stack.close()
            self.step, self._recorded = self._recorded(), None
            for handle in self._handles:
                handle.remove()
