"""A round as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headway.contract.decisions import RoundChange, RoundView, RowPrice
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.plan import Decision, Plan
from service.domain.arrays import IntArray
from service.domain.jobs import Job, size_of


def round_view(
    plan: Plan, changes: Sequence[RoundChange], *, round_id: str, times: Mapping[str, float]
) -> RoundView:
    """The plan of a round, of whose changes these were applied; `times` are seconds, of which `took_s` is all of it."""
    solution, setting = plan.solution, plan.round.snapshot.policy
    rows = plan.round.given.rows
    projects = {cap.row: cap.project for cap in plan.round.snapshot.caps}
    # A policy may have had rows of its own behind those that it was given.
    return RoundView(
        id=round_id,
        at=plan.round.snapshot.now,
        took_s=times["took_s"],
        policy=setting.name,
        parameters=dict(setting.parameters),
        inputs_digest=plan.round.digest,
        status=solution.status,
        objective=solution.objective,
        bound=solution.bound,
        gap=solution.gap,
        unit=plan.choices.unit,
        prices=[
            RowPrice(
                name=row.name,
                capacity=row.capacity,
                used=_used(row, plan.choices.chosen),
                price=price,
                project=projects.get(row.name),
            )
            for row, price in zip(rows, solution.prices.tolist(), strict=False)
        ],
        times=dict(times),
        jobs=len(plan.decisions),
        changes=list(changes),
    )


def change_view(job: Job, decision: Decision) -> RoundChange:
    """What a round did with a job, which is as it was before."""
    return RoundChange(
        job_id=job.id,
        job_name=job.name,
        action=decision.action,
        from_=size_of(job.allocation),
        to=size_of(decision.allocation),
        reason=decision.reason,
        message=decision.message,
    )


def _used(row: Row, chosen: IntArray) -> float:
    counts = chosen != NOTHING
    if row.jobs is not None:
        counts &= row.jobs
    return float(np.sum(row.demand[chosen[counts]]))
