"""Application of the rules for competing jobs to the input of a policy, whichever policy it is.

`contend` turns the input of a policy into one that keeps the rules. It adds a seat for each job that must
have slots (`guaranteed_jobs`), and a mask on sizes that must wait for evidence or for another job's turn
(`evidence`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from service.domain.allocation.knapsack.guaranteed_solve import with_guaranteed_jobs
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.contention.deadline_plan import DeadlinePlan, Deadlines
from service.domain.contention.deadlines import with_deadlines
from service.domain.contention.evidence import Evidence, unproven
from service.domain.contention.guaranteed_jobs import (
    GuaranteedJobs,
    Tenure,
    guaranteed_jobs_of,
    latest_turn_s,
)
from service.domain.contention.rate import at_rest, ending, keeping, not_repaid
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import kept
from service.domain.shared.arrays import BoolArray, FloatArray


@dataclass(frozen=True, kw_only=True)  # without slots=True, which rules out cached_property
class Contest:
    """The input of a policy under the rules, with the configurations that they forbid.

    Attributes:
        given: input of the policy, with seats.
        tenure: run times and waits of the jobs.
        seats: jobs that must have slots.
        unproven: (J, C) sizes that wait for free slots or for the end of another exploration.
        resting: (J, C) sizes to which a job at rest does not change (`rate`).
        reserved: (J,) jobs that may have nothing now, because slots are kept for the job `seats.reserving` or for
            jobs of higher priorities.
        deadlines: plan of the jobs with deadlines.
        due: (J,) jobs whose deadlines are guaranteed.
        too_late: (J, C) configurations that miss a guaranteed deadline.
    """

    given: RoundInput
    tenure: Tenure
    seats: GuaranteedJobs
    unproven: BoolArray
    resting: BoolArray
    reserved: BoolArray
    deadlines: DeadlinePlan
    due: BoolArray
    too_late: BoolArray

    @cached_property
    def latest_turn_s(self) -> FloatArray:
        """Return the upper bounds (J,) on the seconds until each waiting job's turn (`guaranteed_jobs`)."""
        return latest_turn_s(self.given, self.tenure, self.seats)

    def solver(self, solve: Solve) -> Solve:
        """Return a solver that gives each job with a seat one of its configurations."""
        return with_guaranteed_jobs(solve, self.seats.columns)


def contend(
    given: RoundInput,
    tenure: Tenure,
    evidence: Evidence,
    solve: Solve,
    deadlines: Deadlines | None = None,
) -> Contest:
    """Return the input of a policy under the rules for competing jobs."""
    if not given.allowed.size:
        return _nothing_to_share(given, tenure)
    rule = with_deadlines(given, deadlines, tenure)
    given, due = rule.given, rule.due
    seats = guaranteed_jobs_of(given, tenure, solve, due)
    # A guaranteed size needs no evidence, like one that a project is guaranteed.
    waits = unproven(given, replace(evidence, entitled=evidence.entitled | due), tenure, seats)
    reserved = np.zeros(len(given.current), dtype=np.bool_)
    if seats.reserving is not None:
        reserved = (given.current == NOTHING) & (seats.columns == NOTHING)
    barred = seats.barred & ~evidence.entitled & ~due
    rests = at_rest(given, tenure.recent_s) & ~due & ~barred
    resting = given.allowed & (not_repaid(given, rests) | (ending(given) & ~due[:, None]))
    leased = _leased(given, tenure) & ~due & ~barred
    keeps = keeping(given, (rests | leased) & ~tenure.forced, seats.columns)
    resting |= given.allowed & keeps[:, None] & _smaller(given)
    resting |= given.allowed & (keeps & leased)[:, None] & ~kept(given)
    reserved |= barred
    columns = np.where(keeps, given.current, seats.columns)
    # Seats fit only together: a job that may not take its own, on another kind too, would hold another job's.
    seated = np.flatnonzero(columns != NOTHING)
    waits[seated, columns[seated]] = resting[seated, columns[seated]] = False
    allowed = given.allowed & ~waits & ~resting & ~reserved[:, None]
    return Contest(
        given=replace(
            given, allowed=allowed, seats=columns, firm=seats.firm | keeps, next_turn=seats.next_turn
        ),
        tenure=tenure,
        seats=replace(seats, columns=columns, barred=barred),
        unproven=waits,
        resting=resting,
        reserved=reserved,
        deadlines=rule.plan,
        due=due,
        too_late=rule.too_late,
    )


def _nothing_to_share(given: RoundInput, tenure: Tenure) -> Contest:
    """Return the contest of a cluster without slots or without jobs."""
    nobody = np.zeros(len(given.current), dtype=np.bool_)
    nowhere = np.zeros_like(given.allowed)
    none = np.full(len(given.current), NOTHING, dtype=np.int64)
    seats = GuaranteedJobs(
        columns=none,
        firm=nobody,
        fit=True,
        reserving=None,
        smallest=none,
        barred=nobody,
        coming=none,
        next_turn=np.zeros(len(given.current), dtype=np.int64),
        turnless=nobody,
    )
    return Contest(
        given=given,
        tenure=tenure,
        seats=seats,
        unproven=nowhere,
        resting=nowhere,
        reserved=nobody,
        deadlines=DeadlinePlan(),
        due=nobody,
        too_late=nowhere,
    )


def _leased(given: RoundInput, tenure: Tenure) -> BoolArray:
    """Return the jobs (J,) with a lease. A change that the user or the job's own search asks for costs nothing."""
    if tenure.leased is None:
        return np.zeros(len(given.current), dtype=np.bool_)
    return np.asarray(tenure.leased & (given.current != NOTHING) & (given.change_s > 0) & ~tenure.forced)


def _smaller(given: RoundInput) -> BoolArray:
    """Return the configurations (J, C) with fewer slots than each job holds."""
    slots = given.configurations.slots
    return np.asarray(slots < slots[np.maximum(given.current, 0)][:, None])
