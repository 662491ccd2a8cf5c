"""Linear program of max-min fairness over shares of time."""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]  # ships no types

from service.domain.shared.arrays import FloatArray, NumberArray


def max_min_shares(value: FloatArray, slots: NumberArray, capacity: FloatArray) -> FloatArray:
    """Return the shares of time X (J, K) that maximise the least of sum_k value[j, k] * X[j, k] over jobs
    with any value.

    The shares of a job sum to at most 1, and slots[j, k] * X[j, k] over the jobs to at most capacity[k].
    `value` and `slots` are (J, K), `capacity` is (K,). Jobs without value have no share. If the solver fails,
    no job has a share.
    """
    shares = np.zeros(value.shape)
    fits = (value > 0) & (slots <= capacity[None, :])
    jobs, kinds = np.nonzero(fits)
    if not len(jobs):
        return shares
    solver = pywraplp.Solver.CreateSolver("GLOP")
    # The dual simplex is three times as fast as the primal one for 10,000 jobs.
    solver.SetSolverSpecificParametersAsString("use_dual_simplex:true")
    infinity = solver.infinity()
    least = solver.NumVar(0.0, infinity, "")
    scale = value[jobs, kinds].max()
    rows = {job: (solver.Constraint(0.0, infinity), solver.Constraint(0.0, 1.0)) for job in np.unique(jobs)}
    limits = [solver.Constraint(0.0, float(limit)) for limit in capacity]
    variables = []
    for job, kind in zip(jobs, kinds, strict=True):
        share = solver.NumVar(0.0, 1.0, "")
        worth, whole = rows[job]
        worth.SetCoefficient(share, float(value[job, kind] / scale))
        whole.SetCoefficient(share, 1.0)
        limits[kind].SetCoefficient(share, float(slots[job, kind]))
        variables.append(share)
    for worth, _ in rows.values():
        worth.SetCoefficient(least, -1.0)
    solver.Objective().SetCoefficient(least, 1.0)
    solver.Objective().SetMaximization()
    if solver.Solve() == pywraplp.Solver.OPTIMAL:
        shares[jobs, kinds] = np.clip([share.solution_value() for share in variables], 0.0, 1.0)
    return shares
