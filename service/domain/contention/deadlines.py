"""Deadlines as a rule for competing jobs: the sizes that meet them are guaranteed (`deadline_plan`).

A guaranteed job may have only configurations whose P90 finish meets its deadline. The smallest of them is its
minimum, which precedes waiting jobs and the surplus of running ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.deadline_plan import (
    DeadlinePlan,
    Deadlines,
    Occupancy,
    PlannedRun,
    plan_deadlines,
)
from service.domain.contention.guaranteed_jobs import Tenure, smallest_columns
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import kind_capacity
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

MARGIN = 1.05
"""Factor on the P90 time at a size below the present one, so that estimates that vary do not move a job up and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineRule:
    """Effect of deadlines on the input of a policy.

    Attributes:
        given: the input, in which guaranteed jobs have only configurations that meet their deadlines.
        plan: runs that end in time, and misses.
        due: (J,) jobs with a guaranteed size.
        too_late: (J, C) configurations that are excluded because of a deadline.
    """

    given: RoundInput
    plan: DeadlinePlan
    due: BoolArray
    too_late: BoolArray


def with_deadlines(given: RoundInput, deadlines: Deadlines | None, tenure: Tenure) -> DeadlineRule:
    """Return the input of a policy under the deadlines of its jobs, with the minimum run times of `tenure`."""
    due = np.zeros(len(given.current), dtype=np.bool_)
    nowhere = np.zeros_like(given.allowed)
    if deadlines is None or not given.allowed.size or not np.isfinite(deadlines.left_s).any():
        return DeadlineRule(given=given, plan=DeadlinePlan(), due=due, too_late=nowhere)
    slots = given.configurations.slots
    occupancy = Occupancy(
        rows=given.rows,
        slots=slots,
        current=given.current,
        smallest=smallest_columns(given),
        run_s=tenure.run_s,
        stays_s=_stays_s(given, tenure),
        age_s=given.age_s,
    )
    deadlines = _steadied(given, deadlines)
    plan = plan_deadlines(deadlines, occupancy)
    allowed = given.allowed.copy()
    for row, run in plan.met.items():
        if run.start_s > 0 or deadlines.visiting[row]:
            continue
        meets = _meeting(given, deadlines, row, run)
        if meets.any():
            allowed[row], due[row] = meets, True
    kept = replace(given, allowed=allowed)
    return DeadlineRule(
        given=replace(kept, requested_slots=_requested(kept, due)),
        plan=plan,
        due=due,
        too_late=given.allowed & ~allowed,
    )


def _stays_s(given: RoundInput, tenure: Tenure) -> FloatArray:
    """Return the seconds (J,) for which each running job may not be vacated for another one's deadline.

    They are the rest of its minimum run time, and infinite at a size that its user has fixed.
    """
    rest_s = np.where(tenure.pinned, np.inf, np.maximum(tenure.min_run_s - tenure.run_s, 0.0))
    return np.where((given.current != NOTHING) & ~tenure.forced, rest_s, 0.0)


def _requested(given: RoundInput, due: BoolArray) -> IntArray:
    """Return the size (J,) of each job for policies that know one: the smallest that meets a guaranteed deadline.

    If the sizes do not fit together then, that of every other job is its smallest.
    """
    slots, requested = given.configurations.slots, given.requested_slots.copy()
    smallest = smallest_columns(given)
    least = np.where(smallest != NOTHING, slots[smallest], requested)
    requested[due] = least[due]
    if due.any() and requested.sum() > kind_capacity(given).sum():
        requested[~due] = np.minimum(requested, least)[~due]
    return requested


def _steadied(given: RoundInput, deadlines: Deadlines) -> Deadlines:
    """Return the deadlines with the margin on the sizes below the present one of each job."""
    slots, holds = given.configurations.slots, given.current != NOTHING
    smaller = holds[:, None] & (slots < slots[given.current][:, None])
    return replace(deadlines, late_s=deadlines.late_s * np.where(smaller, MARGIN, 1.0))


def _meeting(given: RoundInput, deadlines: Deadlines, row: int, run: PlannedRun) -> BoolArray:
    """Return the configurations (C,) that a planned job may have now: those that meet its deadline.

    While it may not change to one of them yet, the result is the fastest one on the way to the planned one.
    """
    slots, late_s = given.configurations.slots, deadlines.late_s[row]
    may = deadlines.may[row] & np.isfinite(late_s)
    in_time = late_s <= deadlines.left_s[row]
    if (may & in_time).any():
        return np.asarray(may & in_time)
    may &= slots <= slots[run.column]
    fastest = np.where(may, late_s, np.inf).min(initial=np.inf)
    return np.asarray(may & (late_s <= fastest))
