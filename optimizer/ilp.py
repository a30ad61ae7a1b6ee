"""Integer programs through OR-tools, each in a child process that can be killed.

HiGHS has been seen to overrun its own time limit several times over and native code cannot be
interrupted, so the model goes to a fresh interpreter as arrays, and comes back as arrays or not at
all. What a back end calls optimal is only a proposal: schedules over the budget have come back
"optimal", so callers let the certificate decide.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .deadline import Deadline

__all__ = ["Backend", "LinearModel", "Outcome", "run_ilp"]

Array = NDArray[np.float64]
Backend = Literal["highs", "cpsat", "scip"]

_START_S = 1.5  # an interpreter with OR-tools takes about this to start


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Minimise cost @ x with 0 <= x <= 1 and low <= A @ x <= high.

    Attributes:
        cost: (V,) objective.
        integer: (V,) bool, whether x must be 0 or 1.
        row: (Z,) int64 row of each entry of A, ascending.
        column: (Z,) int64 column, ascending within a row.
        value: (Z,) the entries.
        low: (M,) lower limits of the rows.
        high: (M,) upper limits.
    """

    cost: Array
    integer: NDArray[np.bool_]
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    value: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a back end gave back: a lower bound (minus infinity if none) and a point or None."""

    bound: float
    x: Array | None


def run_ilp(model: LinearModel, backend: Backend, deadline: Deadline, threads: int = 2) -> Outcome:
    """Solve a model within the deadline; nothing in hand once it has passed is not an error."""
    left_s = deadline.left_s - _START_S
    if left_s <= 0.5:
        return Outcome(-np.inf, None)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        allow_pickle=False,
        cost=model.cost,
        integer=model.integer,
        row=model.row,
        column=model.column,
        value=model.value,
        low=model.low,
        high=model.high,
        backend=np.array(backend),
        limit_s=np.array(left_s - 0.3),
        threads=np.array(threads),
    )
    # The child must find this very package, however the parent found it.
    root = str(Path(__file__).parents[1].parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", __package__ + ".ilp_worker"],
            input=buffer.getvalue(),
            capture_output=True,
            timeout=deadline.left_s,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(-np.inf, None)
    if done.returncode < 0:  # killed, by the memory limit for one
        return Outcome(-np.inf, None)
    if done.returncode > 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(f"{backend} failed: {said[-1] if said else 'no message'}")
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as answer:
        x = answer["x"]
        return Outcome(float(answer["bound"]), x if x.size else None)
