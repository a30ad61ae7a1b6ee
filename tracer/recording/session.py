"""Everything that is measured of one step on one real GPU, part by part, raw.

Nothing is set here, and nothing is fitted: each part adds its figures to ``record`` and writes
them, so that a run that is cut short keeps what it has. `assemble` turns the record into a trace.

Parts: *step* (built, run, timed with the energy counter, profiler off), *timeline* (profiler on),
*ambient* (profiled at clocks that move by themselves under other loads before and after the step),
*loops* (each operator as a graph), *mixes* (graphs together), *again* (the plain step once more:
what drifted).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...data._files import replace_file
from ...data.errors import DeviceError, WorkloadError
from ..gpu.protocol import Gpu
from ..measure.cuda import between_ns, mark
from ..measure.mixes import MixPlan, plan_mixes, run_mix, run_repeated
from ..measure.op_capture import OpCapture, make_capture_mode
from ..measure.op_loops import OpLoop, build_loops, identify
from ..measure.sensing import make_spin_mode
from ..measure.timeline import marked_step, module_ranges, profile_to
from ..measure.window import ReadingLog
from ..workloads import Workload
from ..workloads.step import Step

__all__ = ["AMBIENTS", "MeasureOptions", "Session"]

AMBIENTS: tuple[tuple[str, float, float], ...] = (
    ("back-to-back", 0.0, 0.0),
    ("idle 10 ms", 0.010, 0.0),
    ("idle 40 ms", 0.040, 0.0),
    ("idle 120 ms", 0.120, 0.0),
    ("load 20 ms", 0.0, 0.020),
    ("load 60 ms", 0.0, 0.060),
    ("load 150 ms", 0.0, 0.150),
)
"""Name, seconds of idling and of the hungriest loop between two steps."""


_LEAST_WARM = 4
# The power regulator swings for about a second after a rest, and steps with it.
_SETTLE_S, _SETTLE_IN_PROFILE_S = 1.5, 1.2
# Profiled steps: more than few, for spreads, and no more than a file of some 100 MB holds.
_LEAST_PROFILED, _MOST_PROFILED = 10, 120


@dataclass(frozen=True)
class MeasureOptions:
    """How much to measure.

    Attributes:
        step_seconds: plain steps, each of three times.
        timeline_steps: profiled steps; None: as many as fill ``step_seconds``, so that they are
            compared with plain steps over as long a time.
        ambient_steps: profiled steps at each ambient load.
        ambient_settle_s: the load before profiling starts.
        mix_seconds: each mix, after it settled.
        most_mixes: stop after so many.
        deadline_s: stop adding mixes so long after the start; what is there is kept, marked.
        probe_every: operators between two probes.
    """

    step_seconds: float = 2.5
    timeline_steps: int | None = None
    ambient_steps: int = 6
    ambient_settle_s: float = 0.8
    mix_seconds: float = 0.9
    most_mixes: int = 10_000
    deadline_s: float = 1_200.0
    probe_every: int = 12


class Session:
    """One step on one GPU. Use as a context manager; run `parts` in their order.

    Args:
        workload: what to build.
        gpu: the GPU to read.
        folder: where profiles and ``raw.json`` go.
        options: how much to measure.
        device: the same GPU as PyTorch names it.
        step: the step, if it is built already (a script's own).
    """

    def __init__(
        self,
        workload: Workload | None,
        gpu: Gpu,
        folder: Path,
        options: MeasureOptions | None = None,
        *,
        device: str = "cuda:0",
        step: Step | None = None,
    ) -> None:
        self.workload, self.gpu, self.folder = workload, gpu, Path(folder)
        self.options = options or MeasureOptions()
        self.device = device
        self.record: dict[str, Any] = {"parts_s": {}, "mixes": [], "partial": None}
        self.loops: list[OpLoop] = []
        self._step = step
        self._begin = time.monotonic()
        self._log = ReadingLog(gpu)
        self._heavy: int | None = None

    def __enter__(self) -> Self:
        self._log.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def parts(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Each part with its name; a part writes the record when it is done."""
        for name, part in (
            ("build", self._build),
            ("step", lambda: self._plain("step")),
            ("timeline", self._timeline),
            ("loops", self._loops),
            ("ambient", self._ambient),
            ("mixes", self._mixes),
            ("again", lambda: self._plain("again")),
        ):
            yield name, lambda name=name, part=part: self._timed(name, part)  # type: ignore[misc]

    def _timed(self, name: str, part: Callable[[], None]) -> None:
        at = time.monotonic()
        try:
            part()
        finally:
            self.record["parts_s"][name] = time.monotonic() - at
            self.write()

    def write(self) -> None:
        """Write ``raw.json``, whole or not at all."""
        with replace_file(self.folder / "raw.json") as temporary:
            temporary.write_text(json.dumps(self.record))

    def summary(self) -> dict[str, Any]:
        """The record without its long lists."""
        short = {k: v for k, v in self.record.items() if k not in {"mixes", "loops"}}
        return {
            **short,
            "mixes": len(self.record["mixes"]),
            "loops": len(self.loops),
            "without_graph": [
                f"{loop.op.name}: {loop.problem}" for loop in self.loops if loop.problem
            ],
        }

    @property
    def step(self) -> Step:
        """The step, once it is built."""
        if self._step is None:
            raise WorkloadError("the step is not built yet")
        return self._step

    def _build(self) -> None:
        import torch

        if self._step is None:
            assert self.workload is not None
            self._step = self.workload.build(self.device)
        for _ in range(5):
            self._step.run()
        torch.cuda.synchronize()
        properties = torch.cuda.get_device_properties(self.device)
        self.record["torch"] = torch.__version__
        self.record["l2_bytes"] = properties.L2_cache_size
        self.record["gpu"] = asdict(self.gpu.info)
        self.record["core_clocks_mhz"] = self._listed_clocks()
        self.record["busy_processes"] = self.gpu.busy_processes()
        self.record["memory_bytes"] = torch.cuda.max_memory_allocated()

    def _listed_clocks(self) -> list[int]:
        """Core clocks that the driver lists beside the memory clock in force."""
        mem = self.gpu.read(energy=False).mem_mhz
        pairs = self.gpu.pairs()
        beside = [p for p in pairs if mem is None or p.mem_mhz in (None, mem)] or list(pairs)
        return sorted({pair.core_mhz for pair in beside if pair.core_mhz is not None})

    def _plain(self, name: str) -> None:
        """The step back to back, profiler off: time, energy; and once with probes."""
        self.step.run()
        found = {}
        for probe in (False, True):
            times, clocks, window = run_repeated(
                self.step.run,
                self.gpu,
                self._log,
                seconds=self.options.step_seconds,
                settle_s=1.0,
                probe=probe,
            )
            entry = {
                "time_ns": float(times.mean()),
                "time_sd_ns": float(times.std(ddof=1)),
                "time_median_ns": float(np.median(times)),
                "steps": len(times),
                "energy_mj": window.power_w * float(times.mean()) * 1e-6,
                "sensed_mhz": float(np.nanmedian(clocks)) if probe else None,
                "sensed_quantiles_mhz": (
                    np.nanquantile(clocks, [0.05, 0.25, 0.75, 0.95]).tolist() if probe else None
                ),
                "window": {**asdict(window), "method": window.method.value},
            }
            found["probed" if probe else "plain"] = entry
        self.record[name] = found

    def _timeline(self) -> None:
        """The profiled steps, and what they took as a whole by the GPU's own events."""
        steps = self._profiled_steps()

        def body() -> None:
            # The profiler's start was a rest: the power cap's mean must be that of steps again.
            self._steps_for(_SETTLE_IN_PROFILE_S)
            begin_ns, begin = self.gpu.now_ns(), mark()
            for number in range(steps):
                with marked_step(number):
                    self.step.run()
            end = mark()
            end.synchronize()
            self.record["profiled_step_ns"] = between_ns(begin, end) / steps
            self.record["profiled_core_mhz"] = self._log.core_mhz(begin_ns, self.gpu.now_ns())

        with module_ranges(self.step.model):
            self._steps_for(_SETTLE_S)
            profile_to(self.folder / "timeline.json", body)

    def _profiled_steps(self) -> int:
        if self.options.timeline_steps is not None:
            return self.options.timeline_steps
        filling: float = self.options.step_seconds * 1e9 / self.record["step"]["plain"]["time_ns"]
        return min(max(_LEAST_PROFILED, round(filling)), _MOST_PROFILED)

    def _steps_for(self, seconds: float) -> None:
        """Queue steps back to back for about so long."""
        count = seconds * 1e9 / self.record["step"]["plain"]["time_ns"]
        for _ in range(max(_LEAST_WARM, round(count))):
            self.step.run()

    def _loops(self) -> None:
        import torch

        capture = OpCapture()
        with make_capture_mode(capture):
            self.step.run()
        torch.cuda.synchronize()
        self.loops = build_loops(capture.ops, int(self.record["l2_bytes"]))
        if self.loops:
            identify(self.loops, self.folder / "loops.json")
        self.record["missed_ops"] = capture.missed
        self.record["loops"] = [
            {
                "name": loop.op.name,
                "count": loop.op.count,
                "calls": loop.calls,
                "bytes": loop.op.bytes,
                "replay_ns": loop.replay_ns,
                "gap_ns": loop.gap_ns,
                "kernels": loop.kernels,
                "problem": loop.problem,
            }
            for loop in self.loops
        ]
        self._heavy = self._find_heavy()
        self.record["heavy"] = self._heavy
        self.record["loop_memory_bytes"] = torch.cuda.max_memory_allocated()

    def _step_share(self) -> list[float]:
        """Share of the step's time that each operator takes, by its loop."""
        time_ns = [
            loop.op.count * loop.replay_ns / loop.calls if loop.graph is not None else 0.0
            for loop in self.loops
        ]
        total = sum(time_ns) or 1.0
        return [value / total for value in time_ns]

    def _find_heavy(self) -> int | None:
        """The matrix product with the largest share: it draws the most."""
        share = self._step_share()
        found = [
            i
            for i, loop in enumerate(self.loops)
            if loop.graph is not None and any(w in loop.op.name for w in ("mm.", "bmm", "conv"))
        ] or [i for i, loop in enumerate(self.loops) if loop.graph is not None]
        return max(found, key=lambda i: share[i]) if found else None

    def _ambient(self) -> None:
        self.record["ambient"] = []
        for number, (name, idle_s, load_s) in enumerate(AMBIENTS):
            path = self.folder / f"ambient-{number}.json"
            if load_s and self._heavy is None:
                continue
            self._one_ambient(path, idle_s, load_s)
            self.record["ambient"].append({"name": name, "file": path.name})

    def _one_ambient(self, path: Path, idle_s: float, load_s: float) -> None:
        import torch

        heavy = None if self._heavy is None else self.loops[self._heavy]

        def between() -> None:
            if idle_s:
                torch.cuda.synchronize()
                time.sleep(idle_s)
            elif load_s and heavy is not None:
                for _ in range(max(1, round(load_s * 1e9 / heavy.replay_ns))):
                    heavy.graph.replay()

        def settle(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                between()
                self.step.run()
                torch.cuda.synchronize()

        def body() -> None:
            settle(0.3)
            for number in range(self.options.ambient_steps):
                between()
                mode = make_spin_mode(self.options.probe_every)
                with marked_step(number), mode:
                    self.step.run()

        settle(self.options.ambient_settle_s)
        profile_to(path, body)

    def _mixes(self) -> None:
        if self._heavy is None:
            raise DeviceError("no operator of the step could be captured in a CUDA graph")
        plans: list[MixPlan] = plan_mixes(
            [loop.replay_ns if loop.graph is not None else None for loop in self.loops],
            self._step_share(),
            heavy=self._heavy,
        )
        for done, plan in enumerate(plans[: self.options.most_mixes]):
            if time.monotonic() - self._begin > self.options.deadline_s:
                self.record["partial"] = f"{done} of {len(plans)} mixes measured in the time given"
                break
            result = run_mix(
                plan, self.loops, self.gpu, self._log, seconds=self.options.mix_seconds
            )
            self.record["mixes"].append(result.as_record())
