"""What one profiled step launched, as a sequence of launch signatures.

Replay compares the step that runs with the scheduled one through this. Left out: times and marks,
which `timeline` reads; a profile with the kernels of several GPUs is refused.
"""

from __future__ import annotations

from pathlib import Path

from ...data.errors import WorkloadError
from ...data.sequence import KernelSequence, sequence_of
from ..importers import import_file

__all__ = ["sequence_of_profile"]


def sequence_of_profile(path: Path) -> KernelSequence:
    """The kernels of a profile that ``torch.profiler`` exported, in the order of their launches.

    Raises:
        FormatError: the file is damaged or holds no kernel.
        WorkloadError: it holds the kernels of several GPUs.
    """
    traces = list(import_file(path, baseline="governor").traces.values())
    if len(traces) != 1:
        raise WorkloadError(
            f"the profiled step holds the kernels of {len(traces)} GPUs; expected one"
        )
    return sequence_of(traces[0].timeline, traces[0].signatures)
