"""The few CUDA calls that measuring needs, by PyTorch: time marks in the stream, and spins."""

from __future__ import annotations

from typing import Any

__all__ = ["between_ns", "mark", "spin"]


def mark() -> Any:
    """A timing event recorded on the current stream now."""
    import torch

    make: Any = torch.cuda.Event  # PyTorch leaves it untyped
    event = make(enable_timing=True)
    event.record()
    return event


def between_ns(begin: Any, end: Any) -> float:
    """GPU time between two marks, of which the later has been reached."""
    return float(begin.elapsed_time(end)) * 1e6


def spin(cycles: int) -> None:
    """Queue a kernel of one thread that waits for so many cycles of its multiprocessor's clock."""
    import torch

    sleep: Any = torch.cuda._sleep
    sleep(cycles)
