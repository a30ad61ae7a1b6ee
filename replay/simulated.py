"""Plays arms on a simulated GPU, kernel by kernel, with its own switch behaviour and noise.

Two kinds of step: a `StepPlayer` runs a step's work on a `SimulatedGpu` (power cap, heat and all);
a `TableStepPlayer` runs a trace's own table, measured or imported, on a `TablePlayer`. Both enter
an arm by a blocking lock, let it settle, and then run whole steps until the block is long enough.

Energies are the simulation's own account of each run, its noise included. The 100 ms counter is
not used: virtual time cannot be watched from another thread, so its steps could not be seen within
a run, and its phase would add an error that a real instrument does not have.

Left out: a host that falls behind; on virtual time triggers are never late in being issued.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import reduce
from operator import or_

import numpy as np
import numpy.typing as npt

from ..data.errors import InputError, LockNotHeldError
from ..data.trace import Trace
from ..data.units import ClockPair
from ..tracer.gpu.simulated import (
    Faults,
    Noise,
    SimulatedGpu,
    SimulatedRun,
    SwitchBehaviour,
    TablePlayer,
)
from ..tracer.gpu.simulated.virtual import VirtualGpu
from ..tracer.work import StepWork
from .plan import Plan
from .verify import Arm, BlockReading

__all__ = ["SimulatedPlayer", "StepPlayer", "TableStepPlayer", "table_player"]

_SETTLE_NS = 200_000_000
_SAME_CLOCK_MHZ = 8


class SimulatedPlayer(ABC):
    """What both players share; implements `clockwright.replay.verify.Player`.

    Args:
        gpu: the simulated GPU; virtual time goes on from where it is.
        dry: count requests and make none.
    """

    def __init__(self, gpu: VirtualGpu, *, dry: bool = False) -> None:
        self.gpu = gpu
        self.dry = dry
        self._counts = {"issued": 0, "superseded": 0, "dry": 0}

    @property
    @abstractmethod
    def kernels(self) -> int:
        """Kernels of one step."""

    @abstractmethod
    def _run(self, requests: Mapping[int, ClockPair]) -> SimulatedRun:
        """Run one step."""

    def now_ns(self) -> int:
        """Virtual time."""
        return self.gpu.now_ns()

    def requests(self) -> Mapping[str, int]:
        """Requests by what became of them; ``superseded`` ones were overtaken before their turn."""
        return {outcome: count for outcome, count in self._counts.items() if count}

    def play(self, arm: Arm, block_ns: int) -> BlockReading:
        """Settle under ``arm``, then measure whole steps for at least ``block_ns``.

        Raises:
            InputError: the plan is for a step of another length, or names an unsupported pair.
            LockNotHeldError: the clocks never came to any pair of the plan; the governor is back.
        """
        if arm.plan.kernels != self.kernels:
            raise InputError(
                f"the {arm.name} plan is for {arm.plan.kernels} kernels, the step has "
                f"{self.kernels}"
            )
        self._enter(arm.plan)
        settle_until_ns = self.now_ns() + _SETTLE_NS
        runs = [self.step(arm.plan)]
        while self.now_ns() < settle_until_ns:
            runs.append(self.step(arm.plan))
        measured: list[SimulatedRun] = []
        start_ns = self.now_ns()
        while not measured or self.now_ns() - start_ns < block_ns:
            measured.append(self.step(arm.plan))
        if not self.dry:
            self._check_held(arm, measured)
        return self._reading(measured)

    def step(self, plan: Plan) -> SimulatedRun:
        """Run one step under a plan that has been entered."""
        requests = dict(plan.requests())
        if not plan.cyclic:
            requests = {0: plan.entry} | requests
        if self.dry:
            self._counts["dry"] += len(requests)
            requests = {}
        run = self._run(requests)
        self._counts["issued"] += run.requests_issued
        self._counts["superseded"] += run.requests_superseded
        if not plan.cyclic and not self.dry:
            self.gpu.release()
        return run

    def _enter(self, plan: Plan) -> None:
        if self.dry:
            self._counts["dry"] += 1
        elif plan.entry.is_governor or not plan.cyclic:
            self.gpu.release()
        else:
            self.gpu.lock(plan.entry)

    def _check_held(self, arm: Arm, runs: list[SimulatedRun]) -> None:
        """Refuse to judge a block whose clocks never were what the plan asked for."""
        pairs = [pair for pair in arm.plan.pairs if not pair.is_governor]
        if not pairs or len(pairs) < len(arm.plan.pairs):
            return  # where the governor has a part, any clock is right somewhere
        seen = {
            (int(core), int(mem))
            for run in runs
            for core, mem in zip(*_distinct(run.core_mhz, run.mem_mhz), strict=True)
        }
        if any(_may_be(pair, core, mem) for pair in pairs for core, mem in seen):
            return
        core, mem = next(iter(seen))
        self.gpu.release()
        raise LockNotHeldError(
            f"locking {self.gpu.info.name} to {pairs[0]} returned success, but kernels ran at "
            f"{core} MHz core and {mem} MHz memory throughout the {arm.name} block; the governor "
            "is back. Choose pairs that this GPU holds"
        )

    def _reading(self, runs: list[SimulatedRun]) -> BlockReading:
        reading = self.gpu.read(energy=False)
        reasons = reduce(or_, (int(np.bitwise_or.reduce(r.throttle_reasons)) for r in runs), 0)
        span_ns = runs[-1].end_ns - runs[0].begin_ns
        return BlockReading(
            steps=len(runs),
            start_ns=runs[0].begin_ns,
            time_ns=span_ns / len(runs),
            energy_mj=sum(run.energy_mj for run in runs) / len(runs),
            temperature_c=reading.temperature_c,
            throttle_reasons=reasons,
            core_mhz=reading.core_mhz,
            switches=sum(run.requests_issued for run in runs),
        )


def _distinct(
    core_mhz: npt.NDArray[np.int64], mem_mhz: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    both = np.unique(np.stack([core_mhz, mem_mhz], axis=1), axis=0)
    return both[:, 0], both[:, 1]


def _may_be(pair: ClockPair, core_mhz: int, mem_mhz: int) -> bool:
    """Could this be the pair in force? A cap or heat takes the core clock down, nothing up."""
    core_fits = pair.core_mhz is None or core_mhz <= pair.core_mhz + _SAME_CLOCK_MHZ
    mem_fits = pair.mem_mhz is None or mem_mhz < 0 or abs(mem_mhz - pair.mem_mhz) <= _SAME_CLOCK_MHZ
    return core_fits and mem_fits


class StepPlayer(SimulatedPlayer):
    """Plays a step's work on a simulated GPU."""

    def __init__(self, gpu: SimulatedGpu, step: StepWork, *, dry: bool = False) -> None:
        super().__init__(gpu, dry=dry)
        self._gpu, self._step = gpu, step

    @property
    def kernels(self) -> int:
        """Kernels of one step."""
        return len(self._step.items)

    def _run(self, requests: Mapping[int, ClockPair]) -> SimulatedRun:
        return self._gpu.run(self._step, requests=requests)


class TableStepPlayer(SimulatedPlayer):
    """Plays a trace's own table of times and energies.

    Args:
        gpu: the player of the table.
        rows: (K,) row of the table that each kernel is.
        gap_ns: (K,) idle time before each kernel.
        scale: (K,) factor on each kernel's time and energy.
        dry: count requests and make none.
    """

    def __init__(
        self,
        gpu: TablePlayer,
        rows: npt.NDArray[np.int64],
        gap_ns: npt.NDArray[np.float64],
        scale: npt.NDArray[np.float64],
        *,
        dry: bool = False,
    ) -> None:
        super().__init__(gpu, dry=dry)
        self._gpu, self._rows, self._gap_ns, self._scale = gpu, rows, gap_ns, scale

    @property
    def kernels(self) -> int:
        """Kernels of one step."""
        return len(self._rows)

    def _run(self, requests: Mapping[int, ClockPair]) -> SimulatedRun:
        return self._gpu.run(self._rows, requests=requests, gap_ns=self._gap_ns, scale=self._scale)


def table_player(
    trace: Trace,
    *,
    baseline: ClockPair,
    switch: SwitchBehaviour | None = None,
    seed: int = 0,
    noise: Noise | None = None,
    faults: Faults | None = None,
    dry: bool = False,
) -> TableStepPlayer:
    """A player of a trace's profile; pairs at which some signature is unknown are left out.

    Args:
        trace: the trace whose timeline and profile are played.
        baseline: the pair in force where nothing is locked.
        switch: how clocks change; free by default.
        seed: of the noise.
        noise: scatter; that of a simulated GPU by default.
        faults: what is wrong with it.
        dry: count requests and make none.

    Raises:
        InputError: the trace has no energies, or its baseline pair is not in the table.
    """
    time_ns, energy_mj = trace.grid("duration_ns"), trace.grid("energy_mj")
    known = np.isfinite(time_ns) & np.isfinite(energy_mj)
    whole = np.asarray(known.all(axis=0))
    pairs = [pair for pair, full in zip(trace.clock_pairs(), whole, strict=True) if full]
    if not pairs:
        raise InputError("the trace has no pair with time and energy of every kernel to play")
    if baseline not in pairs:
        raise InputError(
            f"the trace has no whole row for the baseline {baseline}, so the schedule cannot be "
            f"compared with it; it has {len(pairs)} pairs, such as {pairs[0]}"
        )
    idle = trace.pairs["idle_power_w"].to_numpy(dtype=np.float64, na_value=np.nan)[whole]
    gpu = TablePlayer(
        time_ns[:, whole],
        energy_mj[:, whole],
        pairs,
        baseline=baseline,
        idle_power_w=idle if np.isfinite(idle).all() else None,
        name=str(trace.gpu.get("name", "table")).removesuffix(" (simulated)"),
        switch=switch,
        seed=seed,
        noise=noise,
        faults=faults,
    )
    timeline = trace.timeline
    scale = timeline["time_scale"].to_numpy(dtype=np.float64, na_value=1.0)
    scale = scale * timeline["launches"].to_numpy(dtype=np.float64)
    start_ns = timeline["start_ns"].to_numpy(dtype=np.int64)
    end_ns = start_ns + timeline["duration_ns"].to_numpy(dtype=np.int64)
    busy_until_ns = np.concatenate([[0], np.maximum.accumulate(end_ns)[:-1]])
    gap_ns = np.maximum(start_ns - busy_until_ns, 0).astype(np.float64)
    rows = timeline["signature"].to_numpy(dtype=np.int64)
    return TableStepPlayer(gpu, rows, gap_ns, scale, dry=dry)
