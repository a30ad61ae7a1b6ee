"""Measures arms against each other: interleaved blocks, several looks, a reason to stop.

A round runs one block of every arm in an order drawn anew, so that drift of temperature and load
falls on all alike and cancels in the round's differences. A block is several periods of the
energy counter long; before it, settling steps bring the clocks and the governor to the arm. After
12, 24, 48, ... rounds the intervals are looked at; measuring ends when verdict and difference are
clear and the interval is as narrow as wanted, when it is narrower than any difference that counts,
or when rounds or time are up. `intervals` says why looking several times does no harm.

Left out: carry-over from one block to the next beyond the settling steps (the order is random, so
it widens the interval and does not shift it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from ..data.errors import InputError
from ..data.report import BASELINE, SCHEDULE, Block, Comparison, Estimate, Prediction
from ..data.schedule import Predicted
from .intervals import LEAST_ROUNDS, mean_interval, paired_saving, paired_slowdown
from .plan import Plan
from .verdict import difference, half_width, judge_budget, judge_prediction

__all__ = ["Arm", "BlockReading", "Player", "Settings", "Verification", "verify"]


@dataclass(frozen=True)
class Arm:
    """One way to run the step.

    Attributes:
        name: `data.report.BASELINE`, ``SCHEDULE`` or ``SINGLE``.
        plan: what it does to the clocks.
    """

    name: str
    plan: Plan


@dataclass(frozen=True)
class BlockReading:
    """What a player measured in one block; units and meanings as in `data.report.Block`."""

    steps: int
    start_ns: int
    time_ns: float
    energy_mj: float | None
    energy_error_mj: float | None = None
    temperature_c: float | None = None
    throttle_reasons: int | None = None
    core_mhz: int | None = None
    switches: int = 0


class Player(Protocol):
    """Runs steps under an arm and measures them; simulated or real."""

    def now_ns(self) -> int:
        """The clock that the time limit is held against."""
        ...

    def play(self, arm: Arm, block_ns: int) -> BlockReading:
        """Settle under ``arm``, then measure whole steps for at least ``block_ns``."""
        ...

    def requests(self) -> Mapping[str, int]:
        """What became of the clock requests so far, outcome to count."""
        ...


@dataclass(frozen=True)
class Settings:
    """How long and how finely to measure.

    Attributes:
        block_ns: least length of a block.
        precision: half-width of the slowdown's interval that is wanted, a fraction.
        finest: half-width below which more measuring would not matter; an interval this narrow
            that still straddles the budget stays ambiguous.
        least_difference: the smallest difference in time that counts as one, a fraction.
        confidence: of all intervals of all looks together.
        max_rounds: stop after this many.
        time_limit_ns: stop after this long, on the player's clock; at least one look is taken.
        seed: of the order of blocks and of the resampling.
    """

    block_ns: int = 500_000_000
    precision: float = 0.001
    finest: float = 0.0002
    least_difference: float = 0.001
    confidence: float = 0.95
    max_rounds: int = 96
    time_limit_ns: int = 600_000_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("precision", "finest", "least_difference"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence must lie between 0 and 1, got {self.confidence!r}")
        if self.seed < 0:
            raise InputError(f"the seed must be 0 or more, got {self.seed}")
        if self.block_ns < 1 or self.time_limit_ns < 1:
            raise InputError("block length and time limit must be positive")
        if self.max_rounds < LEAST_ROUNDS:
            raise InputError(
                f"at least {LEAST_ROUNDS} rounds are needed for an interval, got {self.max_rounds}"
            )

    def looks(self) -> tuple[int, ...]:
        """Rounds after which the intervals are looked at."""
        looks = []
        rounds = LEAST_ROUNDS * 2
        while rounds < self.max_rounds:
            looks.append(rounds)
            rounds *= 2
        return (*looks, self.max_rounds)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, for the report."""
        return asdict(self)


@dataclass(frozen=True)
class Verification:
    """What was measured and what follows from it; see `data.report.Report` for the fields."""

    blocks: tuple[Block, ...]
    comparisons: tuple[Comparison, ...]
    verdict: str
    prediction: Prediction | None
    stopped: str
    requests: Mapping[str, int] = field(default_factory=dict)


def verify(
    player: Player,
    arms: Sequence[Arm],
    *,
    max_slowdown: float,
    predicted: Predicted | None = None,
    settings: Settings | None = None,
    on_round: Callable[[int, Sequence[Comparison]], None] | None = None,
) -> Verification:
    """Measure the arms until a rule says stop.

    Args:
        player: runs the blocks.
        arms: the baseline, the schedule, and any others, each once.
        max_slowdown: budget, a fraction.
        predicted: the schedule's promise; None where it was not made for this (drifted) step.
        settings: how long and how finely.
        on_round: told the number of rounds, and the comparisons at each look.

    Raises:
        InputError: no baseline or no schedule among the arms.
        DeviceError, WorkloadError: from the player; nothing is concluded then.
    """
    settings = settings or Settings()
    names = [arm.name for arm in arms]
    if BASELINE not in names or SCHEDULE not in names or len(set(names)) != len(names):
        raise InputError(f"a replay compares a baseline with a schedule, got arms {names}")
    rng = np.random.default_rng(settings.seed)
    start_ns = player.now_ns()
    looks = settings.looks()
    blocks: list[Block] = []
    comparisons: tuple[Comparison, ...] = ()
    rounds, stopped = 0, None
    while stopped is None:
        blocks += _run_round(player, arms, rounds, settings.block_ns, rng)
        rounds += 1
        out_of_time = player.now_ns() - start_ns >= settings.time_limit_ns
        if rounds in looks or (out_of_time and rounds >= LEAST_ROUNDS):
            comparisons = _compare(blocks, names, settings, len(looks))
            stopped = _reason_to_stop(comparisons, max_slowdown, settings)
            if stopped is None and rounds >= settings.max_rounds:
                stopped = "rounds"
            if stopped is None and out_of_time:
                stopped = "time"
        if on_round is not None:
            on_round(rounds, comparisons)
    schedule = next(entry for entry in comparisons if entry.arm == SCHEDULE)
    return Verification(
        blocks=tuple(blocks),
        comparisons=comparisons,
        verdict=judge_budget(schedule.slowdown, max_slowdown),
        prediction=None if predicted is None else judge_prediction(predicted, schedule),
        stopped=stopped,
        requests=dict(player.requests()),
    )


def _run_round(
    player: Player, arms: Sequence[Arm], number: int, block_ns: int, rng: np.random.Generator
) -> list[Block]:
    blocks = []
    for position, index in enumerate(rng.permutation(len(arms))):
        arm = arms[int(index)]
        reading = player.play(arm, block_ns)
        blocks.append(Block(round=number, position=position, arm=arm.name, **vars(reading)))
    return blocks


def _by_round(blocks: Sequence[Block], arm: str) -> list[Block]:
    return sorted((block for block in blocks if block.arm == arm), key=lambda block: block.round)


def _compare(
    blocks: Sequence[Block], names: Sequence[str], settings: Settings, looks: int
) -> tuple[Comparison, ...]:
    base = _by_round(blocks, BASELINE)
    found = []
    for name in names:
        if name == BASELINE:
            continue
        ours = _by_round(blocks, name)
        slowdown = _interval(
            paired_slowdown([b.time_ns for b in ours], [b.time_ns for b in base]), settings, looks
        )
        energies = [(b.energy_mj, o.energy_mj) for b, o in zip(base, ours, strict=True)]
        saving = None
        known = [(b, o) for b, o in energies if b is not None and o is not None and b > 0]
        if len(known) == len(energies):
            saving = _interval(
                paired_saving([o for _, o in known], [b for b, _ in known]), settings, looks
            )
        found.append(
            Comparison(name, slowdown, saving, difference(slowdown, settings.least_difference))
        )
    return tuple(found)


def _interval(values: Any, settings: Settings, looks: int) -> Estimate:
    return mean_interval(values, confidence=settings.confidence, looks=looks, seed=settings.seed)


def _reason_to_stop(
    comparisons: Sequence[Comparison], max_slowdown: float, settings: Settings
) -> str | None:
    schedule = next(entry for entry in comparisons if entry.arm == SCHEDULE)
    half = half_width(schedule.slowdown)
    if half <= settings.finest:
        return "narrow"
    # A slowdown of 20% need not be known to 0.1% to be over a budget of 1%.
    wanted = max(settings.precision, 0.1 * abs(schedule.slowdown.value))
    verdict = judge_budget(schedule.slowdown, max_slowdown)
    if half <= wanted and verdict != "ambiguous" and schedule.difference != "unresolved":
        return "decided"
    return None
