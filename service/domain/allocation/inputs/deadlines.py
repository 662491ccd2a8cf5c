"""Translation of a round's jobs into the deadlines that its rules keep (`contention.deadlines`)."""

from __future__ import annotations

import numpy as np

from headway.contract.views.forecasts import SearchPhase
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.inputs.estimates import Estimates
from service.domain.allocation.inputs.notes import Note, Notes
from service.domain.allocation.inputs.searching import Searches
from service.domain.allocation.limits.spending import worth_of_a_sample
from service.domain.allocation.limits.tenancy import Tenancy
from service.domain.contention.costs import change_s, restart_s
from service.domain.contention.deadline_plan import Deadlines
from service.domain.perf.forecast import forecast, remaining_of
from service.domain.shared.arrays import FloatArray

_NEVER = (
    Note.NOT_ALLOWED,
    Note.OVER_BUDGET,
    Note.DEADLINE,
    Note.OTHER_MARKET,
    Note.NO_MEMORY,
    Note.BACK_OFF,
    Note.UNKNOWN_RESUME,
)
"""Exclusions that a deadline does not override."""
_NOW = (Note.OFFERED, Note.CURRENT, Note.NO_GAIN, Note.NOT_WORTH_IT, Note.MAY_NOT_LAST)
"""Configurations that a job may change to for its deadline; a small gain may be what it lacks."""


def deadlines_of(
    scope: RoundScope, estimates: Estimates, notes: Notes, search: Searches, tenancy: Tenancy
) -> Deadlines | None:
    """Return the deadlines of a round; None if no job has one.

    Slots that other projects claim for their guarantees are no capacity for a deadline.
    """
    goals = [job.spec.goal for job in scope.jobs]
    if not any(goal.deadline is not None for goal in goals):
        return None
    steps = search.steps
    left_s = [job.deadline_left_s(scope.snapshot.now) for job in scope.jobs]
    visiting = [job.id in steps and steps[job.id].phase is SearchPhase.VISITING for job in scope.jobs]
    reachable = ~np.isin(notes.codes, _NEVER)
    return Deadlines(
        left_s=np.array(left_s, dtype=np.float64),
        late_s=np.where(reachable, late_s_of(scope, estimates), np.inf),
        may=np.isin(notes.codes, _NOW),
        promised=np.array([goal.admit == "reject" for goal in goals], dtype=np.bool_),
        visiting=np.array(visiting, dtype=np.bool_),
        priority=np.array([float(job.spec.priority) for job in scope.jobs]),
        rows=tuple(claim.lent for claim in tenancy.claims),
    )


def late_s_of(scope: RoundScope, estimates: Estimates) -> FloatArray:
    """Return the seconds until the P90 finish (J, C) of each job, with the change to the configuration.

    The result is NaN where the work or the speed is unknown, and infinite where the job cannot run.
    """
    prospects = estimates.prospects
    left = remaining_of(scope.jobs, scope.snapshot.ended_samples)
    worth = worth_of_a_sample(scope.jobs, scope.current, estimates.table)
    samples = np.where(estimates.known, np.maximum(left.samples, 1.0) * worth, np.nan)
    here = np.arange(prospects.goodput.shape[1]) == scope.current[:, None]
    change = [
        change_s(job, scope.usual) if holding.size else restart_s(job, scope.usual)
        for job, holding in zip(scope.jobs, scope.holdings.values(), strict=True)
    ]
    expected = forecast(
        goodput=prospects.goodput,
        low=prospects.low,
        remaining=samples[:, None],
        remaining_spread=left.spread[:, None],
        usd_per_h=np.zeros(1),
        pause_s=np.where(here, 0.0, np.array(change)[:, None]),
    )
    return np.where(np.isnan(samples)[:, None], np.nan, expected.time_p90_s)
