"""Decimal microseconds, as their text stands in a file, to integer nanoseconds without a double.

A double holds only quarters of a microsecond at today's epoch timestamps (1.7e15 us), so every
``ts`` and ``dur`` is kept as text until here. Nearly all are written with three decimals: a column
of such texts becomes whole numbers by leaving out the points, all at once. Anything else goes
through exact decimal arithmetic, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...data.errors import InputError
from ...data.units import decimal_to_ns
from .recording import UNKNOWN, Int64s

__all__ = ["MALFORMED", "MISSING", "WIDE", "us_text_to_ns", "us_texts_to_ns"]

MISSING = UNKNOWN
MALFORMED = UNKNOWN + 1
WIDE = UNKNOWN + 2
"""Marks in a column of times: no value, not a number, beyond 64 bits. Every real time is above."""

_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_THREE_DECIMALS = re.compile(rb"(?:-?\d{1,15}\.\d{3},)+")
_BATCH = 256


def us_text_to_ns(text: bytes) -> int:
    """Read a JSON number (or a JSON string that holds one) of microseconds as integer ns.

    Digits below a nanosecond are rounded half to even.

    Raises:
        InputError: not a finite decimal, or outside 64 bits of nanoseconds.
    """
    plain = text.strip(b'" \t')
    if not _NUMBER.fullmatch(plain):
        raise InputError(f"expected a decimal number, got {plain.decode('utf-8', 'replace')!r}")
    return decimal_to_ns(plain.decode("ascii"))


def _one(text: bytes) -> int:
    if text in {b"", b"null", b'""'}:
        return MISSING
    try:
        return max(us_text_to_ns(text), WIDE)
    except InputError as error:
        return WIDE if "64 bits" in str(error) else MALFORMED


def us_texts_to_ns(texts: Iterable[Any]) -> Int64s:
    """Read a column of microseconds as integer ns: (N,) int64.

    Args:
        texts: bytes, or anything with their buffer, of one JSON number each.

    Returns:
        The values; `MISSING`, `MALFORMED` or `WIDE` where there is none.
    """
    column: Sequence[Any] = texts if isinstance(texts, Sequence) else list(texts)
    if not column:
        return np.zeros(0, dtype=np.int64)
    joined = b",".join(column) + b","
    if _THREE_DECIMALS.fullmatch(joined):
        return np.fromstring(joined.replace(b".", b"").decode("ascii"), dtype=np.int64, sep=",")
    if len(column) > _BATCH:  # one odd value slows down its neighbours only
        parts = [column[at : at + _BATCH] for at in range(0, len(column), _BATCH)]
        return np.concatenate([us_texts_to_ns(part) for part in parts])
    return np.array([_one(bytes(text)) for text in column], dtype=np.int64)
