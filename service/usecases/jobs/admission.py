"""Submit of a job with the outlook on its deadline. Jobs that are promised slots are admitted one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from headway.contract.spec import JobSpec
from service.domain.identity.access import Principal
from service.usecases.jobs.deadlines import outlook_at_submit
from service.usecases.jobs.submit import submit
from service.usecases.ports.facts import BegunTrace
from service.usecases.ports.jobs import Submitted
from service.usecases.ports.transactions import Transactions


async def admit(
    transactions: Transactions,
    admissions: asyncio.Lock,
    spec: JobSpec,
    *,
    caller: Principal,
    job_id: str,
    idempotency_key: str | None,
    usd_per_slot_h: Mapping[str, float],
    now: datetime,
    trace: BegunTrace | None,
) -> Submitted:
    """Submit the job as `submit` does, and raise the same errors.

    `admissions` is the lock of this process. Of the submits that wait for the lock in the database, only its holder
    uses connections.
    """
    store = partial(
        submit,
        spec=spec,
        caller=caller,
        job_id=job_id,
        idempotency_key=idempotency_key,
        now=now,
        trace=trace,
    )
    outlook_now = partial(outlook_at_submit, transactions, spec, usd_per_slot_h=usd_per_slot_h, now=now)
    if spec.goal.deadline is None or spec.goal.admit != "reject":
        outlook = await outlook_now()
        async with transactions.begin() as tx:
            return await store(tx, outlook=outlook)
    async with admissions, transactions.begin() as tx:
        await tx.jobs.lock_admissions()
        # The outlook has its own transaction. It begins after the lock, so it sees the jobs admitted before.
        return await store(tx, outlook=await outlook_now())
