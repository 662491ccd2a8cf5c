"""Solve the allocation problem exactly with CP-SAT, and never come back with nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortools.sat.python import cp_model

from service.domain.allocation.problem import Configuration, Problem, Solution

_UTILITY_SCALE = 10_000_000
"""CP-SAT is an integer solver: utilities are rounded to this many parts of one."""
_WORK_PER_S = 5.0
"""CP-SAT's units of deterministic work in a second, about; presolving alone takes 2 for 300 jobs of 64 sizes."""

_Gains = Mapping[str, Sequence[tuple[Configuration, int]]]
"""Job id to the configurations worth more than having nothing, and by how many parts of utility."""


def solve(problem: Problem, *, time_limit_s: float) -> Solution:
    """The best choice for every job; the same problem always gives the same answer.

    When the limit ends the search first, the answer is the better of the best choice found and a
    greedy one: a cluster must not stand empty because its queue is long.
    """
    gains = _prune(_worthwhile(problem), problem.capacity)
    chosen = _greedy(gains, problem.capacity)
    model = cp_model.CpModel()
    choices = [
        (model.new_bool_var(f"{job}/{row.device_kind}/{row.slots}"), job, row, gain)
        for job, rows in gains.items()
        for row, gain in rows
    ]
    of_job: dict[str, list[cp_model.IntVar]] = {job: [] for job in gains}
    for choice, job, _, _ in choices:
        of_job[job].append(choice)
    for alternatives in of_job.values():
        model.add_at_most_one(alternatives)
    for kind, capacity in problem.capacity.items():
        model.add(
            sum(choice * row.demand for choice, _, row, _ in choices if row.device_kind == kind) <= capacity
        )
    model.maximize(sum(choice * gain for choice, _, _, gain in choices))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = _WORK_PER_S * time_limit_s
    solver.parameters.max_time_in_seconds = 10 * time_limit_s
    status = solver.solve(model)
    best = sum(gain for _, gain in chosen.values())
    bound = sum(max(gain for _, gain in rows) for rows in gains.values())
    if status in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        bound = min(bound, round(solver.best_objective_bound))
        if solver.objective_value > best:
            chosen = {job: (row, gain) for choice, job, row, gain in choices if solver.value(choice)}
            best = sum(gain for _, gain in chosen.values())
    idle = sum(problem.idle_utility.get(job, 0.0) for job in problem.configurations)
    return Solution(
        chosen={job: chosen[job][0] if job in chosen else None for job in problem.configurations},
        objective=idle + best / _UTILITY_SCALE,
        bound=idle + bound / _UTILITY_SCALE,
        status=solver.status_name(status),
    )


def _worthwhile(problem: Problem) -> _Gains:
    """What may be chosen at all: it fits, is worth more than nothing, and is the job's best of its kind and
    demand. Jobs in the order of their ids.
    """
    gains: dict[str, list[tuple[Configuration, int]]] = {}
    for job in sorted(problem.configurations):
        idle = problem.idle_utility.get(job, 0.0)
        best: dict[tuple[str, int], tuple[Configuration, int]] = {}
        for row in problem.configurations[job]:
            gain = round((row.utility - idle) * _UTILITY_SCALE)
            fits = row.demand <= problem.capacity.get(row.device_kind, 0)
            before = best.get((row.device_kind, row.demand))
            if fits and gain > (before[1] if before is not None else 0):
                best[row.device_kind, row.demand] = (row, gain)
        if best:
            gains[job] = list(best.values())
    return gains


def _prune(gains: _Gains, capacity: Mapping[str, int]) -> _Gains:
    """The same problem without rows that no best choice needs; nothing is lost by it.

    At most `most` jobs can get something. So of all rows with one kind and demand only the `most`
    best matter: whoever held a worse one could be replaced by an idle job that has a better one.
    """
    without_demand = sum(1 for rows in gains.values() if any(row.demand == 0 for row, _ in rows))
    most = sum(capacity.values()) + without_demand
    groups: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for job, rows in gains.items():
        for row, gain in rows:
            groups.setdefault((row.device_kind, row.demand), []).append((-gain, job))
    keep = {group: set(sorted(members)[:most]) for group, members in groups.items()}
    pruned = {
        job: [
            (row, gain)
            for row, gain in rows
            if row.demand == 0 or (-gain, job) in keep[row.device_kind, row.demand]
        ]
        for job, rows in gains.items()
    }
    return {job: rows for job, rows in pruned.items() if rows}


def _greedy(gains: _Gains, capacity: Mapping[str, int]) -> dict[str, tuple[Configuration, int]]:
    """A choice that fits: rows by gain per slot, a job's later rows as upgrades of its earlier one."""
    left = dict(capacity)
    chosen: dict[str, tuple[Configuration, int]] = {}
    rows = [(job, row, gain) for job, rows in gains.items() for row, gain in rows]
    for job, row, gain in sorted(
        rows, key=lambda one: (-one[2] / max(one[1].demand, 1), one[0], one[1].slots)
    ):
        before = chosen.get(job)
        if before is not None and gain <= before[1]:
            continue
        own = before[0].demand if before is not None and before[0].device_kind == row.device_kind else 0
        if row.demand > left[row.device_kind] + own:
            continue
        if before is not None:
            left[before[0].device_kind] += before[0].demand
        left[row.device_kind] -= row.demand
        chosen[job] = (row, gain)
    return chosen
