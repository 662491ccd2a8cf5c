"""Explanation of a decision: its reason and message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from headway.contract.values.listing import all_of, some_of
from headway.contract.views.jobs import Reason
from service.domain.jobs.job import Job

NAMED = 5
"""Largest number of jobs or sizes named in a message."""


@dataclass(frozen=True, slots=True)
class ReasonText:
    """A reason constant with its message for users. `starts_at`: expected start of a job that waits, if known."""

    reason: Reason
    message: str
    starts_at: datetime | None = None


def named(jobs: Iterable[Job], project: str) -> str:
    """Return jobs as text for the users of a project: its own jobs by name, other projects' jobs only by number."""
    jobs = tuple(jobs)
    names = sorted(job.name for job in jobs if job.spec.project == project)
    shown = some_of(names, NAMED)
    others = len(jobs) - len(names)
    if not others:
        return all_of(names) if len(names) <= NAMED else shown
    foreign = "a job of another project" if others == 1 else f"{others} jobs of other projects"
    return f"{shown} and {foreign}" if shown else foreign
