"""Dominance: cells no schedule needs, dropped before anything is solved.

State f of a row is dominated by state g if g is faster and cheaper by more than a switch there and
a switch back: whatever schedule uses f, going through g instead is no slower and no dearer. With
switches free this leaves each row its own Pareto set.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .instance import Instance
from .switch_cost import BIG

__all__ = ["prune"]

Array = NDArray[np.float64]

_MOST_CELLS = 4_000_000  # larger tables are not copied: fixing drops the same cells later


def prune(inst: Instance) -> Instance:
    """The instance with dominated cells at `BIG`, or as it was if its tables are very large."""
    if inst.time.size > _MOST_CELLS or inst.n_states < 2:
        return inst
    worst_ns, worst_mj = inst.stall.worst
    time, energy = inst.time.copy(), inst.energy.copy()
    _drop(
        time,
        energy,
        inst.idle if not inst.plain else np.zeros(inst.n_states),
        2 * worst_ns / float(inst.tscale.min()),
        2 * worst_mj / float(inst.escale.min()),
        np.argsort(inst.time, axis=1, kind="stable"),
    )
    return replace(inst, time=time, energy=energy)


@compiled()
def _drop(
    time: Array,
    energy: Array,
    idle: Array,
    margin_ns: float,
    margin_mj: float,
    order: NDArray[np.int64],
) -> None:
    for r in range(time.shape[0]):
        for i in range(time.shape[1]):
            f = order[r, i]
            t, e = time[r, f] - margin_ns, energy[r, f] - margin_mj
            if e >= BIG / 2:
                continue
            # States before f in the order are no slower; those dropped already (BIG) are skipped,
            # since what dominates them dominates f too.
            for j in range(i):
                g = order[r, j]
                if time[r, g] >= BIG / 2:
                    continue
                if time[r, g] > t:
                    break
                if energy[r, g] <= e and idle[g] <= idle[f]:
                    time[r, f] = energy[r, f] = BIG
                    break
