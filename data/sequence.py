"""The kernel sequence by itself: what a fingerprint stands for, small enough to travel along.

A fingerprint says that two sequences differ; this says where. The schedule file carries it under
``extra["sequence"]``, so that a running model can be compared kernel by kernel with no trace at
hand: the distinct launches as text, and the order as indexes, compressed (a step of 5,000 kernels
takes about 10 kB). Only identity is kept, no time and no energy.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import FormatError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KernelSequence", "pack", "sequence_of", "unpack"]

_ENCODING = "json+zlib+base64"
_MOST_BYTES = 256 << 20  # a million kernels take about 7 MB unpacked


@dataclass(frozen=True)
class KernelSequence:
    """The launches of one step.

    Attributes:
        texts: distinct launches, ``stream;launches;name|grid|block|shared|registers|op|shapes``.
        order: index into ``texts`` of each launch, in launch order.
    """

    texts: tuple[str, ...]
    order: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.order)

    @property
    def fingerprint(self) -> str:
        """The same digest that `clockwright.data.trace.fingerprint` makes of the tables."""
        digest = hashlib.sha256()
        lines = [f"{text}\n".encode() for text in self.texts]
        for index in self.order:
            digest.update(lines[index])
        return "sha256:" + digest.hexdigest()

    def describe(self, position: int) -> str:
        """One launch for people: name, operator and shapes where known."""
        if position >= len(self.order):
            return "the end of the step"
        stream_and_count, _, signature = self.texts[self.order[position]].partition("|")
        name = stream_and_count.split(";", 2)[2]
        *_, op, shapes = signature.rsplit("|", 2)
        known = [text for text in (op, shapes) if text and text != "?"]
        return f"{name} ({' '.join(known)})" if known else name


def sequence_of(timeline: pd.DataFrame, signatures: pd.DataFrame) -> KernelSequence:
    """The sequence of a trace's tables (`clockwright.data.tables.TIMELINE`, ``SIGNATURES``)."""
    import pandas as pd

    columns = ["name", "grid", "block", "shared_bytes", "registers", "op", "shapes"]
    texts = signatures[columns].astype("string").fillna("?").agg("|".join, axis=1).tolist()
    streams = pd.factorize(timeline["stream"])[0]
    launches = timeline["launches"].to_numpy(dtype="int64")
    rows = timeline["signature"].to_numpy(dtype="int64")
    distinct: dict[str, int] = {}
    order = []
    for row, stream, count in zip(rows, streams, launches, strict=True):
        text = f"{stream};{count};{texts[row]}"
        order.append(distinct.setdefault(text, len(distinct)))
    return KernelSequence(tuple(distinct), tuple(order))


def pack(sequence: KernelSequence) -> dict[str, Any]:
    """The sequence as a JSON value."""
    body = json.dumps([list(sequence.texts), list(sequence.order)], separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(body.encode(), level=9)).decode("ascii")
    return {"encoding": _ENCODING, "data": packed}


def unpack(values: Mapping[str, Any], where: str = "sequence") -> KernelSequence:
    """Read back what `pack` made.

    Raises:
        FormatError: not such a value, cut, or larger than any step could be.
    """
    if values.get("encoding") != _ENCODING or not isinstance(values.get("data"), str):
        raise FormatError(f"{where}: expected a kernel sequence encoded as {_ENCODING}")
    unzip = zlib.decompressobj()
    try:
        body = unzip.decompress(base64.b64decode(values["data"], validate=True), _MOST_BYTES)
        texts, order = json.loads(body) if unzip.eof else ([], [-1])
    except (binascii.Error, zlib.error, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"{where}: the kernel sequence cannot be read: {error}") from error
    sound = (
        isinstance(texts, list)
        and isinstance(order, list)
        and all(isinstance(text, str) and text.count(";") >= 2 for text in texts)
        and bool(order)
        and all(type(index) is int and 0 <= index < len(texts) for index in order)
    )
    if not sound:
        raise FormatError(f"{where}: the kernel sequence is cut, too long, or not one of ours")
    return KernelSequence(tuple(texts), tuple(order))
