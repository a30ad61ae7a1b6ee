"""clockwright: trace GPU kernels, choose their clocks, replay and verify the schedule."""

from ._version import __version__

__all__ = ["__version__"]
