"""A round as the API shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from headway.contract.decisions import RoundChange, RoundView, RowPrice
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.plan import Decision, Plan
from service.domain.arrays import IntArray
from service.domain.cluster import BUDGET_ROWS, FIRM_ROWS, QUOTA_ROWS
from service.domain.jobs import Job, size_of


def round_view(
    plan: Plan, changes: Sequence[RoundChange], *, round_id: str, times: Mapping[str, float]
) -> RoundView:
    """The plan of a round, of whose changes these were applied; `times` are seconds, of which `took_s` is all of it."""
    solution, setting = plan.solution, plan.round.snapshot.policy
    rows = plan.round.given.rows
    projects = {cap.row: cap.project for cap in plan.round.snapshot.caps}
    projects.update(plan.round.tenancy.projects)
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


def seen_round(view: RoundView, jobs: Collection[str], projects: frozenset[str]) -> RoundView:
    """A round for those who see some projects only: changes of `jobs` by name, others counted; and no limits of the cluster's
    money, nor of other projects.
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
