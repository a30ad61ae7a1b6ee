"""The contract between tracer, optimizer and replay: formats, units, validation, errors.

Imports none of the other folders. Submodules: `trace`, `schedule`, `report`, `tables`, `units`,
`errors`.
"""

from .errors import ClockwrightError
from .schedule import Schedule
from .trace import Trace
from .units import GOVERNOR, ClockPair, parse_pair

__all__ = ["GOVERNOR", "ClockPair", "ClockwrightError", "Schedule", "Trace", "parse_pair"]
