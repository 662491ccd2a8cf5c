"""Move a job along the lifecycle, and leave an event for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headway.contract.jobs import Reason
from service.domain.jobs import Job
from service.domain.lifecycle import JobEvent, advance
from service.usecases.facts import Happened
from service.usecases.ports import Transaction
from service.usecases.records import Bell, Event


async def transition(
    tx: Transaction,
    job: Job,
    event: JobEvent,
    *,
    reason: Reason,
    message: str,
    now: datetime,
    data: Mapping[str, Any] | None = None,
) -> Job:
    """The job after `event`, saved, with its history.

    Raises:
        IllegalTransition: the lifecycle has no such edge.
    """
    moved = advance(job, event, reason=reason, message=message, now=now)
    await tx.jobs.save(moved)
    await record(tx, moved, str(event), reason=reason, message=message, now=now, data=data)
    tx.ring(Bell.ROUND)
    return moved


async def record(
    tx: Transaction,
    job: Job,
    kind: str,
    *,
    message: str,
    now: datetime,
    reason: Reason | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """An event of the job as it is now."""
    event = Event(
        job_id=job.id,
        at=now,
        kind=kind,
        state=job.state,
        reason=reason,
        message=message,
        generation=job.generation,
        data=data or {},
    )
    await tx.history.event(event)
    tx.tell(Happened(job, event))
    tx.ring(Bell.EVENTS, job.id)
