"""Bytes of a recording, decompressed as its content asks, whatever its name says.

Reads plain files and gzip, several gzip members included. What the file name promises is not
consulted: gzip named ``.json`` and JSON named ``.gz`` both occur.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from isal import igzip, igzip_lib

from ...data.errors import FormatError, InputError

__all__ = ["Source", "is_gzip", "open_source", "peek"]

_GZIP = b"\x1f\x8b"
_READ_ERRORS: tuple[type[Exception], ...] = (
    EOFError,
    OSError,
    ValueError,
    zlib.error,
    cast(type[Exception], igzip_lib.IsalError),  # its stub calls the class an instance
)
_BOM = b"\xef\xbb\xbf"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Source:
    """A forward-only reader that counts what it gave.

    Attributes:
        path: the file.
        gzipped: whether offsets are of the decompressed text.
        offset: bytes of (decompressed) text given so far, a byte order mark included.
    """

    def __init__(self, path: Path, stream: _Readable, gzipped: bool) -> None:
        self.path = path
        self.gzipped = gzipped
        self.offset = 0
        self._stream = stream

    def read(self, size: int) -> bytes:
        """The next bytes, at most ``size``; empty at the end.

        Raises:
            FormatError: the gzip data is cut or damaged; the message gives the byte.
            InputError: the file cannot be read.
        """
        try:
            data = self._stream.read(size)
        except _READ_ERRORS as error:
            if not self.gzipped:
                reason = getattr(error, "strerror", None) or error
                raise InputError(f"{self.path}: cannot be read: {reason}") from error
            kind = "cut off" if isinstance(error, EOFError) else f"damaged ({error})"
            raise FormatError(
                f"{self.path}: the gzip data is {kind} after byte {self.offset} of its text; "
                "copy the file again or record anew"
            ) from error
        if self.offset == 0 and data.startswith(_BOM):
            self.offset = len(_BOM)
            data = data[len(_BOM) :] or self._stream.read(size)
        self.offset += len(data)
        return data

    def where(self, offset: int) -> str:
        """``FILE: byte N``, saying so where the byte is one of the decompressed text."""
        return f"{self.path}: byte {offset}" + (" of the decompressed text" * self.gzipped)


def is_gzip(head: bytes) -> bool:
    """Whether a file that starts with ``head`` is gzip."""
    return head.startswith(_GZIP)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    with file:
        yield file


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a recording for one pass.

    Raises:
        InputError: no such file, or no right to read it.
    """
    with _open(path) as file:
        gzipped = is_gzip(file.read(2))
        file.seek(0)
        if not gzipped:
            yield Source(path, file, gzipped=False)
            return
        with igzip.IGzipFile(fileobj=file, mode="rb") as unpacked:  # type: ignore[no-untyped-call]
            yield Source(path, cast(_Readable, unpacked), gzipped=True)


def peek(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file's text, decompressed, without a byte order mark.

    Raises:
        InputError, FormatError: as `open_source` and `Source.read`.
    """
    with open_source(path) as source:
        return source.read(size)
