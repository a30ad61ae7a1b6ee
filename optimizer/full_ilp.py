"""The whole problem as one integer program: the reference the other way is compared with.

Nothing is pruned, bounded or fixed beforehand. Practical up to a few thousand cells.
"""

from __future__ import annotations

import numpy as np

from ..data.errors import InfeasibleError, InputError
from .deadline import Deadline
from .fixing import Network
from .ilp import Backend, run_ilp
from .ilp_model import Scale, flow_model, indicator_model, read_path
from .incumbent import Incumbent
from .instance import Instance, build_instance
from .problem import Problem
from .solution import Solution

__all__ = ["solve_full"]

_MOST_EDGES = 400_000  # beyond this the indicator form is used, where the cost allows it
_TRUST = 1e-9  # see restricted_ilp


def solve_full(problem: Problem, hold: Incumbent, deadline: Deadline, backend: Backend) -> Solution:
    """Solve by OR-tools alone.

    Raises:
        InputError: the program would be too large to hand over.
        InfeasibleError: the back end found no schedule within the limit, or there is none.
    """
    inst = build_instance(problem)
    net = _whole(inst)
    n = inst.n_blocks
    budget_ns = hold.budget_time_ns - inst.gap_ns
    scale = Scale(hold.budget_time_ns, problem.baseline_energy_mj)
    edges = int(np.diff(net.ptr)[0]) ** 2 * n
    if inst.stall.worst == (0.0, 0.0) or (edges > _MOST_EDGES and inst.stall.matrix is None):
        build = indicator_model
    elif edges <= 50 * _MOST_EDGES:
        build = flow_model
    else:
        raise InputError(
            f"the full integer program would have {edges} columns; use method auto, or fewer "
            "kernels or pairs"
        )
    bound = 0.0
    for tighter in (0.0, 1e-9, 1e-7):
        model = build(net, inst.stall, budget_ns * (1 - tighter), wrap=inst.cyclic, scale=scale)
        found = run_ilp(model, backend, deadline)
        if tighter == 0.0 and np.isfinite(found.bound):
            bound = found.bound * scale.energy_mj / scale.size * (1 - _TRUST)
        if found.x is None or hold.offer(inst.choice(read_path(net, found.x)), backend):
            break
    hold.prove(bound, f"full-ilp-{backend}")
    if hold.choice is None:
        raise InfeasibleError(
            f"{backend} found no schedule within the slowdown budget before the time limit; "
            "method auto says whether there is one"
        )
    return hold.solution(deadline)


def _whole(inst: Instance) -> Network:
    """Every cell of every block."""
    real = np.flatnonzero(inst.stall.pair >= 0).astype(np.int32)
    n = inst.n_blocks
    time, energy = inst.time[inst.row][:, real], inst.energy[inst.row][:, real]
    if not inst.plain:
        time = inst.tscale[:, None] * time
        energy = inst.escale[:, None] * energy + inst.hold[:, None] * inst.idle[real]
    ptr = np.arange(n + 1, dtype=np.int64) * len(real)
    return Network(0, None, ptr, np.tile(real, n), time.ravel(), energy.ravel())
