"""Replay on a real GPU, read-only: do verdicts on nothing say nothing, and does the path hold?

Run on a machine with one NVIDIA GPU::

    CLOCKWRIGHT_READ_ONLY=1 python benchmarks/gpu_replay.py --out gpu_replay.json

Sets no clock: the keeper is dry, so every request is made, followed and counted, and none reaches
the driver. The step is one GPT-3-XL-width training step (4 layers, batch 4 x 2048 unless said).

* ``nothing``: baseline against baseline, which must be called ``no difference``.
* ``one_pair``: a schedule of one pair (the clocks of the moment) through matching, keeper,
  verification and report, as ``clockwright replay`` runs it.

What triggers cost is measured by ``gpu_triggers.py``. Prints one line a part and writes everything,
block by block, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clockwright.data.report import BASELINE, SCHEDULE
from clockwright.data.schedule import Anchor, Cost, Predicted, Proof, Schedule, Segment
from clockwright.data.sequence import pack
from clockwright.data.units import GOVERNOR
from clockwright.replay.energy_log import EnergyLog
from clockwright.replay.hardware import HardwarePlayer, observed_sequence, open_hardware
from clockwright.replay.plan import Plan, constant_plan
from clockwright.replay.run import run_replay
from clockwright.replay.source import ReplayOptions
from clockwright.replay.triggers.cuda_driver import CudaDriver
from clockwright.replay.triggers.runners import GraphRunner, Runner, number_arms
from clockwright.replay.triggers.writers import StreamWriter
from clockwright.replay.verify import Arm, Settings, Verification, verify
from clockwright.tracer import workloads
from clockwright.tracer.clocks import KeeperClient, TriggerPage
from clockwright.tracer.gpu.protocol import Gpu
from clockwright.tracer.gpu.select import open_gpu
from clockwright.tracer.workloads import Step

TARGET = 0.001
OPTIONS = {"layers": 4, "batch": 4, "sequence": 2048}


@dataclass
class Bench:
    """What the parts share."""

    gpu: Gpu
    spec: str
    step: Step
    settings: Settings


@contextmanager
def rig(
    bench: Bench, arms: list[Arm], make: Callable[[StreamWriter, CudaDriver], Runner]
) -> Iterator[HardwarePlayer]:
    """Keeper (dry), page, writer, runner and energy log for some arms."""
    with ExitStack() as stack:
        places, table = number_arms(arms)
        keeper = stack.enter_context(KeeperClient.start(bench.spec, dry=True, socket="private"))
        keeper.acquire(bench.gpu.info.uuid, table)
        page = stack.enter_context(TriggerPage.create())
        writer = stack.enter_context(StreamWriter(page, CudaDriver.load()))
        keeper.arm(page)
        stack.callback(keeper.disarm)
        runner = make(writer, CudaDriver.load())
        stack.callback(runner.close)
        runner.enter(places[BASELINE])
        step_ns = time_step(runner)
        log = stack.enter_context(EnergyLog(bench.gpu))
        # No clock is set, so none has to settle.
        yield HardwarePlayer(bench.gpu, keeper, page, runner, places, log, step_ns, settle_ns=0)


def time_step(runner: Runner, steps: int = 10) -> int:
    """Host time of a step, ns."""
    for _ in range(3):
        runner.run()
    torch.cuda.synchronize()
    begin_ns = time.monotonic_ns()
    for _ in range(steps):
        runner.run()
    torch.cuda.synchronize()
    return (time.monotonic_ns() - begin_ns) // steps


def told(result: Verification) -> dict[str, Any]:
    """A verification as plain values."""
    entry = result.comparisons[0]
    return {
        "slowdown": asdict(entry.slowdown),
        "saving": None if entry.saving is None else asdict(entry.saving),
        "difference": entry.difference,
        "verdict": result.verdict,
        "stopped": result.stopped,
        "rounds": 1 + max(block.round for block in result.blocks),
        "requests": dict(result.requests),
        "step_ns": [block.time_ns for block in result.blocks if block.arm == BASELINE],
        "blocks": [asdict(block) for block in result.blocks],
    }


def compared(bench: Bench, player: HardwarePlayer, plan: Plan) -> Verification:
    """Steps with a plan against steps without, all else equal."""
    arms = [Arm(BASELINE, constant_plan(GOVERNOR, plan.kernels)), Arm(SCHEDULE, plan)]
    return verify(player, arms, max_slowdown=TARGET, settings=bench.settings)


def part_nothing(bench: Bench) -> dict[str, Any]:
    """The baseline against itself, as a graph, so that the host's pace plays no part."""
    plan = constant_plan(GOVERNOR, 1)
    arms = [Arm(BASELINE, plan), Arm(SCHEDULE, plan)]

    def make(writer: StreamWriter, driver: CudaDriver) -> Runner:
        return GraphRunner(bench.step, writer, driver)

    with rig(bench, arms, make) as player:
        return told(compared(bench, player, plan))


def part_one_pair(bench: Bench) -> dict[str, Any]:
    """A schedule of one pair, through the whole path of ``clockwright replay``."""
    now = bench.gpu.read(energy=False)
    near = min(
        bench.gpu.pairs(),
        key=lambda pair: (
            abs((pair.core_mhz or 0) - (now.core_mhz or 0)),
            abs((pair.mem_mhz or 0) - (now.mem_mhz or 0)),
        ),
    )
    seen = observed_sequence(None, bench.step)
    schedule = Schedule(
        gpu={"name": bench.gpu.info.name},
        workload={"name": "gpt3-xl", "options": OPTIONS},
        trace={"fingerprint": seen.fingerprint, "kernels": len(seen)},
        simulated=False,
        provenance="measured",
        budget={"max_slowdown": 0.006, "confidence": None},
        switch_model={"semantic": "free", "source": "one pair"},
        segments=(Segment(0, len(seen), near, 0, Anchor("", "step_start")),),
        baseline=Cost(1.0, 1.0),
        baseline_pair=GOVERNOR,
        predicted=Predicted(1.0, 1.0, 0.0, 0.0),
        proof=Proof(0.0, 0.0, "one pair", "none"),
        extra={"sequence": pack(seen)},
    )
    options = ReplayOptions(gpu_spec=bench.spec, set_clocks=False)
    with open_hardware(schedule, options, None, bench.spec) as opened:
        report = run_replay(
            schedule,
            opened.player,
            opened.match,
            opened.info,
            settings=bench.settings,
            dry=opened.dry,
            notes=opened.notes,
        )
    entry = report.comparisons[0]
    return {
        "pair": str(near),
        "kernels": len(seen),
        "slowdown": asdict(entry.slowdown),
        "difference": entry.difference,
        "verdict": report.verdict,
        "report": report.to_json(),
    }


PARTS = {
    "one_pair": part_one_pair,
    "nothing": part_nothing,  # last: its capture makes the optimizer capturable
}


def main() -> int:
    """Run the parts asked for; the exit status counts those that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="nvml:0")
    parser.add_argument("--out", type=Path, default=Path("gpu_replay.json"))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--block-ms", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=48)
    for name, value in OPTIONS.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--minutes", type=float, default=1.7, help="limit for each part")
    chosen = parser.parse_args()
    os.environ["CLOCKWRIGHT_READ_ONLY"] = "1"
    OPTIONS.update({name: getattr(chosen, name) for name in OPTIONS})
    gpu = open_gpu(chosen.gpu)
    step = workloads.load("gpt3-xl", OPTIONS).build("cuda:0")
    for _ in range(3):
        step.run()
    torch.cuda.synchronize()
    settings = Settings(
        block_ns=chosen.block_ms * 1_000_000,
        precision=0.0003,
        finest=0.0002,
        max_rounds=chosen.rounds,
        time_limit_ns=int(chosen.minutes * 60e9),
    )
    bench = Bench(gpu, chosen.gpu, step, settings)
    document: dict[str, Any] = {
        "gpu": asdict(gpu.info),
        "torch": torch.__version__,
        "workload": {"name": "gpt3-xl", "options": OPTIONS},
        "read_only": True,
        "settings": settings.to_json(),
    }
    failed = 0
    for name in chosen.parts.split(","):
        begin_s = time.monotonic()
        try:
            document[name] = PARTS[name](bench)
        except Exception as error:  # noqa: BLE001  one part's failure must not lose the others
            failed += 1
            document[name] = {"failed": f"{type(error).__name__}: {error}"}
        document[name]["seconds"] = time.monotonic() - begin_s
        summary = {
            key: value
            for key, value in document[name].items()
            if key not in ("blocks", "report", "step_ns")
        }
        print(name, json.dumps(summary), flush=True)
        chosen.out.write_text(json.dumps(document, indent=1))
    return failed


if __name__ == "__main__":
    sys.exit(main())
