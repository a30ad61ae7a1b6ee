"""The fields of a Kineto event that an import needs, typed for one-pass decoding.

Numbers of time stay text (`msgspec.Raw`), for `decimals`. Field names and types are those that
torch.profiler has written since 1.8 (CUDA and ROCm); an event that does not fit them is decoded
as plain JSON and coerced field by field, so that one odd event never stops a file.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["Args", "Event", "decode_batch", "decode_one"]

_NO_TEXT = msgspec.Raw(b"")
Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The ``args`` of an event; absent is None."""

    stream: Number = None
    queue: Number = None
    device: Number = None
    correlation: Number = None
    external_id: Number = msgspec.field(name="External id", default=None)
    external_id_old: Number = msgspec.field(name="external id", default=None)
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    registers: Number = msgspec.field(name="registers per thread", default=None)
    shared_bytes: Number = msgspec.field(name="shared memory", default=None)
    graph_node: Number = msgspec.field(name="graph node id", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_TEXT)
    dims_old: msgspec.Raw = msgspec.field(name="Input dims", default=_NO_TEXT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_TEXT)
    sequence: Number = msgspec.field(name="Sequence number", default=None)
    flops: Number = None


class Event(msgspec.Struct, gc=False):
    """One Chrome trace event; ``ts`` and ``dur`` are microseconds as their text stands."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: msgspec.Raw = _NO_TEXT
    dur: msgspec.Raw = _NO_TEXT
    args: Args | None = None


_BATCH = msgspec.json.Decoder(list[Event])
_ONE = msgspec.json.Decoder(Event)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS = {
    field.encode_name: field.name
    for field in msgspec.structs.fields(Args)
    if field.type is not msgspec.Raw
}
_TEXTS = {
    field.encode_name: field.name
    for field in msgspec.structs.fields(Args)
    if field.type is msgspec.Raw
}
_EXTENT = re.compile(r"\d+")


def decode_batch(text: bytes | bytearray | memoryview) -> list[Event]:
    """Decode a JSON array of events.

    Raises:
        msgspec.DecodeError: malformed JSON (the message gives the byte within ``text``).
        RecursionError: nested beyond reason.
    """
    try:
        return _BATCH.decode(text)
    except msgspec.ValidationError:
        return [decode_one(bytes(raw)) for raw in _RAWS.decode(text)]


def decode_one(text: bytes) -> Event:
    """Decode one event; a field of an unexpected type becomes absent, not an error.

    Raises:
        msgspec.DecodeError: malformed JSON.
    """
    try:
        return _ONE.decode(text)
    except msgspec.ValidationError:
        pass
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return Event(ph="?")
    event = Event(
        ph=_text(fields.get("ph")) or "",
        cat=_text(fields.get("cat")),
        name=_text(fields.get("name")),
        pid=_number(fields.get("pid")),
        tid=_number(fields.get("tid")),
    )
    event.ts = msgspec.Raw(bytes(fields.get("ts", b"")))
    event.dur = msgspec.Raw(bytes(fields.get("dur", b"")))
    event.args = _args(fields.get("args"))
    return event


def _plain(raw: Any) -> Any:
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(raw: Any) -> str | None:
    value = _plain(raw)
    return value if isinstance(value, str) else None


def _number(raw: Any) -> Number:
    value = _plain(raw)
    usable = isinstance(value, int | float | str) and not isinstance(value, bool)
    return value if usable else None


def _args(raw: Any) -> Args | None:
    if not isinstance(_plain(raw), dict):
        return None
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    args = Args()
    for key, value in fields.items():
        if key in {"grid", "block"}:
            # Some writers give a string such as "[2, 1, 1]", some a number.
            extent = tuple(int(digits) for digits in _EXTENT.findall(bytes(value).decode()))
            setattr(args, key, extent or None)
        elif key in _FIELDS:
            setattr(args, _FIELDS[key], _number(value))
        elif key in _TEXTS:
            setattr(args, _TEXTS[key], msgspec.Raw(bytes(value)))
    return args
