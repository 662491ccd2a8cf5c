"""Events in the history of a job that leave its state as it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headway.contract.views.jobs import Reason
from service.domain.jobs.job import Job
from service.domain.jobs.records import Event, event_about
from service.usecases.ports.facts import Happened, WakeUp
from service.usecases.ports.transactions import Transaction


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
    """Record an event about the job in its present state."""
    await store_event(tx, job, event_about(job, kind, message=message, at=now, reason=reason, data=data))


async def store_event(tx: Transaction, job: Job, event: Event) -> None:
    """Append an event to the history of a job, and report it to observers. `job` is as after the event."""
    await tx.jobs.add_event(event)
    tx.tell(Happened(job, event))
    tx.wake(WakeUp.EVENTS, job.id)
