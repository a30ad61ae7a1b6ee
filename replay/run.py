"""One replay from schedule to report: match, choose the arms, verify, write down.

The arms are the baseline, the schedule, and the best single pair that the schedule names; a single
pair that is one of the other two is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._version import __version__
from ..data.errors import InputError, MismatchError
from ..data.report import BASELINE, SCHEDULE, SINGLE, Comparison, Report
from ..data.schedule import Schedule
from ..data.units import ClockPair, parse_pair
from ..tracer.gpu.protocol import GpuInfo
from .matching import Match
from .plan import constant_plan
from .verify import Arm, Player, Settings, verify
from .watched import WatchedSchedule

__all__ = ["arms_of", "check_gpu", "run_replay", "single_pair"]


def single_pair(schedule: Schedule) -> ClockPair | None:
    """The best single pair among the schedule's baselines, if it names one."""
    for entry in schedule.baselines:
        if entry.name == SINGLE and len(entry.pairs) == 1:
            return parse_pair(entry.pairs[0])
    return None


def arms_of(schedule: Schedule, match: Match, *, single: bool = True) -> list[Arm]:
    """The arms to compare."""
    kernels = match.plan.kernels
    arms = [
        Arm(BASELINE, constant_plan(schedule.baseline_pair, kernels)),
        Arm(SCHEDULE, match.plan),
    ]
    pair = single_pair(schedule) if single else None
    if pair is not None and all(arm.plan.pairs != (pair,) for arm in arms):
        arms.append(Arm(SINGLE, constant_plan(pair, kernels)))
    return arms


def check_gpu(schedule: Schedule, info: GpuInfo) -> None:
    """Refuse a schedule that was made for another product.

    Raises:
        MismatchError: the names differ.
    """
    wanted = str(schedule.gpu["name"])
    if wanted != info.name:
        raise MismatchError(
            f"the schedule was made for {wanted}, and this GPU is {info.name}: its clocks and its "
            "kernels' times are others; trace and optimize on this GPU"
        )


def run_replay(
    source: WatchedSchedule | Schedule,
    player: Player,
    match: Match,
    info: GpuInfo,
    *,
    max_slowdown: float | None = None,
    settings: Settings | None = None,
    single: bool = True,
    dry: bool = False,
    notes: Sequence[str] = (),
    on_round: Callable[[int, Sequence[Comparison]], None] | None = None,
) -> Report:
    """Verify a schedule on a player and report.

    Args:
        source: the schedule, or the file that is watched for changes between rounds.
        player: what runs the steps.
        match: what of the schedule is played.
        info: who the GPU is.
        max_slowdown: budget; the schedule's own by default.
        settings: how long and how finely to measure.
        single: also run the best single pair.
        dry: the player sets nothing; the report says so.
        notes: what a reader should know.
        on_round: told the number of rounds, and the comparisons at each look.

    Raises:
        MismatchError: the schedule file changed under way.
        DeviceError, KeeperError, WorkloadError: from the player.
    """
    watched = source if isinstance(source, WatchedSchedule) else None
    schedule = source.schedule if isinstance(source, WatchedSchedule) else source
    settings = settings or Settings()
    budget = float(schedule.budget["max_slowdown"]) if max_slowdown is None else max_slowdown
    if budget < 0:
        raise InputError(f"a slowdown budget cannot be negative, got {budget!r}")

    def each_round(rounds: int, comparisons: Sequence[Comparison]) -> None:
        if watched is not None:
            watched.check()
        if on_round is not None:
            on_round(rounds, comparisons)

    whole = match.difference is None
    result = verify(
        player,
        arms_of(schedule, match, single=single),
        max_slowdown=budget,
        predicted=schedule.predicted if whole and not dry else None,
        settings=settings,
        on_round=each_round,
    )
    return Report(
        gpu=_gpu(info),
        workload=dict(schedule.workload),
        schedule=_identity(schedule, watched),
        simulated=info.simulated,
        mode="dry" if dry else "set",
        budget={"max_slowdown": budget},
        confidence=settings.confidence,
        settings=settings.to_json(),
        blocks=result.blocks,
        comparisons=result.comparisons,
        verdict=result.verdict,
        prediction=result.prediction,
        stopped=result.stopped,
        coverage=match.coverage,
        requests=result.requests,
        notes=(*notes, *_notes(schedule, match, dry)),
        created_by=f"clockwright {__version__}",
    )


def _gpu(info: GpuInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "uuid": info.uuid,
        "driver": info.driver,
        "power_limit_w": info.power_limit_w,
        "simulated": info.simulated,
    }


def _identity(schedule: Schedule, watched: WatchedSchedule | None) -> dict[str, Any]:
    return {
        "fingerprint": schedule.trace["fingerprint"],
        "kernels": schedule.trace["kernels"],
        "segments": len(schedule.segments),
        "provenance": schedule.provenance,
        "path": None if watched is None else str(watched.path),
        "sha256": None if watched is None else watched.sha256,
    }


def _notes(schedule: Schedule, match: Match, dry: bool) -> list[str]:
    notes = []
    if dry:
        notes.append("dry: no clock was set, so the arms differ only by their triggers")
    if match.difference is not None:
        notes.append(
            f"{match.drift:.1%} of the kernels differ from the schedule's ({match.difference}); "
            f"it was played on {match.coverage:.1%} of the step and is not held to its promise"
        )
    if schedule.recommendation != "schedule":
        notes.append(f"the optimizer recommends: {schedule.recommendation}")
    return notes
