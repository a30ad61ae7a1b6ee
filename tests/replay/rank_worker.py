"""One rank of ``test_ranks``: trains under DDP with gloo, then verifies; prints one JSON line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import clockwright
from clockwright.data import schedule as schedule_file
from clockwright.data.report import BASELINE, SCHEDULE
from clockwright.data.units import GOVERNOR
from clockwright.replay.distributed import RankedPlayer
from clockwright.replay.plan import constant_plan, plan_segments
from clockwright.replay.ranks import rank, schedule_path
from clockwright.replay.simulated import StepPlayer
from clockwright.replay.verify import Arm, Settings, verify
from clockwright.tracer.clocks import Outcome
from clockwright.tracer.gpu.simulated import open_simulated
from tests.replay.builders import phase_rows, small_step
from tests.replay.loops import FORWARD, UPDATE, Net, StepRecorder, open_gpu, schedule_of


def _model() -> tuple[Net, DistributedDataParallel, torch.optim.SGD]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, DistributedDataParallel(model), optimizer


def _steps(parallel: DistributedDataParallel, optimizer: torch.optim.SGD, count: int) -> None:
    for _ in range(count):
        batch = torch.ones(6, 8)
        parallel(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _record(path: Path) -> None:
    """A schedule of this rank's own step, its all-reduce included."""
    model, parallel, optimizer = _model()
    recorder = StepRecorder(model, optimizer)
    _steps(parallel, optimizer, 2)
    assert recorder.step is not None
    schedule_file.write(schedule_of(recorder.step), path)


def _train(schedule: Path, steps: int) -> dict[str, object]:
    _record(schedule_path(schedule))
    model, parallel, optimizer = _model()
    gpu = open_gpu(seed=rank())
    with clockwright.replay(schedule, model, optimizer, gpu=gpu) as session:
        _steps(parallel, optimizer, steps)
        held = gpu.locked()
    return {
        "uuid": gpu.info.uuid,
        "played": session.steps_played,
        "held": str(held),
        "after": str(gpu.locked()),
        "pairs": [str(e.pair) for e in session.events() if e.outcome is Outcome.SET],
    }


def _verify() -> dict[str, object]:
    step = small_step(2)
    player = StepPlayer(open_simulated("rtx3080ti", seed=rank(), switch="stall"), step)
    arms = [
        Arm(BASELINE, constant_plan(GOVERNOR, 20)),
        Arm(SCHEDULE, plan_segments(phase_rows(FORWARD, UPDATE, 2), 20)),
    ]
    settings = Settings(max_rounds=12, block_ns=100_000_000)
    result = verify(RankedPlayer(player), arms, max_slowdown=0.5, settings=settings)
    return {
        "verdict": result.verdict,
        "slowdown": result.comparisons[0].slowdown.value,
        "own_time_ns": player.now_ns(),
        "energy_mj": result.blocks[0].energy_mj,
        "requests": dict(result.requests),
    }


def main(schedule: str) -> None:
    distributed.init_process_group("gloo")
    told = {"rank": rank(), "train": _train(Path(schedule), 5), "verify": _verify()}
    distributed.barrier()
    distributed.destroy_process_group()
    Path(f"{os.environ['TOLD']}-{rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
