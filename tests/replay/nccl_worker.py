"""One rank of the two-GPU test: trains under DDP with NCCL, read-only; writes one JSON file."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import clockwright
from clockwright.replay.distributed import gather
from clockwright.replay.ranks import local_rank, rank
from clockwright.tracer.gpu.select import open_gpu
from clockwright.tracer.workloads.capture import recording
from tests.replay.loops import Net, schedule_of


def main() -> None:
    torch.cuda.set_device(local_rank())
    distributed.init_process_group("nccl")
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    parallel = DistributedDataParallel(model, device_ids=[local_rank()])

    def step() -> None:
        parallel(torch.ones(6, 8, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with recording(model, on_cuda=True) as recorded:
        step()
    gpu = open_gpu(f"nvml:{local_rank()}")
    listed = gpu.pairs()
    schedule = schedule_of(recorded(), (listed[0], listed[1], listed[2]), gpu.info.name)
    with clockwright.replay(schedule, model, optimizer) as session:
        for _ in range(5):
            step()
            torch.cuda.synchronize()
    outcomes = Counter(event.outcome.name for event in session.events())
    told = {"uuid": gpu.info.uuid, "played": session.steps_played, "outcomes": dict(outcomes)}
    told["all"] = gather(gpu.info.uuid)
    gpu.close()
    distributed.destroy_process_group()
    Path(f"{os.environ['TOLD']}-{rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
