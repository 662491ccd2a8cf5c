"""Interfaces for sweeps and the jobs that are their trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.spec_sweep import Sweep
from headway.contract.views.jobs import Page
from headway.contract.views.sweeps import SweepSummary, SweepView


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSweep:
    """A sweep to store."""

    id: str
    project: str
    name: str
    sweep: Sweep
    owner: str
    submitted_at: datetime


@dataclass(frozen=True, slots=True)
class SweepRef:
    """The identity of a sweep."""

    id: str
    project: str


@dataclass(frozen=True, slots=True)
class TrialOf:
    """The sweep of a job, and the job's number in it."""

    sweep_id: str
    sweep_name: str
    number: int


@dataclass(frozen=True, slots=True)
class SubmittedSweep:
    """The result of a submit: the sweep stored under this request, or an older one under the same idempotency key."""

    id: str
    name: str
    request_digest: str
    created: bool


class Sweeps(Protocol):
    """Sweeps and their trials."""

    async def insert(
        self, sweep: NewSweep, *, idempotency_key: str | None, request_digest: str
    ) -> SubmittedSweep:
        """Store a new sweep without trials. Raise InvalidField if the project does not exist."""

    async def submitted_before(self, project: str, idempotency_key: str) -> SubmittedSweep | None:
        """Return the sweep that a request with this key stored; None if there is none."""

    async def add_trials(self, sweep_id: str, job_ids: Sequence[str]) -> None:
        """Store the jobs of a sweep as its trials, numbered from 1."""

    async def jobs_of(self, sweep_id: str) -> list[str]:
        """Return the ids of the jobs that are trials of the sweep, by number."""


class SweepQueries(Protocol):
    """Sweeps as the API shows them."""

    async def find(self, sweep: str, projects: frozenset[str] | None) -> SweepRef:
        """Return the sweep of this id or name (the newest) in one of the projects (None: in any). Raise NotFound if there is none."""

    async def list_sweeps(
        self, projects: frozenset[str] | None, *, limit: int, cursor: str | None
    ) -> Page[SweepSummary]:
        """Return the sweeps of these projects (None: all), newest first."""

    async def sweep(self, sweep_id: str) -> SweepView:
        """Return a sweep with its trials. Raise NotFound if it does not exist."""

    async def of_job(self, job_id: str) -> TrialOf | None:
        """Return the sweep of which a job is a trial; None if it is of none."""
