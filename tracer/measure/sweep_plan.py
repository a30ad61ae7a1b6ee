"""Which clock pairs to measure, and when to stop: a sweep that fits in minutes.

The planner asks for one pair at a time, the one whose measurement leaves the least uncertainty over
all pairs, and stops once the stated error of what it predicts is small enough, or its allowance of
pairs is spent. What has been measured can be given back to it, so an interrupted sweep resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...data.errors import InputError
from ...data.units import ClockPair
from .response import Prediction, ResponseModel

__all__ = ["Cells", "SweepPlan"]

Floats = npt.NDArray[np.float64]

# Two pairs give a slope and nothing to check it with; the third is the first that can disagree.
_LEAST_PAIRS = 3


@dataclass(frozen=True)
class Cells:
    """What was measured at one pair: time_ns (S,) and energy_mj (S,)."""

    time_ns: Floats
    energy_mj: Floats


class SweepPlan:
    """A sweep under way over ``pairs``.

    Attributes:
        pairs: F locked pairs.
        target_error: stop when the stated median error of the predictions is at most this.
        most_pairs: stop after so many pairs in any case.
    """

    def __init__(
        self,
        pairs: Sequence[ClockPair],
        *,
        target_error: float = 0.02,
        most_pairs: int | None = None,
        exhaustive: bool = False,
        measured: Mapping[ClockPair, Cells] | None = None,
    ) -> None:
        """Plan a sweep.

        Args:
            pairs: F locked pairs, each once.
            target_error: relative, over 0.
            most_pairs: allowance; a quarter of the pairs (at least 3) by default.
            exhaustive: measure every pair.
            measured: cells of an interrupted sweep.

        Raises:
            InputError: no pairs, a pair twice, an allowance or error without sense.
        """
        if not pairs or len(set(pairs)) != len(pairs):
            raise InputError("a sweep needs clock pairs, each once")
        if not target_error > 0:
            raise InputError(f"the target error must be over 0, got {target_error}")
        if most_pairs is not None and most_pairs < 1:
            raise InputError(f"a sweep must be allowed at least one pair, got {most_pairs}")
        self.pairs = tuple(pairs)
        self.target_error = target_error
        quarter = max(_LEAST_PAIRS, len(self.pairs) // 4)
        self.most_pairs = min(quarter if most_pairs is None else most_pairs, len(self.pairs))
        self._exhaustive = exhaustive
        self._model = ResponseModel(self.pairs)
        self._cells: dict[int, Cells] = {}
        self._prediction: Prediction | None = None
        for pair, cells in (measured or {}).items():
            self.add(pair, cells)

    @property
    def measured(self) -> tuple[ClockPair, ...]:
        """Pairs measured so far, in the order they came."""
        return tuple(self.pairs[row] for row in self._cells)

    def next_pair(self) -> ClockPair | None:
        """The pair to measure next, or None when the sweep is done."""
        count = len(self._cells)
        if count == len(self.pairs):
            return None
        if self._exhaustive:
            return next(pair for row, pair in enumerate(self.pairs) if row not in self._cells)
        if count >= self.most_pairs:
            return None
        if count >= _LEAST_PAIRS and self.predict().median_error <= self.target_error:
            return None
        return self.pairs[self._model.next_pair(list(self._cells), *self._measured_cells())]

    def _measured_cells(self) -> tuple[Floats, Floats] | tuple[()]:
        """(S, M) time and energy; nothing before the first pair."""
        if not self._cells:
            return ()
        cells = self._cells.values()
        return (
            np.stack([each.time_ns for each in cells], axis=1),
            np.stack([each.energy_mj for each in cells], axis=1),
        )

    def add(self, pair: ClockPair, cells: Cells) -> None:
        """Take in what was measured at ``pair``.

        Raises:
            InputError: not a pair of the sweep, or another number of kernels than before.
        """
        if pair not in self.pairs:
            raise InputError(f"{pair!s} is not a pair of this sweep")
        earlier = next(iter(self._cells.values()), None)
        if earlier is not None and earlier.time_ns.shape != cells.time_ns.shape:
            raise InputError(
                f"{len(cells.time_ns)} kernels were measured at {pair!s}, "
                f"{len(earlier.time_ns)} at the pairs before: the step has changed"
            )
        self._cells[self.pairs.index(pair)] = cells
        self._prediction = None

    def predict(self) -> Prediction:
        """Every pair, measured or predicted.

        Raises:
            InputError: nothing is measured yet.
        """
        if not self._cells:
            raise InputError("nothing is measured yet")
        if self._prediction is None:
            self._prediction = self._model.predict(list(self._cells), *self._measured_cells())
        return self._prediction
