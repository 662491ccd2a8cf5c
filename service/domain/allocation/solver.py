"""Solve the allocation problem exactly with CP-SAT."""

from __future__ import annotations

from ortools.sat.python import cp_model

from service.domain.allocation.problem import Configuration, Problem, Solution

_UTILITY_SCALE = 10_000_000
"""CP-SAT is an integer solver: utilities are rounded to this many parts of one."""


def solve(problem: Problem, *, time_limit_s: float) -> Solution:
    """The best choice for every job; the same problem always gives the same answer.

    When the time limit ends the search first, the best choice found is returned with its bound; when
    none was found, nobody gets anything and the status says so.
    """
    model = cp_model.CpModel()
    taken: dict[str, list[tuple[cp_model.IntVar, Configuration]]] = {}
    for job in sorted(problem.configurations):
        rows = [
            (model.new_bool_var(f"{job}/{row.device_kind}/{row.slots}"), row)
            for row in problem.configurations[job]
        ]
        model.add_at_most_one(choice for choice, _ in rows)
        taken[job] = rows
    choices = [(choice, row, job) for job, rows in taken.items() for choice, row in rows]
    for kind, capacity in problem.capacity.items():
        demands = [choice * row.demand for choice, row, _ in choices if row.device_kind == kind]
        if demands:
            model.add(sum(demands) <= capacity)
    idle = sum(problem.idle_utility.get(job, 0.0) for job in taken)
    gains = [
        choice * round((row.utility - problem.idle_utility.get(job, 0.0)) * _UTILITY_SCALE)
        for choice, row, job in choices
    ]
    model.maximize(sum(gains))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = time_limit_s
    solver.parameters.max_time_in_seconds = 10 * time_limit_s
    status = solver.solve(model)
    found = status in {cp_model.OPTIMAL, cp_model.FEASIBLE}
    chosen = {
        job: next((row for choice, row in rows if found and solver.value(choice)), None)
        for job, rows in taken.items()
    }
    return Solution(
        chosen=chosen,
        objective=idle + (solver.objective_value / _UTILITY_SCALE if found else 0.0),
        bound=idle + solver.best_objective_bound / _UTILITY_SCALE,
        status=solver.status_name(status),
    )
