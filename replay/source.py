"""What to replay on: the simulated GPU and the step, the trace's own table, or the real GPU.

Opens what the user named (or what the schedule was made from), compares the step with the
schedule, and hands over a player. A simulated GPU runs the step's work captured anew from the
model, so the comparison is a real one; a table can only repeat the trace it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data import schedule as schedule_file
from ..data.errors import InputError
from ..data.schedule import Schedule
from ..data.sequence import KernelSequence, sequence_of
from ..data.trace import Trace
from ..data.units import parse_pair
from ..tracer.assume import trace_behind
from ..tracer.gpu.protocol import GpuInfo
from ..tracer.gpu.simulated import SwitchBehaviour
from ..tracer.work import StepWork
from .matching import Match, check_allowed_drift, match_schedule
from .run import check_gpu
from .simulated import StepPlayer, table_player
from .verify import Player

__all__ = ["OpenedReplay", "ReplayOptions", "open_replay", "sequence_of_step", "workload_for"]

_UPPER_QUARTILE = 0.6745  # standard deviations above the median of a normal distribution

TABLE = "table"


@dataclass(frozen=True)
class ReplayOptions:
    """What the user asked for.

    Attributes:
        gpu_spec: ``nvml:...``, ``sim:...`` or ``table``; None: what the schedule was made from.
        workload: the step to run; None: the one the schedule was made from.
        trace_path: trace folder of the schedule.
        set_clocks: let the keeper set clocks on a real GPU.
        dry: issue triggers and set nothing, on a simulated GPU too.
        allow_drift: share of kernels that may differ.
        seed: of the simulation.
        triggers: ``eager``, ``graph`` or ``auto``, on a real GPU.
        switches: ``own``, ``schedule``, ``stall``, ``lag`` or ``free``, on a simulated GPU.
    """

    gpu_spec: str | None = None
    workload: str | None = None
    trace_path: Path | None = None
    set_clocks: bool = False
    dry: bool = False
    allow_drift: float = 0.0
    seed: int = 0
    triggers: str = "auto"
    switches: str = "own"

    def __post_init__(self) -> None:
        check_allowed_drift(self.allow_drift)


@dataclass(frozen=True)
class OpenedReplay:
    """A step ready to run: its player, what of the schedule fits it, and on which GPU."""

    player: Player
    match: Match
    info: GpuInfo
    dry: bool
    notes: tuple[str, ...] = ()


@contextmanager
def open_replay(schedule: Schedule, options: ReplayOptions) -> Iterator[OpenedReplay]:
    """Open what is to be replayed; clocks are back at the baseline when this ends.

    Raises:
        InputError: what was named does not exist, or is not enough.
        MismatchError: the step or the GPU is not the one the schedule was made for.
        DeviceError, KeeperError: the GPU or its keeper refused.
    """
    spec = _gpu_spec(schedule, options)
    trace = None if options.trace_path is None else trace_behind(schedule, options.trace_path)
    kind = spec.partition(":")[0].strip().lower()
    if kind in {TABLE, "sim"} and options.triggers != "auto":
        raise InputError(
            f"--triggers {options.triggers} is for a real GPU (--gpu nvml:0); in a simulation they "
            "lie at the exact kernels"
        )
    if trace is not None:
        # A table may have drifted from its schedule, as far as --allow-drift says.
        schedule_file.check_trace(schedule, trace, sequence=kind != TABLE)
    if kind == TABLE:
        yield _open_table(schedule, options, trace)
    elif kind == "sim":
        yield _open_simulated(schedule, options, trace, spec)
    else:
        from .hardware import open_hardware

        with open_hardware(schedule, options, trace, spec) as opened:
            yield opened


def _gpu_spec(schedule: Schedule, options: ReplayOptions) -> str:
    if options.gpu_spec is not None:
        return options.gpu_spec
    key = schedule.gpu.get("spec")
    if schedule.gpu.get("simulated") and isinstance(key, str):
        return f"sim:{key}"
    if options.trace_path is not None:
        return TABLE
    raise InputError(
        f"the schedule was made for {schedule.gpu['name']} ({schedule.provenance}); say what to "
        "replay on: --trace TRACE to play the trace's own table, or, where the step can be run, "
        "WORKLOAD --gpu nvml:0"
    )


def _open_table(schedule: Schedule, options: ReplayOptions, trace: Trace | None) -> OpenedReplay:
    if trace is None:
        raise InputError("to play a table, name the trace it is in: --trace TRACE")
    match = match_schedule(
        schedule,
        sequence_of(trace.timeline, trace.signatures),
        allow_drift=options.allow_drift,
    )
    player = table_player(
        trace,
        baseline=schedule.baseline_pair,
        switch=_behaviour(schedule, options.switches, own=scheduled_switches(schedule)),
        seed=options.seed,
        dry=options.dry,
    )
    note = (
        f"simulated: the {trace.provenance} table of {options.trace_path} was played, kernel by "
        "kernel, with the switches of the schedule's model; nothing ran on a GPU"
    )
    return OpenedReplay(player, match, player.gpu.info, options.dry, (note,))


def _open_simulated(
    schedule: Schedule, options: ReplayOptions, trace: Trace | None, spec: str
) -> OpenedReplay:
    from ..tracer.gpu.select import open_gpu
    from ..tracer.gpu.simulated import SimulatedGpu

    gpu = open_gpu(spec, seed=None if "seed=" in spec else options.seed)
    if not isinstance(gpu, SimulatedGpu):
        raise InputError(f"{spec} is not a simulated GPU that runs steps")
    seed = int(gpu.info.uuid.rsplit("-", 1)[1])
    switch = _behaviour(schedule, options.switches, own=None)
    if switch is not None:
        gpu = SimulatedGpu(gpu.spec, seed=seed, switch=switch)
    check_gpu(schedule, gpu.info)
    step = _captured(schedule, options)
    scheduled = None if trace is None else sequence_of(trace.timeline, trace.signatures)
    match = match_schedule(
        schedule, sequence_of_step(step), scheduled=scheduled, allow_drift=options.allow_drift
    )
    notes = [f"simulated by {spec.partition('?')[0]}, seed {seed}: nothing ran on a GPU"]
    semantic = schedule.switch_model["semantic"]
    if semantic != gpu.switch.kind and len(match.plan.pairs) > 1:
        notes.append(
            f"the schedule assumes that switches are {semantic}, and this GPU's {gpu.switch.kind}"
        )
    return OpenedReplay(
        StepPlayer(gpu, step, dry=options.dry), match, gpu.info, options.dry, tuple(notes)
    )


def workload_for(schedule: Schedule, options: ReplayOptions) -> tuple[str, dict[str, Any]]:
    """Name and options of the step to run: the schedule's own, unless another is named."""
    own = str(schedule.workload["name"])
    if options.workload is not None and options.workload != own:
        return options.workload, {}
    return own, dict(schedule.workload.get("options") or {})


def _captured(schedule: Schedule, options: ReplayOptions) -> StepWork:
    from ..tracer import workloads

    name, given = workload_for(schedule, options)
    return workloads.load(name, given).capture()


def sequence_of_step(step: StepWork) -> KernelSequence:
    """The kernel sequence of captured work; equal to that of a trace recorded from it."""
    streams: dict[int, int] = {}
    distinct: dict[str, int] = {}
    order = []
    for item in step.items:
        stream = streams.setdefault(item.stream, len(streams))
        work = step.works[item.work]
        text = f"{stream};1;{work.name}|?|?|?|?|{work.op}|{work.shapes}"
        order.append(distinct.setdefault(text, len(distinct)))
    return KernelSequence(tuple(distinct), tuple(order))


def _behaviour(
    schedule: Schedule, word: str, *, own: SwitchBehaviour | None
) -> SwitchBehaviour | None:
    """How the simulated GPU is to switch; None for its product's own way."""
    if word == "own":
        return own
    if word == "schedule":
        return scheduled_switches(schedule)
    if word == "free":
        return SwitchBehaviour.free()
    if word == "stall":
        return SwitchBehaviour(kind="stall", core_ns=20e3, mem_ns=60e3, spread=0.1)
    return SwitchBehaviour(kind="lag", core_ns=8e6, mem_ns=20e6, spread=0.15, call_ns=4e6)


def scheduled_switches(schedule: Schedule) -> SwitchBehaviour:
    """The switch behaviour that a schedule assumes, with the scatter it knows of.

    A cost that does not tell core from memory (one duration) is paid once for each change of pair;
    changes that the schedule does not make take the median of its table.
    """
    model = schedule.switch_model
    semantic = model["semantic"]
    if semantic == "free":
        return SwitchBehaviour.free()
    if "core_ns" in model:
        core_ns, mem_ns = float(model["core_ns"]), float(model.get("mem_ns", 0.0))
        return SwitchBehaviour(kind=semantic, core_ns=core_ns, mem_ns=mem_ns)
    cost_ns = float(model.get("time_ns", model.get("median_ns", 0.0)))
    pairs = {segment.pair for segment in schedule.segments} | {schedule.baseline_pair}
    matrix = {(before, after): cost_ns for before in pairs for after in pairs if before != after}
    for before, after, change_ns in model.get("changes", []):
        matrix[parse_pair(before), parse_pair(after)] = float(change_ns)
    upper = float(model.get("latency_over_median", {}).get("p75", 1.0))
    return SwitchBehaviour(
        kind=semantic,
        core_ns=cost_ns,
        mem_ns=0.0,
        matrix_ns=matrix,
        spread=max(0.0, float(np.log(upper)) / _UPPER_QUARTILE),
    )
