"""What a decision says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.contract.jobs import Reason
from service.domain.jobs import Job

_NAMED = 5
"""At most so many jobs are named in a sentence."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A reason and its explanation."""

    reason: Reason
    message: str


def named(jobs: Iterable[Job], project: str) -> str:
    """Jobs, for people of a project: its own by name, those of others without."""
    jobs = tuple(jobs)
    names = sorted(job.name for job in jobs if job.spec.project == project)
    shown = ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")
    others = len(jobs) - len(names)
    if not others:
        return shown
    foreign = "a job of another project" if others == 1 else f"{others} jobs of other projects"
    return f"{shown} and {foreign}" if shown else foreign
