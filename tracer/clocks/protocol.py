"""Messages between a keeper and its owners: one JSON object a line, over a Unix socket.

A request is ``{"id": n, "op": name, ...}``; the reply ``{"id": n, "ok": true, ...}`` or
``{"id": n, "ok": false, "error": {"kind": class name, "message": text}}``. The keeper speaks only
when asked. A shared page travels as a file descriptor (SCM_RIGHTS) beside its ``arm`` request.

Left out: encryption and remote hosts; the socket's mode and the kernel's word on the peer
(SO_PEERCRED) are the whole of access control.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from ...data import errors
from ...data.errors import ClockwrightError, FormatError, InputError, KeeperError
from ...data.units import ClockPair, parse_pair

__all__ = [
    "MAX_LINE_BYTES",
    "PROTOCOL",
    "SEQUENCE_MAX",
    "LineReader",
    "encode",
    "error_from_json",
    "error_to_json",
    "field",
    "table_from_json",
    "table_to_json",
]

PROTOCOL = 1
MAX_LINE_BYTES = 4 << 20
MAX_TABLE_ROWS = 65_536
SEQUENCE_MAX = 2**32 - 1

T = TypeVar("T")


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class LineReader:
    """Turns received bytes into messages, whatever pieces they come in."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Messages completed by ``data``.

        Raises:
            FormatError: a line is no JSON object, or too long; the connection cannot go on.
        """
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            raise FormatError(f"a message to the clock keeper is over {MAX_LINE_BYTES} bytes")
        return [_decode(bytes(line)) for line in lines if line.strip()]


def _decode(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a message to the clock keeper is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise FormatError(f"a message to the clock keeper must be an object, got {message!r:.80}")
    return message


def field(message: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """A required field of a request.

    Raises:
        FormatError: missing, or of another type (a bool is no int; an int is a float).
    """
    value = message.get(name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise FormatError(
            f"request {message.get('op')!r} needs {name} ({kind.__name__}), got {value!r:.80}"
        )
    return value


def table_to_json(table: Mapping[int, ClockPair]) -> dict[str, str]:
    """A table as JSON: sequence number as text to pair as text.

    Raises:
        InputError: a number that no stream can write, or too many rows.
    """
    for sequence in table:
        if not 1 <= sequence <= SEQUENCE_MAX:
            raise InputError(
                f"sequence numbers must be 1 to {SEQUENCE_MAX} (0 means none), got {sequence}"
            )
    if len(table) > MAX_TABLE_ROWS:
        raise InputError(f"a table may have {MAX_TABLE_ROWS} rows, got {len(table)}")
    return {str(sequence): str(pair) for sequence, pair in table.items()}


def table_from_json(values: Mapping[str, Any]) -> dict[int, ClockPair]:
    """Read back what `table_to_json` wrote, checking it again: it came from outside.

    Raises:
        InputError: not such a table.
    """
    table: dict[int, ClockPair] = {}
    for sequence, pair in values.items():
        if not (sequence.isascii() and sequence.isdigit() and isinstance(pair, str)):
            raise FormatError(f"expected a sequence number and a pair, got {sequence!r}: {pair!r}")
        table[int(sequence)] = parse_pair(pair)
    table_to_json(table)
    return table


def error_to_json(error: Exception) -> dict[str, str]:
    """An error as the reply carries it; one that is not ours becomes a KeeperError."""
    if isinstance(error, ClockwrightError):
        return {"kind": type(error).__name__, "message": str(error)}
    message = f"the clock keeper failed: {type(error).__name__}: {error}"
    return {"kind": "KeeperError", "message": message}


def error_from_json(values: Any) -> ClockwrightError:
    """The error that a reply carries; only classes of our own tree are made."""
    if not isinstance(values, dict):
        return KeeperError(f"the clock keeper replied with no error message: {values!r:.80}")
    kind, message = str(values.get("kind")), str(values.get("message"))
    made = getattr(errors, kind, None) if kind in errors.__all__ else None
    if isinstance(made, type) and issubclass(made, ClockwrightError):
        return made(message)
    return KeeperError(message)
