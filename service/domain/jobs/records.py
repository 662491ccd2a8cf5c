"""Records about a job beside its row: the allocations of its generations, and the events of its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.membership import Members


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event in the history of a job."""

    job_id: str
    at: datetime
    kind: str
    message: str
    generation: int
    state: JobState | None = None
    reason: Reason | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def event_about(
    job: Job,
    kind: str,
    *,
    message: str,
    at: datetime,
    reason: Reason | None = None,
    data: Mapping[str, Any] | None = None,
) -> Event:
    """Return an event about a job in its present state."""
    return Event(
        job_id=job.id,
        at=at,
        kind=kind,
        state=job.state,
        reason=reason,
        message=message,
        generation=job.generation,
        data=data or {},
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """The speed that a round predicted for a generation, in samples per second: median, P10 and P90."""

    samples_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """The allocation that a generation runs on, with its members and the store where they rendezvous."""

    job_id: str
    generation: int
    slots: Allocation
    device_kind: str
    first_node: str
    master_port: int
    reason: Reason
    message: str
    round_id: str | None
    granted_at: datetime
    members: Members
    stores: Mapping[str, int] = field(default_factory=dict)
    """Ports of the stores, by node id, that nodes keep for the processes started for this generation."""
    predicted: Prediction | None = None
    crossed: str = ""
    """Largest topology level at which its nodes differ; empty if they differ at none."""
