"""The child process of `ilp`: reads a model from standard input, writes the answer to output."""

from __future__ import annotations

import io
import os
import sys
from datetime import timedelta

import numpy as np

__all__ = ["main"]


def main() -> None:
    """Solve the model on standard input with the OR-tools back end it names."""
    from ortools.math_opt import model_pb2
    from ortools.math_opt.python import mathopt

    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as data:
        given = {name: data[name] for name in data.files}
    # Solvers print to the descriptor itself: keep it for the answer alone.
    out = os.dup(1)
    os.dup2(2, 1)
    n, rows = len(given["cost"]), len(given["low"])
    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(n))
    proto.variables.lower_bounds.extend([0.0] * n)
    proto.variables.upper_bounds.extend([1.0] * n)
    proto.variables.integers.extend(given["integer"].tolist())
    used = np.flatnonzero(given["cost"])
    proto.objective.linear_coefficients.ids.extend(used.tolist())
    proto.objective.linear_coefficients.values.extend(given["cost"][used].tolist())
    proto.linear_constraints.ids.extend(range(rows))
    proto.linear_constraints.lower_bounds.extend(given["low"].tolist())
    proto.linear_constraints.upper_bounds.extend(given["high"].tolist())
    proto.linear_constraint_matrix.row_ids.extend(given["row"].tolist())
    proto.linear_constraint_matrix.column_ids.extend(given["column"].tolist())
    proto.linear_constraint_matrix.coefficients.extend(given["value"].tolist())
    model = mathopt.Model.from_model_proto(proto)
    kind = {
        "highs": mathopt.SolverType.HIGHS,
        "cpsat": mathopt.SolverType.CP_SAT,
        "scip": mathopt.SolverType.GSCIP,
    }[str(given["backend"])]
    result = mathopt.solve(
        model,
        kind,
        params=mathopt.SolveParameters(
            time_limit=timedelta(seconds=float(given["limit_s"])),
            relative_gap_tolerance=1e-9,
            # Only CP-SAT takes a number of threads; its search is the one that wants several.
            threads=int(given["threads"]) if kind == mathopt.SolverType.CP_SAT else None,
            random_seed=0,
        ),
    )
    x = np.empty(0)
    if result.has_primal_feasible_solution():
        x = np.array(result.variable_values(list(model.variables())))
    answer = io.BytesIO()
    np.savez(answer, x=x, bound=np.array(result.termination.objective_bounds.dual_bound))
    with os.fdopen(out, "wb") as stream:
        stream.write(answer.getvalue())


if __name__ == "__main__":
    main()
