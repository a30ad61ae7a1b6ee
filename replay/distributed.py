"""Several ranks verify as one: each runs its own GPU, and all see the same numbers.

Every rank runs the same arms in the same order (the seed is shared). What each measures is
gathered: a step is as slow as its slowest rank, and costs what all GPUs together draw. As every
rank holds the same numbers, all stop at the same round with the same verdict, and no collective is
left waiting.

Left out: ranks with different schedules for one step whose slowdowns differ; the slowest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

from .verify import Arm, BlockReading, Player

__all__ = ["RankedPlayer", "gather", "merge_readings"]


def merge_readings(readings: list[BlockReading]) -> BlockReading:
    """One block of all ranks, rank 0 first: the slowest time, the summed energy."""
    energies = [reading.energy_mj for reading in readings]
    errors = [reading.energy_error_mj for reading in readings]
    hottest = [r.temperature_c for r in readings if r.temperature_c is not None]
    reasons = [r.throttle_reasons for r in readings if r.throttle_reasons is not None]
    return replace(
        readings[0],
        time_ns=max(reading.time_ns for reading in readings),
        energy_mj=_sum(energies),
        energy_error_mj=_sum(errors),
        temperature_c=max(hottest) if hottest else None,
        throttle_reasons=reduce(or_, reasons) if reasons else None,
        switches=sum(reading.switches for reading in readings),
    )


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class RankedPlayer:
    """A player whose blocks are those of all ranks; implements `verify.Player`.

    Args:
        player: this rank's own.
        group: the process group; the default one if None.
    """

    def __init__(self, player: Player, group: Any = None) -> None:
        self._player, self._group = player, group

    def now_ns(self) -> int:
        """Rank 0's clock, so that time is up for all at once."""
        return int(self._gather(self._player.now_ns())[0])

    def play(self, arm: Arm, block_ns: int) -> BlockReading:
        """Play this rank's block and merge it with the others'."""
        return merge_readings(self._gather(self._player.play(arm, block_ns)))

    def requests(self) -> Mapping[str, int]:
        """Requests of all ranks together."""
        total: dict[str, int] = {}
        for counts in self._gather(dict(self._player.requests())):
            for outcome, count in counts.items():
                total[outcome] = total.get(outcome, 0) + count
        return total

    def _gather(self, value: Any) -> list[Any]:
        return gather(value, self._group)


def gather(value: Any, group: Any = None) -> list[Any]:
    """Every rank's value, by rank; the value alone where there are no ranks."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return [value]
    gathered: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, value, group=group)
    return gathered
