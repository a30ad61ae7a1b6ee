"""Write whole files or none: to a sibling first, then renamed over the target."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import FormatError, InputError

__all__ = ["read_json", "replace_dir", "replace_file", "write_json", "write_text"]


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling; on a clean end it becomes ``path``, else it is deleted.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file to write")
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent or Path(), prefix=f".{path.stem}.", suffix=path.suffix
        )
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    # mkstemp makes private files; a result is for the user's usual readers.
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_dir(path: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a temporary sibling folder; on a clean end it takes ``path``'s place.

    An existing folder is replaced only if ``is_ours`` says it is one we wrote (or it is empty),
    so a mistyped ``-o`` never deletes somebody's files.

    Raises:
        InputError: ``path`` exists and is something else, or cannot be written.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} exists and is not a folder; name another output")
    if path.exists() and any(path.iterdir()) and not is_ours(path):
        raise InputError(f"{path} holds other files; name a new folder or an older trace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o777 & ~umask)
    old: Path | None = None
    try:
        yield temporary
        if path.exists():
            old = temporary.with_name(temporary.name + ".old")
            path.rename(old)
        temporary.rename(path)
    except BaseException:
        if old is not None and old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        for leftover in (temporary, old):
            if leftover is not None:
                shutil.rmtree(leftover, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: Any) -> None:
    """Write JSON, indented, refusing NaN and infinity, whole or not at all."""
    try:
        text = json.dumps(document, indent=1, allow_nan=False)
    except ValueError as error:
        raise FormatError(f"{path}: a number to be written is not finite ({error})") from error
    write_text(path, text + "\n")


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def read_json(path: Path) -> Any:
    """Read a JSON document; NaN and infinity are refused, as the standard has neither.

    Raises:
        InputError: the file is missing or unreadable.
        FormatError: it is not JSON; the message gives line and column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text (byte {error.start})") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise FormatError(f"{path}: not valid JSON at {where}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON: {error}") from error
