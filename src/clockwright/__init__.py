"""clockwright: trace GPU kernels, choose their clocks, replay and verify the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    # At run time `replay` is the package of that name, which can be called.
    from .replay.session import replay
    from .tracer.recording.recorder import trace

__all__ = ["__version__", "replay", "trace"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "replay":
        return import_module(f"{__name__}.replay")
    if name == "trace":
        return import_module(f"{__name__}.tracer.recording.recorder").trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
