"""JSON documents of ours: format, version and published schema, checked before use."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import FormatError, VersionError

__all__ = ["check_header", "schema", "validate"]


@cache
def schema(name: str) -> dict[str, Any]:
    """A published JSON Schema, such as ``schedule-1``."""
    text = resources.files(__package__).joinpath("schemas", f"{name}.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def validate(document: Any, name: str, where: str) -> None:
    """Check a document against a published schema.

    Raises:
        FormatError: names the field and what it should be.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema(name)).iter_errors(document))
    if error is not None:
        field_name = "/".join(str(part) for part in error.absolute_path) or "(top)"
        raise FormatError(f"{where}: field {field_name}: {error.message[:200]}")


def check_header(document: Any, path: Path, form: str, version: int) -> dict[str, Any]:
    """Refuse a document of another format or version.

    Raises:
        FormatError: not an object of that format.
        VersionError: a version this release does not read.
    """
    if not isinstance(document, dict) or document.get("format") != form:
        raise FormatError(f"{path}: expected a {form} document (its 'format' field says so)")
    found = document.get("version")
    if found != version:
        raise VersionError(
            f"{path}: {form} version {found!r} is not known; this release reads version {version}"
        )
    return document
