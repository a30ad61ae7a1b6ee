"""Which rank this process is, and which schedule file is its own.

``torchrun`` (and most launchers) say so in the environment. A schedule named ``S.json`` is shared
by all ranks; one named ``S-{rank}.json`` or ``S-{local_rank}.json`` is each rank's own. Each rank
drives the clocks of the GPU its model is on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..data.errors import InputError

__all__ = ["local_rank", "rank", "schedule_path", "world_size"]


def _number(name: str, default: int, environment: Mapping[str, str]) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise InputError(f"{name} must be a whole number, got {text!r}")
    return int(text)


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process among all; 0 without a launcher."""
    return _number("RANK", 0, environment)


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process on its host; 0 without a launcher."""
    return _number("LOCAL_RANK", 0, environment)


def world_size(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes there are; 1 without a launcher."""
    return _number("WORLD_SIZE", 1, environment)


def schedule_path(path: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The schedule file of this rank.

    Raises:
        InputError: RANK or LOCAL_RANK is no number.
    """
    text = str(path)
    text = text.replace("{rank}", str(rank(environment)))
    return Path(text.replace("{local_rank}", str(local_rank(environment))))
