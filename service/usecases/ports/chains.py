"""Interface for chains of jobs: which job waits for which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from headway.contract.views.jobs import GraphView
from service.domain.jobs.after import Predecessor
from service.domain.jobs.job import Job


class Chains(Protocol):
    """Jobs that wait for the ends of others."""

    async def find(self, project: str, keys: Sequence[str]) -> dict[str, Predecessor]:
        """Return the jobs of the project with these names or ids, with their ends if they have ended.

        A name means its live job, else its newest. The jobs cannot end or be deleted until the transaction ends.
        """

    async def add(self, job_id: str, predecessors: Sequence[Predecessor]) -> None:
        """Store the jobs that a new job waits for."""

    async def of(self, job_id: str) -> list[Predecessor]:
        """Return the jobs that a job waits or waited for, in the order of its job file."""

    async def note_end(self, job: Job) -> list[str]:
        """Store the end of a job for those that wait for it, and return their ids."""

    async def ready(self, limit: int, *, without: Collection[str]) -> list[str]:
        """Return the ids of waiting jobs whose predecessors have all ended, oldest first, without these jobs."""

    async def graph(self, job_id: str | None, projects: Collection[str] | None) -> GraphView:
        """Return the chain that contains the job, or (None) all chains with a job that waits, in these projects (None: all)."""
