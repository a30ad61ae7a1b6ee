"""Plays arms on a real GPU: the user's own step, triggers in its stream, the keeper beside it.

The step is built on the GPU and run eagerly, with triggers at module edges, or captured as CUDA
graphs (one without triggers, one with), with triggers at the exact kernels. Time comes from CUDA
events around a block, energy from the driver's counter (`energy_log`). The keeper is dry unless the
user said ``--set-clocks``: then every request is made and counted, and none reaches the driver.

Left out: steps that cannot be run twice in a row, and the first touch of the GPU by other
processes; a GPU that others compute on is refused.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from ..data.errors import DeviceBusyError, KeeperError, WorkloadError
from ..data.report import SCHEDULE
from ..data.schedule import Schedule
from ..data.sequence import KernelSequence, sequence_of
from ..data.trace import Trace
from ..tracer.clocks import ClockKeeper, TriggerPage, open_keeper
from ..tracer.gpu.protocol import Gpu
from .distributed import RankedPlayer, gather
from .energy_log import EnergyLog, mean_power
from .matching import Match, match_schedule
from .observe import Observer, OperatorObserver, observer_for
from .ranks import local_rank
from .run import arms_of, check_gpu
from .triggers.cuda_driver import CudaDriver
from .triggers.runners import EagerRunner, GraphRunner, NumberedArm, Runner, number_arms
from .triggers.writers import SideStreamWriter, StreamWriter
from .verify import Arm, BlockReading, Player

if TYPE_CHECKING:
    from ..tracer.workloads import Step
    from .source import OpenedReplay, ReplayOptions

__all__ = ["HardwarePlayer", "observed_sequence", "open_hardware"]

_WARM_STEPS = 3
_SETTLE_NS = 500_000_000
_FOLLOW_S = 2.0


class HardwarePlayer:
    """Implements `clockwright.replay.verify.Player` on a real GPU.

    Args:
        gpu: for reading.
        keeper: holds the lease; dry, or not.
        page: the page the keeper follows.
        runner: launches steps.
        places: arm name to its numbers.
        log: energy readings.
        step_ns: about how long a step takes, from which the steps of a block follow.
        settle_ns: how long an arm runs before it is measured, for its clocks to settle.
    """

    def __init__(
        self,
        gpu: Gpu,
        keeper: ClockKeeper,
        page: TriggerPage,
        runner: Runner,
        places: Mapping[str, NumberedArm],
        log: EnergyLog,
        step_ns: int,
        settle_ns: int = _SETTLE_NS,
    ) -> None:
        self._gpu, self._keeper, self._page, self._runner = gpu, keeper, page, runner
        self._places, self._log, self._step_ns = places, log, step_ns
        self._settle_steps = max(1, math.ceil(settle_ns / step_ns))

    def now_ns(self) -> int:
        """Host time."""
        return self._gpu.now_ns()

    def requests(self) -> Mapping[str, int]:
        """Requests by outcome, from the keeper's events."""
        return dict(Counter(event.outcome.name.lower() for event in self._keeper.events()))

    def play(self, arm: Arm, block_ns: int) -> BlockReading:
        """Settle under ``arm``, then measure whole steps for about ``block_ns``.

        Raises:
            KeeperError, DeviceError: the keeper gave up, or the GPU cannot be read.
            WorkloadError: the step failed.
        """
        import torch

        place = self._places[arm.name]
        self._enter(place)
        self._run(self._settle_steps)
        torch.cuda.synchronize()
        steps = max(1, math.ceil(block_ns / self._step_ns))
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start_ns = self._gpu.now_ns()
        begin.record()
        self._run(steps)
        end.record()
        torch.cuda.synchronize()
        end_ns = self._gpu.now_ns()
        self._keeper.check()
        time_ns = begin.elapsed_time(end) * 1e6 / steps
        return self._reading(place, steps, time_ns, start_ns, end_ns)

    def _enter(self, place: NumberedArm) -> None:
        """Ask for the arm's first pair and wait until the keeper has seen it."""
        self._runner.enter(place)
        before = self._page.event_count
        already = self._page.sequence == place.entry
        self._page.sequence = place.entry
        until_s = time.monotonic() + _FOLLOW_S
        while not already and self._page.event_count == before:
            self._keeper.check()
            if time.monotonic() > until_s:
                raise KeeperError(
                    f"the clock keeper has not followed the page for {_FOLLOW_S:g} s; see "
                    "`clockwright doctor`"
                )
            self._keeper.poll()
            time.sleep(0.001)

    def _run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self._runner.run()
        except RuntimeError as error:
            line = " ".join(str(error).split())[:300]
            raise WorkloadError(f"the step failed while it was replayed: {line}") from error

    def _reading(
        self, place: NumberedArm, steps: int, time_ns: float, start_ns: int, end_ns: int
    ) -> BlockReading:
        readings = self._log.between(start_ns, end_ns)
        power = mean_power(readings, start_ns, end_ns)
        last = readings[-1] if readings else self._gpu.read(energy=False)
        reasons = [r.throttle_reasons for r in readings if r.throttle_reasons is not None]
        energy_mj = error_mj = None
        if power is not None:
            energy_mj = power.power_w * time_ns * 1e-6
            error_mj = None if power.error_w is None else power.error_w * time_ns * 1e-6
        return BlockReading(
            steps=steps,
            start_ns=start_ns,
            time_ns=time_ns,
            energy_mj=energy_mj,
            energy_error_mj=error_mj,
            temperature_c=last.temperature_c,
            throttle_reasons=reduce(or_, reasons) if reasons else None,
            core_mhz=last.core_mhz,
            switches=len(place.plan.triggers) * steps,
        )


def observed_sequence(schedule: Schedule | None, step: Step) -> KernelSequence:
    """What one step launches, after warming up.

    Args:
        schedule: tells how to look (`observe.observer_for`); None looks at operators.
        step: built on a GPU.
    """
    import torch

    for _ in range(_WARM_STEPS):
        step.run()
    torch.cuda.synchronize()
    observer: Observer = OperatorObserver(step.model, on_cuda=True)
    if schedule is not None:
        observer = observer_for(schedule, step.model, on_cuda=True)
    observer.start()
    step.run()
    return observer.end()


def _step_ns(run: Callable[[], object]) -> int:
    """How long a step takes, roughly."""
    import torch

    torch.cuda.synchronize()
    begin_ns = time.monotonic_ns()
    for _ in range(_WARM_STEPS):
        run()
    torch.cuda.synchronize()
    return max(1, (time.monotonic_ns() - begin_ns) // _WARM_STEPS)


@contextmanager
def open_hardware(
    schedule: Schedule, options: ReplayOptions, trace: Trace | None, spec: str
) -> Iterator[OpenedReplay]:
    """Build the step, match it, lease the GPU, and yield a player; gives everything back.

    Raises:
        MismatchError: another GPU or another step.
        DeviceBusyError: others compute on the GPU.
        DeviceError, KeeperError, WorkloadError: as they arise.
    """
    import torch

    from ..tracer import workloads
    from ..tracer.gpu.select import open_gpu
    from .source import OpenedReplay, workload_for

    with ExitStack() as stack:
        spec = f"nvml:{local_rank()}" if spec.strip().lower() == "nvml" else spec
        gpu = open_gpu(spec)
        stack.callback(gpu.close)
        check_gpu(schedule, gpu.info)
        if others := gpu.busy_processes():
            raise DeviceBusyError(
                f"process {others[0]} computes on {gpu.info.name} too, so neither time nor energy "
                "would be the step's own"
            )
        name, given = workload_for(schedule, options)
        # Streams, events and collectives of PyTorch take the current device.
        index = _cuda_index(spec)
        stack.enter_context(torch.cuda.device(index))
        step = workloads.load(name, given).build(f"cuda:{index}")
        scheduled = None if trace is None else sequence_of(trace.timeline, trace.signatures)
        match = match_schedule(
            schedule, observed_sequence(schedule, step), scheduled=scheduled,
            allow_drift=options.allow_drift,
        )  # fmt: skip
        eager = _is_eager(options.triggers, match)
        if eager:
            match = Match(
                match.anchored, match.anchored, match.coverage, match.drift, match.difference
            )
        places, table = number_arms(arms_of(schedule, match))
        dry = not options.set_clocks
        keeper = stack.enter_context(open_keeper(gpu, dry=dry))
        keeper.acquire(gpu.info.uuid, table)
        page = stack.enter_context(TriggerPage.create())
        driver = CudaDriver.load()
        # Beside the step's stream, since the step's next kernels would wait for a write in it.
        writer = stack.enter_context(
            SideStreamWriter(page, driver, device=index) if eager else StreamWriter(page, driver)
        )
        keeper.arm(page)
        stack.callback(keeper.disarm)
        runner: Runner = EagerRunner(step, writer) if eager else GraphRunner(step, writer, driver)
        stack.callback(runner.close)
        runner.enter(places[SCHEDULE])
        # All ranks run the same number of steps, or their collectives would wait for ever.
        step_ns = max(gather(_step_ns(runner.run)))
        log = stack.enter_context(EnergyLog(gpu))
        # Where no clock is set none has to settle: the time is better spent on blocks.
        settle_ns = 0 if dry else _SETTLE_NS
        player: Player = HardwarePlayer(gpu, keeper, page, runner, places, log, step_ns, settle_ns)
        if len(gather(None)) > 1:
            player = RankedPlayer(player)
        how = "at module edges" if eager else "in a captured CUDA graph"
        notes = (f"triggers are written {how}", *keeper.warnings)
        yield OpenedReplay(player, match, gpu.info, dry, notes)


def _is_eager(word: str, match: Match) -> bool:
    if word != "auto":
        return word == "eager"
    return all(trigger.anchor is not None for trigger in match.anchored.triggers)


def _cuda_index(spec: str) -> int:
    """The number this process's CUDA has for the GPU."""
    which = spec.partition(":")[2].strip()
    if which.isdigit():
        return int(which)
    from ..tracer.gpu.select import find_nvml_uuid, list_gpus

    uuid = find_nvml_uuid(which)
    for listing in list_gpus():
        if listing.spec == f"nvml:{uuid}" and listing.cuda_index is not None:
            return listing.cuda_index
    return local_rank()
