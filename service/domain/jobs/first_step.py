"""The first step of a generation. It shows whether the ranks change members in place or only by a restart."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from headway.contract.run_facts import ProgressSource
from headway.contract.views.jobs import JobState
from service.domain.jobs.job import Job

STEP_WITHIN_S: Final = 300.0
"""Run time in seconds after which ranks of the library without a first step count as stuck."""
SILENT_S: Final = 20.0
"""Run time in seconds without a report after which a script is assumed not to use the library."""


def has_begun(job: Job) -> bool:
    """Return True if the present ranks have made a step."""
    return job.live or job.progress.begun_generation == job.generation


def is_before_first_step(job: Job) -> bool:
    """Return True if the job's ranks have made no step, and may change in place after it."""
    may_be_live = job.follows_orders and job.progress.source is not ProgressSource.SCRIPT
    return job.state in {JobState.STARTING, JobState.RUNNING} and may_be_live and not has_begun(job)


def awaits_first_step(job: Job, now: datetime) -> bool:
    """Return True if a change of the running job waits for its first step, because it would be a restart now."""
    within_s = STEP_WITHIN_S if job.progress.source is ProgressSource.LIBRARY else SILENT_S
    # The start may be slightly later than `now`. A much later time comes from a clock that was set back.
    recent = abs((now - job.state_since).total_seconds()) < within_s
    return job.state is JobState.RUNNING and recent and is_before_first_step(job)
