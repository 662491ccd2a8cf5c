"""A job before its submit, for forecasts."""

from __future__ import annotations

from datetime import datetime

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.jobs.job import Job
from service.domain.perf.goal_target import target_of

_NOT_STORED = "plan"


def planned(spec: JobSpec, now: datetime) -> Job:
    """Return the job that a submit would store."""
    return Job(
        id=_NOT_STORED,
        spec=spec,
        state=JobState.PENDING,
        reason=Reason.SUBMITTED,
        message="",
        submitted_at=now,
        state_since=now,
        progress=JobProgress(goal_target=target_of(spec.goal)),
    )
