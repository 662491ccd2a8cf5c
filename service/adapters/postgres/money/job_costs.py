"""Costs of jobs: the amount so far, and the expected total."""

from __future__ import annotations

from collections.abc import Sequence

from headway.contract.run_facts import JobCost
from headway.contract.views.jobs import TERMINAL_STATES, JobView
from service.adapters.postgres.engine.session import Session, Statement
from service.adapters.postgres.money.views import PostgresSpending
from service.domain.rental.budgets import JobSpend, expected_usd

_USD_PER_H = Statement(
    """
    SELECT slot_grants.job_id, sum(leases.usd_per_slot_h) AS usd
    FROM slot_grants JOIN leases
        ON leases.open AND leases.node_id = slot_grants.node_id AND leases.slots @> to_jsonb(slot_grants.slot)
    WHERE slot_grants.released_at IS NULL AND slot_grants.job_id = ANY(CAST(:jobs AS text[]))
    GROUP BY slot_grants.job_id
    """
)


async def costs_of_jobs(session: Session, jobs: Sequence[JobView]) -> dict[str, JobCost]:
    """Return the costs of jobs by id. Jobs without charges are left out."""
    begun = [job.id for job in jobs if job.generation > 0]
    if not begun:
        return {}
    spend = await PostgresSpending(session).job_spend(begun)
    rates = {row.job_id: row.usd for row in await session.fetch(_USD_PER_H, jobs=begun)}
    return {job.id: _cost(job, spend[job.id], rates.get(job.id)) for job in jobs if job.id in spend}


def _cost(job: JobView, spent: JobSpend, usd_per_h: float | None) -> JobCost:
    progress, limit = job.progress, job.spec.goal.max_cost_usd
    return JobCost(
        usd=spent.usd,
        useful_usd=spent.useful_usd,
        resize_usd=spent.resize_usd,
        lost_usd=spent.lost_usd,
        unknown_usd=spent.unknown_usd,
        unpriced=spent.unpriced,
        expected_usd=spent.usd
        if job.state in TERMINAL_STATES
        else expected_usd(spent.usd, usd_per_h, progress.time_left_s),
        left_usd=None if limit is None else max(0.0, float(limit) - spent.usd),
    )
