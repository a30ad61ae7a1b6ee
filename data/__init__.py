"""The contract between tracer, optimizer and replay: formats, units, validation, errors.

Imports none of the other folders. Submodules: `trace`, `schedule`, `report`, `tables`, `units`,
`errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import ClockwrightError
from .units import GOVERNOR, ClockPair, parse_pair

if TYPE_CHECKING:
    from .schedule import Schedule
    from .trace import Trace

__all__ = ["GOVERNOR", "ClockPair", "ClockwrightError", "Schedule", "Trace", "parse_pair"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the clock keeper, which may run as root, needs errors and units but
    # neither pandas nor pyarrow (0.6 s and 90 MB at every start).
    if name == "Schedule":
        from .schedule import Schedule

        return Schedule
    if name == "Trace":
        from .trace import Trace

        return Trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
