"""Caps on dollars per hour and on a project's slots: jobs shrink before any job is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.cluster.snapshot import BUDGET_ROWS, QUOTA_ROWS
from service.domain.policies.framework.policy import Choices, Policy, RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_ROUNDS = 8
"""Maximum number of repetitions of the policy, since jobs that are kept may cause others to be stopped."""
_ROUNDING = 1e-9


def choose_within_caps(given: RoundInput, policy: Policy, solve: Solve) -> Choices:
    """Return the policy's choices, adjusted so that caps alone stop as few running jobs as possible.

    A running job that would be stopped by caps alone keeps the cheapest configuration that it could have. The
    other jobs share the rest. If even that exceeds a cap, jobs are stopped, those of the least weight first.
    """
    first = policy.choose(given, solve)
    capped = np.array([row.name.startswith((BUDGET_ROWS, QUOTA_ROWS)) for row in given.rows], dtype=np.bool_)
    choices, kept = first, dict[int, int]()
    for _ in range(_ROUNDS if capped.any() else 0):
        more = _stopped(given, capped, first, choices.chosen, kept)
        if not more:
            break
        kept |= more
        choices = joined(first, policy.choose(without(given, kept), solve), kept)
    return choices


def _stopped(
    given: RoundInput, capped: BoolArray, first: Choices, chosen: IntArray, kept: Mapping[int, int]
) -> dict[int, int]:
    """Return the running jobs that only caps stop, each with the cheapest column that it could have.

    Jobs are included in descending order of weight, as far as the caps allow. A heavier job that the policy
    does not stop comes before them with its cheapest column, so that a lighter job never takes its place.
    """
    running = np.flatnonzero(given.current >= 0)
    if (chosen[running] != NOTHING).all():
        return {}
    left = left_by(given, chosen)
    bears = left_by(given, only(chosen, kept))
    more: dict[int, int] = {}
    for job in sorted(
        running[~np.isin(running, list(kept))].tolist(), key=lambda job: (-given.weight[job], job)
    ):
        stopped = bool(chosen[job] == NOTHING)
        may = np.flatnonzero(given.allowed[job] & np.isfinite(first.utility[job]))
        counts = np.array([row.jobs is None or bool(row.jobs[job]) for row in given.rows], dtype=np.bool_)
        demand = np.array([row.demand[may] for row in given.rows]).reshape(len(given.rows), len(may))
        own = np.array([0.0 if stopped else float(row.demand[chosen[job]]) for row in given.rows]) * counts
        fits = demand <= (left + own)[:, None] + _ROUNDING
        by_slots = fits[counts & ~capped].all(axis=0)
        if not by_slots.any() or (stopped and (fits[counts & capped].all(axis=0) & by_slots).any()):
            continue
        usd_per_h, slots = given.configurations.usd_per_h[may], given.configurations.slots[may]
        cheapest = int(np.lexsort((slots, np.where(by_slots, usd_per_h, np.inf)))[0])
        takes = np.where(counts, demand[:, cheapest], 0.0)
        if (takes[capped] <= bears[capped] + _ROUNDING).all():
            bears = bears - takes
            if stopped:
                more[job] = int(may[cheapest])
                left = left - takes
    return more


def only(chosen: IntArray, kept: Mapping[int, int]) -> IntArray:
    """Return the choices (J,) of the jobs that are kept, and `NOTHING` for the others."""
    only = np.full_like(chosen, NOTHING)
    for job, column in kept.items():
        only[job] = column
    return only


def left_by(given: RoundInput, chosen: IntArray) -> FloatArray:
    """Return the capacity (R,) of the rows that the choices leave."""
    return np.array([row.capacity - row.taken(chosen) for row in given.rows])


def without(given: RoundInput, kept: Mapping[int, int]) -> RoundInput:
    """Return the round for the other jobs, with the remaining capacity."""
    allowed = given.allowed.copy()
    allowed[list(kept)] = False
    left = left_by(given, only(given.current, kept))
    rows = tuple(
        replace(row, capacity=max(0.0, capacity))
        for row, capacity in zip(given.rows, left.tolist(), strict=True)
    )
    return replace(given, rows=rows, allowed=allowed)


def joined(first: Choices, others: Choices, kept: Mapping[int, int]) -> Choices:
    """Return the choices of the kept jobs and of all others as one."""
    rows, columns = np.array(list(kept)), np.array(list(kept.values()))
    chosen, utility, idle = others.chosen.copy(), others.utility.copy(), others.idle.copy()
    chosen[rows], utility[rows], idle[rows] = columns, first.utility[rows], first.idle[rows]
    # The utility of a column that the policy would never choose is unknown.
    utility_s = first.utility[rows, columns]
    worth = float((np.where(np.isfinite(utility_s), utility_s, first.idle[rows]) - others.idle[rows]).sum())
    solution = others.solution
    return replace(
        others,
        chosen=chosen,
        utility=utility,
        idle=idle,
        solution=replace(
            solution, chosen=chosen, objective=solution.objective + worth, bound=solution.bound + worth
        ),
    )
