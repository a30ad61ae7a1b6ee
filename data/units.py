"""Text to numbers, once, where a number enters; and the clock pair.

Decimals are parsed as text, never through a double: at a timestamp of 1.7e15 us a double holds
only quarters of a microsecond, which would round most kernels away.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import NamedTuple

from .errors import InputError

__all__ = [
    "GOVERNOR",
    "ClockPair",
    "counted",
    "decimal_to_ns",
    "pair_from_columns",
    "parse_duration_ns",
    "parse_fraction",
    "parse_pair",
]

_NS_PER = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"\s*([0-9.eE+-]+)\s*(ns|us|µs|ms|s)\s*")
_INT64_MAX = 2**63 - 1


class ClockPair(NamedTuple):
    """What is requested of the two clocks.

    ``core_mhz`` and ``mem_mhz`` are whole MHz. ``mem_mhz`` None beside a core clock means the
    memory clock is not varied ("fixed"); both None is the driver's governor (nothing locked).
    The reverse (a core clock left to the governor, memory locked) is allowed too.
    """

    core_mhz: int | None
    mem_mhz: int | None

    @property
    def is_governor(self) -> bool:
        """True if neither clock is locked."""
        return self.core_mhz is None and self.mem_mhz is None

    def __str__(self) -> str:
        """``1410/9501``, ``1410/fixed``, ``auto/9501`` or ``governor``; `parse_pair` reads it."""
        if self.is_governor:
            return "governor"
        core = "auto" if self.core_mhz is None else str(self.core_mhz)
        mem = "fixed" if self.mem_mhz is None else str(self.mem_mhz)
        return f"{core}/{mem}"


GOVERNOR = ClockPair(None, None)


def _parse_clock(text: str, what: str, words: tuple[str, ...]) -> int | None:
    text = text.strip().lower()
    if text in words:
        return None
    try:
        value = Decimal(text)
        whole = int(value)
    except (InvalidOperation, ValueError, OverflowError):
        whole, value = 0, Decimal(-1)
    if value != whole or not 0 < whole <= 100_000:
        raise InputError(
            f"{what} clock must be whole MHz (1 to 100000) or one of {', '.join(words)}, "
            f"got {text!r}"
        )
    return whole


def parse_pair(text: str) -> ClockPair:
    """Read a clock pair: ``CORE/MEM`` in MHz, ``CORE/fixed``, or ``governor`` (also ``auto``).

    Raises:
        InputError: the text is not a clock pair.
    """
    word = text.strip().lower()
    if word in {"governor", "auto", "auto/auto", "default"}:
        return GOVERNOR
    core, slash, mem = word.partition("/")
    if not slash:
        raise InputError(
            f"clock pair must be CORE/MEM in MHz, such as 1410/9501, or governor; got {text!r}"
        )
    return pair_from_columns(core, mem)


def pair_from_columns(core: str, mem: str) -> ClockPair:
    """A pair from a table's two cells; ``auto`` in both is the governor, ``fixed`` unvaried."""
    unvaried = ("fixed", "auto", "governor")
    return ClockPair(_parse_clock(core, "core", unvaried), _parse_clock(mem, "memory", unvaried))


def decimal_to_ns(text: str, ns_per_unit: int = 1_000) -> int:
    """Read a decimal count of ``ns_per_unit`` (microseconds by default) as integer ns, exactly.

    Digits below a nanosecond are rounded half to even.

    Raises:
        InputError: not a finite decimal, or outside int64.
    """
    try:
        value = Decimal(text) * ns_per_unit
        whole = int(value.to_integral_value(rounding=ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError, OverflowError):
        raise InputError(f"expected a decimal number, got {text!r}") from None
    if abs(whole) > _INT64_MAX:
        raise InputError(f"{text!r} does not fit in 64 bits of nanoseconds")
    return whole


def parse_duration_ns(text: str) -> int:
    """Read ``20us``, ``1.5 ms``, ``0`` or ``300ns`` as integer ns.

    Raises:
        InputError: no number, no unit, or negative.
    """
    if text.strip() == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InputError(f"expected a duration with a unit (ns, us, ms, s), got {text!r}")
    value = decimal_to_ns(match[1], _NS_PER[match[2]])
    if value < 0:
        raise InputError(f"a duration cannot be negative, got {text!r}")
    return value


def parse_fraction(text: str) -> float:
    """Read ``0.6%`` as 0.006 and ``0.006`` as 0.006; negative and non-finite are refused.

    Raises:
        InputError: not a fraction or percentage, or over 100 (10000%).
    """
    body = text.strip()
    percent = body.endswith("%")
    try:
        value = float(Decimal(body.removesuffix("%").strip()) / (100 if percent else 1))
    except (InvalidOperation, ValueError):
        raise InputError(f"expected a percentage such as 0.6% (or 0.006), got {text!r}") from None
    if not 0 <= value <= 100:
        raise InputError(f"expected a percentage from 0% upward, got {text!r}")
    return value


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``number`` beside its noun: ``1 segment``, ``3 segments``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
