"""Storage of the market limits of jobs, which rounds observe, with an event for each change that users notice."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from service.domain.cluster.market_limits import MarketLimit
from service.usecases.jobs.events import record
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.transactions import Transaction, Transactions

EVENT = "market_choice"
"""Kind of the events about the machines that the rule of the spot market chooses."""


async def store_market_limits(
    transactions: Transactions,
    before: Mapping[str, MarketLimit],
    after: Mapping[str, MarketLimit],
    now: datetime,
) -> None:
    """Store the limits that differ from those of the snapshot."""
    changed = sorted(job for job in {*before, *after} if before.get(job) != after.get(job))
    if changed:
        async with transactions.begin() as tx:
            await _store(tx, changed, before, after, now)


async def _store(
    tx: Transaction,
    changed: list[str],
    before: Mapping[str, MarketLimit],
    after: Mapping[str, MarketLimit],
    now: datetime,
) -> None:
    jobs = await tx.jobs.lock_many(changed)
    await tx.machines.store_market_limits({job: after.get(job) for job in jobs})
    for job_id, job in jobs.items():
        limit = after.get(job_id)
        if limit is not None and not limit.is_like(before.get(job_id)):
            data = {"on_demand": limit.on_demand, "spot": limit.spot, "phase": limit.phase}
            message = f"{limit.on_demand} on-demand and {limit.spot} spot machines: {limit.reason}"
            await record(tx, job, EVENT, message=message, now=now, data=data)
    tx.wake(WakeUp.ROUND)
