"""Rounds as the API shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from headway.contract.views.decisions import RoundChange, RoundView, RowPrice
from service.domain.allocation.decision.plan import Decision, Plan
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.cluster.snapshot import BUDGET_ROWS, FIRM_ROWS, QUOTA_ROWS
from service.domain.jobs.job import Job, size_of
from service.domain.shared.arrays import IntArray


def round_view(
    plan: Plan, changes: Sequence[RoundChange], *, round_id: str, times: Mapping[str, float]
) -> RoundView:
    """Return the view of a round from its plan and the changes that were applied.

    `times` are durations in seconds, with `took_s` as the total.
    """
    solution, setting = plan.solution, plan.round.snapshot.policy
    rows = plan.round.given.rows
    projects = {cap.row: cap.project for cap in plan.round.snapshot.caps}
    projects.update(plan.round.tenancy.projects)
    # A policy may add rows after those that it was given.
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


def seen_round(view: RoundView, jobs: Collection[str], projects: frozenset[str]) -> RoundView:
    """Return a round for a reader of some projects.

    Changes of `jobs` are listed, and others are only counted. Limits of the cluster's money and of other
    projects are left out.
    """
    changes = [one for one in view.changes if one.job_id in jobs]
    return view.model_copy(
        update={
            "changes": changes,
            "other_changes": len(view.changes) - len(changes),
            "prices": [one for one in view.prices if _is_seen(one, projects)],
        }
    )


def _is_seen(row: RowPrice, projects: frozenset[str]) -> bool:
    if row.project is not None:
        return row.project in projects
    return not row.name.startswith((BUDGET_ROWS, QUOTA_ROWS, FIRM_ROWS))


def change_view(job: Job, decision: Decision) -> RoundChange:
    """Return the change that a round made to a job. `job` is as before the change."""
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
