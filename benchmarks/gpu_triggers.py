"""What triggers cost a training step on a real GPU, read-only, step by step.

Run on a machine with one NVIDIA GPU::

    CLOCKWRIGHT_READ_ONLY=1 python benchmarks/gpu_triggers.py --out gpu_triggers.json

Sets no clock: the keeper is dry, so every request is made, followed and counted, and none reaches
the driver. The step is one GPT-3-XL-width training step (4 layers, batch 4 x 2048).

Ways to run the step take turns step by step, in an order drawn anew each round, and each step is
timed by CUDA events. The plain step runs twice a round: against the mean of the two every other way
is compared, and against each other they say what the method takes for a difference where there is
none. Beside the 20 triggers of a schedule, 200 (or as many as the model has module edges) show the
cost of one trigger ten times larger against the same noise.

* ``graph``: triggers as nodes of a captured CUDA graph, beside the chain of kernels or within it.
* ``eager``: triggers on module hooks, written in the step's own stream or in one beside it.

Prints one line a way and writes everything, step by step, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clockwright.data.schedule import Anchor, Segment
from clockwright.data.units import GOVERNOR, ClockPair
from clockwright.replay.intervals import mean_interval
from clockwright.replay.plan import Plan, constant_plan, plan_segments
from clockwright.replay.triggers.cuda_driver import CudaDriver
from clockwright.replay.triggers.edges import EdgeHooks
from clockwright.replay.triggers.graph import kernel_count, triggers_of
from clockwright.replay.triggers.runners import (
    EagerRunner,
    GraphRunner,
    NumberedArm,
    Runner,
    number_arms,
)
from clockwright.replay.triggers.writers import SideStreamWriter, StreamWriter
from clockwright.replay.verify import Arm
from clockwright.tracer import workloads
from clockwright.tracer.clocks import KeeperClient, TriggerPage
from clockwright.tracer.gpu.protocol import Gpu
from clockwright.tracer.gpu.select import open_gpu
from clockwright.tracer.workloads import Step

SEGMENTS, MANY = 20, 200
PLAIN, AGAIN = "plain", "plain, again"
# Triggers every few hundred microseconds are far over what a keeper allows; none reaches a driver.
DRY_KEEPER = ("--max-switches", "1000000")
_WARM_ROUNDS, _AHEAD = 5, 3


@dataclass
class Way:
    """One way to run the step."""

    name: str
    runner: Runner
    place: NumberedArm

    @property
    def triggers(self) -> int:
        """Writes a step."""
        return len(self.place.plan.triggers)


@contextmanager
def dry_page(gpu: Gpu, spec: str, table: dict[int, ClockPair]) -> Iterator[TriggerPage]:
    """A page that a dry keeper follows."""
    with ExitStack() as stack:
        keeper = stack.enter_context(
            KeeperClient.start(spec, dry=True, socket="private", options=DRY_KEEPER)
        )
        keeper.acquire(gpu.info.uuid, table)
        page = stack.enter_context(TriggerPage.create())
        keeper.arm(page)
        stack.callback(keeper.disarm)
        yield page


def pairs_of(gpu: Gpu) -> tuple[ClockPair, ClockPair]:
    """Two listed pairs to take turns."""
    listed = gpu.pairs()
    return listed[0], listed[min(len(listed) - 1, 10)]


def even_plan(kernels: int, count: int, pairs: tuple[ClockPair, ClockPair]) -> Plan:
    """``count`` segments of equal length that take turns between two pairs."""
    cuts = [kernels * number // count for number in range(count + 1)]
    rows = [
        Segment(cuts[number], cuts[number + 1], pairs[number % 2], cuts[number])
        for number in range(count)
    ]
    return plan_segments(rows, kernels)


def edges_in_order(step: Step) -> list[Anchor]:
    """Edges of one step that fire once, in the order in which they fire."""
    names = [name for name, _ in step.model.named_modules() if name]
    kinds = ("forward_pre", "backward_pre")
    fired: list[Anchor] = []
    hooks = EdgeHooks(
        step.model,
        step.optimizer,
        [(name, kind) for name in names for kind in kinds] + [("", "optimizer_pre")],
        lambda module, edge: fired.append(Anchor(module, edge)),
    )
    step.run()
    torch.cuda.synchronize()
    hooks.remove()
    return [anchor for anchor in fired if fired.count(anchor) == 1]


def anchored_plan(edges: Sequence[Anchor], count: int, pairs: tuple[ClockPair, ClockPair]) -> Plan:
    """``count`` segments, or as many as there are edges, that begin at edges."""
    chosen = [edges[len(edges) * n // count] for n in range(1, count)] if count else []
    anchors = [Anchor("", "step_start"), *dict.fromkeys(chosen)]
    if len(anchors) % 2:
        # Pairs take turns round the step, so their number is even.
        anchors.pop()
    rows = [
        Segment(number, number + 1, pairs[number % 2], number, anchor)
        for number, anchor in enumerate(anchors)
    ]
    return plan_segments(rows, len(rows))


def take_turns(ways: Sequence[Way], seconds: float, seed: int = 0) -> dict[str, list[int]]:
    """Step times of each way, ns, one a round; GPU work is kept a few steps ahead."""
    rng = np.random.default_rng(seed)
    spans: dict[str, list[tuple[Any, Any]]] = {way.name: [] for way in ways}
    ended: list[Any] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for index in rng.permutation(len(ways)):
            way = ways[int(index)]
            way.runner.enter(way.place)
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            way.runner.run()
            end.record()
            spans[way.name].append((begin, end))
            ended.append(end)
            if len(ended) > _AHEAD:
                ended.pop(0).synchronize()
    torch.cuda.synchronize()
    return {
        name: [round(begin.elapsed_time(end) * 1e6) for begin, end in pairs[_WARM_ROUNDS:]]
        for name, pairs in spans.items()
    }


def compared(ways: Sequence[Way], times: dict[str, list[int]]) -> dict[str, Any]:
    """Each way against the plain steps of its rounds."""
    plain = np.array(times[PLAIN], dtype=np.float64)
    both = (plain + np.array(times[AGAIN], dtype=np.float64)) / 2
    found = {}
    for way in ways:
        if way.name == PLAIN:
            continue
        base = plain if way.name == AGAIN else both
        extra = np.array(times[way.name], dtype=np.float64) / base - 1
        entry = mean_interval(extra)
        found[way.name] = {
            "triggers": way.triggers,
            "slowdown": asdict(entry),
            "slowdown_median": float(np.median(extra)),
            "slowdown_spread": float(np.std(extra, ddof=1)),
        }
        if way.triggers:
            each_ns = float(both.mean()) / way.triggers
            ends = {
                key: value * each_ns for key, value in asdict(entry).items() if value is not None
            }
            found[way.name]["trigger_ns"] = ends
    return found


def measured(
    ways: Sequence[Way], page: TriggerPage, seconds: float, unusable: dict[str, str]
) -> dict[str, Any]:
    """Take turns between the ways that work, and compare."""
    usable = []
    for way in ways:
        try:
            for _ in range(2):
                way.runner.enter(way.place)
                way.runner.run()
            torch.cuda.synchronize()
            usable.append(way)
        except Exception as error:  # noqa: BLE001  one way's failure must not lose the others
            unusable[way.name] = f"{type(error).__name__}: {error}"
    before = page.event_count
    times = take_turns(usable, seconds)
    time.sleep(0.2)
    rounds = len(times[PLAIN])
    written = sum(way.triggers for way in usable) * (rounds + _WARM_ROUNDS)
    return {
        "rounds": rounds,
        "ways": compared(usable, times),
        "unusable": unusable,
        "writes": written,
        "writes_followed": page.event_count - before,
        "step_ns": times,
    }


def part_graph(step: Step, gpu: Gpu, spec: str, seconds: float) -> dict[str, Any]:
    """Triggers as nodes of a captured graph."""
    driver = CudaDriver.load()
    probe = torch.cuda.CUDAGraph(keep_graph=True)
    GraphRunner(step, None, driver).warm()  # type: ignore[arg-type]
    with torch.cuda.graph(probe):
        step.run()
    kernels = kernel_count(driver, probe.raw_cuda_graph())
    del probe
    pairs = pairs_of(gpu)
    few, many = even_plan(kernels, SEGMENTS, pairs), even_plan(kernels, MANY, pairs)
    none = constant_plan(GOVERNOR, kernels)
    plans = {PLAIN: none, AGAIN: none}
    for placing in PLACINGS:
        plans |= {f"{placing}, {MANY}": many}
        if placing != "chain":
            plans |= {f"{placing}, {SEGMENTS}": few}
    places, table = number_arms([Arm(name, plan) for name, plan in plans.items()])
    with dry_page(gpu, spec, table) as page, StreamWriter(page, driver) as writer:
        runner = RUNNER(step, writer, driver)
        ways, unusable, exact = [], {}, {}
        for name, place in places.items():
            placing = name.partition(",")[0]
            runner.placing = placing if placing in PLACINGS else "branch"
            try:
                runner.enter(place)
                if placing in ("branch", "chain"):
                    wanted = [(t.kernel, t.sequence + place.shift) for t in place.plan.triggers]
                    read = triggers_of(driver, runner.raw_graph(), writer.sequence_pointer)
                    exact[name] = read == wanted
                ways.append(Way(name, runner, place))
            except Exception as error:  # noqa: BLE001  one way's failure must not lose the others
                unusable[name] = f"{type(error).__name__}: {error}"
        result = measured(ways, page, seconds, unusable)
    return {"kernels": kernels, "placed_exactly": exact, **result}


def part_eager(step: Step, gpu: Gpu, spec: str, seconds: float) -> dict[str, Any]:
    """Triggers on module hooks."""
    driver = CudaDriver.load()
    edges = edges_in_order(step)
    pairs = pairs_of(gpu)
    few = anchored_plan(edges, SEGMENTS, pairs)
    many = anchored_plan(edges, min(MANY, len(edges)), pairs)
    none = constant_plan(GOVERNOR, 1)
    writers = ("stream", "side stream")
    plans = {PLAIN: none, AGAIN: none}
    for name in writers:
        plans |= {f"{name}, {SEGMENTS}": few, f"{name}, {len(many.triggers)}": many}
    places, table = number_arms([Arm(name, plan) for name, plan in plans.items()])
    with (
        dry_page(gpu, spec, table) as page,
        StreamWriter(page, driver) as own,
        SideStreamWriter(page, driver) as side,
    ):
        ways = [
            Way(name, EagerRunner(step, side if name.startswith("side") else own), place)
            for name, place in places.items()
        ]
        # Hooks of one way at a time: entering another takes them away.
        runners = [way.runner for way in ways]
        for way in ways:
            way.runner = _Alone(way.runner, runners)
        result = measured(ways, page, seconds, {})
        for runner in runners:
            runner.close()
    return {"edges": len(edges), **result}


class _Alone(Runner):
    """A runner that takes the hooks of the others away before its own are set."""

    def __init__(self, runner: Runner, others: Sequence[Runner]) -> None:
        self._runner, self._others = runner, others

    def enter(self, place: NumberedArm) -> None:
        for other in self._others:
            other.close()
        self._runner.enter(place)

    def run(self) -> None:
        self._runner.run()


PARTS: dict[str, Callable[[Step, Gpu, str, float], dict[str, Any]]] = {
    "eager": part_eager,
    "graph": part_graph,  # last: it makes the optimizer capturable
}
PLACINGS: tuple[Any, ...] = ("branch", "chain")
RUNNER = GraphRunner


def main() -> int:
    """Run the parts asked for; the exit status counts those that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="nvml:0")
    parser.add_argument("--out", type=Path, default=Path("gpu_triggers.json"))
    parser.add_argument("--eager-seconds", type=float, default=60)
    parser.add_argument("--graph-seconds", type=float, default=100)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=2048)
    chosen = parser.parse_args()
    os.environ["CLOCKWRIGHT_READ_ONLY"] = "1"
    options = {name: getattr(chosen, name) for name in ("layers", "batch", "sequence")}
    gpu = open_gpu(chosen.gpu)
    step = workloads.load("gpt3-xl", options).build("cuda:0")
    for _ in range(3):
        step.run()
    torch.cuda.synchronize()
    document: dict[str, Any] = {
        "gpu": asdict(gpu.info),
        "torch": torch.__version__,
        "workload": {"name": "gpt3-xl", "options": options},
        "read_only": True,
    }
    failed = 0
    for name, part in PARTS.items():
        seconds = getattr(chosen, f"{name}_seconds")
        try:
            document[name] = part(step, gpu, chosen.gpu, seconds)
        except Exception as error:  # noqa: BLE001  one part's failure must not lose the others
            failed += 1
            document[name] = {"failed": f"{type(error).__name__}: {error}"}
        for way, entry in document[name].get("ways", {}).items():
            print(name, way, json.dumps(entry), flush=True)
        rest = {k: v for k, v in document[name].items() if k not in ("ways", "step_ns")}
        print(name, json.dumps(rest), flush=True)
        chosen.out.write_text(json.dumps(document))
    return failed


if __name__ == "__main__":
    sys.exit(main())
