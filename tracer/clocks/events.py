"""What the keeper did and when: one record a request, kept for latency reports.

Times are on the device's clock (`Gpu.now_ns`): CLOCK_MONOTONIC on hardware, the same for every
process of the host, so a trainer may subtract them from its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ...data.errors import FormatError
from ...data.units import ClockPair, parse_pair

__all__ = ["ClockEvent", "Outcome"]


class Outcome(IntEnum):
    """What became of a request."""

    SET = 1
    SAME = 2
    DRY = 3
    REFUSED = 4
    FAILED = 5


@dataclass(frozen=True)
class ClockEvent:
    """One request to the driver, or one that was held back.

    Attributes:
        sequence: the sequence number that asked for it; 0 for a direct call.
        step: the page's step counter when the number was seen; 0 for a direct call.
        seen_ns: when the keeper saw the request.
        call_ns: when the driver call began (or would have).
        done_ns: when it returned.
        pair: the pair asked for; None where the request named no granted pair.
        outcome: what became of it. DRY: everything but the driver call was done.
        power_limit_w: the power cap asked for; None for a clock request.
    """

    sequence: int
    step: int
    seen_ns: int
    call_ns: int
    done_ns: int
    pair: ClockPair | None
    outcome: Outcome
    power_limit_w: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "sequence": self.sequence,
            "step": self.step,
            "seen_ns": self.seen_ns,
            "call_ns": self.call_ns,
            "done_ns": self.done_ns,
            "pair": None if self.pair is None else str(self.pair),
            "outcome": self.outcome.name.lower(),
            "power_limit_w": self.power_limit_w,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ClockEvent:
        """Read back what `to_json` wrote.

        Raises:
            FormatError: not such a record.
        """
        try:
            return cls(
                sequence=int(values["sequence"]),
                step=int(values["step"]),
                seen_ns=int(values["seen_ns"]),
                call_ns=int(values["call_ns"]),
                done_ns=int(values["done_ns"]),
                pair=None if values["pair"] is None else parse_pair(values["pair"]),
                outcome=Outcome[str(values["outcome"]).upper()],
                power_limit_w=values["power_limit_w"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"expected a clock event, got {values!r} ({error})") from error
