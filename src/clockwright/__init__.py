"""clockwright: trace GPU kernels, choose their clocks, replay and verify the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    # At run time this is the package of that name, which can be called.
    from .replay.session import replay

__all__ = ["__version__", "replay"]


def __getattr__(name: str) -> Any:
    if name == "replay":
        from importlib import import_module

        return import_module(f"{__name__}.replay")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
