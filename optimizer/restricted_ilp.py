"""The integer program on what fixing leaves: HiGHS on a network of a few thousand cells."""

from __future__ import annotations

from .deadline import Deadline
from .fixing import Network
from .ilp import Backend, run_ilp
from .ilp_model import Scale, flow_model, indicator_model, read_path
from .incumbent import Incumbent
from .instance import Instance

__all__ = ["solve_network"]

# Back ends compute in floating point, to about 1e-9: their bounds are lowered by this share.
_TRUST = 1e-9


def solve_network(
    inst: Instance,
    net: Network,
    hold: Incumbent,
    budget_ns: float,
    deadline: Deadline,
    backend: Backend = "highs",
) -> float:
    """A bound on every walk of the network, in mJ; a better schedule goes to ``hold``.

    A proposal over the exact budget is not taken, and asked for again under a budget a little
    tighter.
    """
    bound = float("-inf")
    build = indicator_model if inst.stall.worst == (0.0, 0.0) else flow_model
    for tighter in (0.0, 1e-9, 1e-7):
        limit_ns = budget_ns * (1 - tighter)
        scale = Scale(budget_ns, hold.energy_mj)
        found = run_ilp(
            build(net, inst.stall, limit_ns, wrap=False, scale=scale), backend, deadline
        )
        if tighter == 0.0:
            bound = found.bound * hold.energy_mj / scale.size
            bound -= _TRUST * abs(bound)
        if found.x is None:
            return bound
        path = read_path(net, found.x)
        if hold.offer(inst.choice(path), "ilp") or inst.total(path)[0] <= limit_ns:
            return bound
    return bound
