"""Which kernels of a step at one clock are which at another: by signature and order.

Libraries may choose another algorithm at another clock (autotuners do). Such a kernel is another
signature: it is named, its cell stays unknown at that pair, and it is never merged with the one it
stands in for.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from ...data.errors import WorkloadError
from ...data.sequence import KernelSequence, sequence_of
from ...data.trace import Trace

__all__ = ["Alignment", "align"]

Ints = npt.NDArray[np.int64]

# Below this share of common kernels it is another step, not another algorithm here and there.
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class Alignment:
    """How one measurement's signatures map to the baseline's.

    Attributes:
        rows: (S,) the measurement's signature for each of the baseline's; -1 where some launch of
            it has no partner.
        difference: the first difference, a sentence; None if the steps are equal.
    """

    rows: Ints
    difference: str | None

    @property
    def unknown(self) -> int:
        """How many of the baseline's signatures have no partner."""
        return int((self.rows < 0).sum())


def align(base: Trace, other: Trace, where: str) -> Alignment:
    """Match a measurement at another pair with the baseline's.

    Args:
        base: the step at the baseline.
        other: the step at another pair.
        where: that pair, for messages.

    Raises:
        WorkloadError: the steps have less than half their kernels in common.
    """
    ours = sequence_of(base.timeline, base.signatures)
    theirs = sequence_of(other.timeline, other.signatures)
    theirs_at = other.timeline["signature"].to_numpy(dtype=np.int64)
    ours_at = base.timeline["signature"].to_numpy(dtype=np.int64)
    partner = _partners(ours, theirs)
    if (partner >= 0).mean() < _LEAST_SHARE:
        raise WorkloadError(
            f"at {where} the step launches {len(theirs)} kernels of which fewer than half are "
            f"among the {len(ours)} of the baseline: {_difference(ours, theirs, partner)}; the "
            "step has changed: give it batches of one shape"
        )
    rows = np.full(len(base.signatures), -1, dtype=np.int64)
    known = partner >= 0
    rows[ours_at[known]] = theirs_at[partner[known]]
    rows[ours_at[~known]] = -1
    if known.all() and len(ours) == len(theirs):
        return Alignment(rows, None)
    return Alignment(rows, f"at {where} {_difference(ours, theirs, partner)}")


def _partners(ours: KernelSequence, theirs: KernelSequence) -> Ints:
    """(K,) position in the other sequence of each of our kernels; -1 for none."""
    if ours.fingerprint == theirs.fingerprint:
        return np.arange(len(ours), dtype=np.int64)
    number = {text: i for i, text in enumerate(ours.texts)}
    mapped = [number.setdefault(text, len(number)) for text in theirs.texts]
    other = [mapped[i] for i in theirs.order]
    partner = np.full(len(ours), -1, dtype=np.int64)
    matcher = SequenceMatcher(None, ours.order, other, autojunk=False)
    for block in matcher.get_matching_blocks():
        span = np.arange(block.size)
        partner[block.a + span] = block.b + span
    return partner


def _difference(ours: KernelSequence, theirs: KernelSequence, partner: Ints) -> str:
    missing = np.flatnonzero(partner < 0)
    if not len(missing):
        return f"the step launches {len(theirs) - len(ours)} kernels more than at the baseline"
    at = int(missing[0])
    place = int(partner[at - 1]) + 1 if at else 0
    return f"kernel {at} is {theirs.describe(place)}, where the baseline has {ours.describe(at)}"
