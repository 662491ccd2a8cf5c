"""Interfaces for sweeps and the jobs that are their trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.spec_sweep import Asha, Sweep
from headway.contract.views.jobs import Page
from headway.contract.views.sweeps import SweepSummary, SweepView
from service.domain.jobs.halving import Halving, RungValues


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


@dataclass(frozen=True, slots=True)
class TrialMetric:
    """The metric by which a trial is compared, the rule that may end it early, and the number of rungs with a value."""

    metric: str
    asha: Asha | None
    rungs: int


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Values of a trial's metric from new reports: the extremes, and the values at rungs that it has just reached."""

    job_id: str
    lowest: float
    highest: float
    rungs: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class JudgedTrials:
    """The trials of a sweep that have reached a rung, and the ids of their jobs by number."""

    rule: Halving
    trials: Sequence[RungValues]
    job_ids: Mapping[int, str]


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

    async def metrics_of(self, job_ids: Sequence[str]) -> dict[str, TrialMetric]:
        """Return the metrics of those of the locked jobs that are trials of a sweep with a metric, by job."""

    async def add_values(self, reports: Sequence[TrialReport]) -> None:
        """Store new values of locked trials. A rung keeps its first value."""

    async def stopping(self) -> list[str]:
        """Return the ids of the sweeps of which live trials may end early."""

    async def judged(self, sweep_id: str) -> JudgedTrials | None:
        """Return the values of a sweep's trials at their rungs; None if the sweep does not end trials early, or is gone."""

    async def note_stopped(self, job_ids: Sequence[str], now: datetime) -> None:
        """Note that trials ended early. They are judged no more, also if they are resumed."""


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
