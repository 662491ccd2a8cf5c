"""Interfaces for jobs: their rows and history, the slots that they hold, and their views."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.runtime import Metrics, Progress
from headway.contract.views.jobs import EventView, ExplainView, JobState, JobView, MetricPoint, Page
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.membership import Born, Members
from service.domain.jobs.records import AllocationRecord, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """An allocation of a job: the number of slots, the reason and the period.

    `ended_at` is None for a current one.
    """

    generation: int
    size: int
    device_kind: str
    reason: str
    message: str
    granted_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobRef:
    """The identity of a job."""

    id: str
    project: str


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter for listing jobs; None means any. `projects` are those that the reader may see."""

    state: JobState | None = None
    name: str | None = None
    project: str | None = None
    owner: str | None = None
    live_only: bool = False
    projects: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of a submit: the job stored under this request, or an older job under the same idempotency
    key.
    """

    job: Job
    request_digest: str
    created: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps that a rank has taken on an allocation of a job."""

    job_id: str
    allocation: AllocationRecord
    progress: Progress


@dataclass(frozen=True, slots=True)
class Reported:
    """Values that a job's script has reported."""

    job_id: str
    metrics: Metrics
    at: datetime


class Jobs(Protocol):
    """Jobs and their history."""

    async def insert(
        self, job: Job, *, idempotency_key: str | None, request_digest: str, last: bool = False
    ) -> Submitted:
        """Store a new job and its first event. With `last`, this is the last write of the transaction and may commit at once.
        Raise NameTaken, or InvalidField if the project does not exist.
        """

    async def submitted_before(self, project: str, idempotency_key: str) -> Submitted | None:
        """Return the job that a request with this key stored; None if there is none."""

    async def lock_admissions(self) -> None:
        """Wait until no other transaction admits a job that is promised slots; hold that lock until this one ends."""

    async def lock(self, job_id: str) -> Job:
        """Return the job, locked until the transaction ends. `job_id` may be a name. Raise NotFound if it does not exist."""

    async def save(self, job: Job) -> None:
        """Store all fields of a locked job that can change, except its priority. Raise NameTaken if it had ended and another
        live job has its name now.
        """

    async def save_priority(self, job: Job) -> None:
        """Store the priority of a locked job."""

    async def save_progress(self, jobs: Sequence[Job]) -> None:
        """Store the progress of locked jobs, and nothing else."""

    async def lock_many(self, job_ids: Sequence[str], *, wait: bool = True) -> dict[str, Job]:
        """Return the jobs that exist by id, locked in one fixed order to prevent deadlocks. Without `wait`, leave out the jobs
        that another transaction has locked.
        """

    async def never_assigned(self, generations: Collection[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return those generations that are newer than any that their job has had. Leave out unknown jobs."""

    async def switching(self) -> list[Job]:
        """Return the jobs with a switch in progress, locked. Leave out jobs that another transaction has locked."""

    async def add_event(self, event: Event) -> None:
        """Append an event to the job's history."""

    async def vacated_at(self, job_id: str) -> datetime | None:
        """Return the time of the order to move to other slots; None if the job has trained, failed or waited since."""

    async def output_lost(self, job_id: str) -> str | None:
        """Return why the last save before an end of the job's ranks failed, or None if it did not fail."""

    async def output_failure(self, job_id: str) -> str | None:
        """Return why the last save of the job's output folder failed, or None if it did not fail."""

    async def add_exit(self, job_id: str, generation: int, exit_: RankExit, now: datetime) -> None:
        """Store the end of a rank. Only the first report for a rank counts."""

    async def exits(self, job_id: str, oldest: int) -> dict[Born, RankExit]:
        """Return the exits so far of processes that were started for generation `oldest` or a newer one."""

    async def add_measured(self, measured: Sequence[Measured], now: datetime) -> None:
        """Add steps to the statistics of their generations."""

    async def add_reported(self, reported: Sequence[Reported]) -> None:
        """Store values that training scripts reported."""


class Grants(Protocol):
    """The grants of slots to generations of jobs, and the allocations of generations, past and present."""

    async def grant(self, job_id: str, generation: int, slots: Allocation, now: datetime) -> bool:
        """Grant free slots to a generation. Return False, and grant nothing, if a slot is not free."""

    async def held(self, job_id: str) -> dict[int, Allocation]:
        """Return the slots that the job holds, by the generation that they are granted to."""

    async def on_node(self, node_id: str) -> set[tuple[str, int]]:
        """Return the job id and generation of every grant of a slot of the node."""

    async def release(
        self,
        job_id: str,
        generation: int,
        node_id: str | None,
        carry_over: Allocation,
        now: datetime,
        *,
        slots: Collection[int] | None = None,
        next_generation: int | None = None,
    ) -> bool:
        """Free slots that the start of `generation` holds: on one node, or (None) on all; some slots, or (None) all. Return
        True if there were any. Slots in `carry_over` pass to `next_generation` (None: the following one) at once, so that no
        other job gets them in between.
        """

    async def add_allocation(self, allocation: AllocationRecord) -> None:
        """Store the allocation of a generation that starts."""

    async def save_members(self, job_id: str, generation: int, members: Members) -> None:
        """Store the members of a generation again, in the allocation that exists."""

    async def allocation(self, job_id: str, generation: int) -> AllocationRecord | None:
        """Return the allocation of a generation, or None if it is not stored."""

    async def load_allocations(self, generations: Collection[tuple[str, int]]) -> None:
        """Read the allocations of these jobs and generations at once, so that `allocation` needs no further
        statement for them.
        """

    async def stores(self, job_id: str) -> dict[tuple[str, int], int]:
        """Return the ports of the rendezvous stores of the job, by node id and by the generation that started them."""

    async def node_started(self, job_id: str, generation: int) -> int:
        """Count another node that has started its ranks. Return the number of nodes that have."""

    async def end_allocation(self, job_id: str, generation: int, now: datetime) -> None:
        """Store that the generation has stopped training."""

    async def ports_in_use(self, node_ids: Sequence[str]) -> dict[str, set[int]]:
        """Return the ports that rendezvous stores of jobs use, by node id."""


class JobQueries(Protocol):
    """Jobs and their history as the API and the console show them."""

    async def find(self, job: str, projects: frozenset[str] | None) -> JobRef:
        """Return the job of this id or name in one of the projects (None: in any). Raise NotFound if there is none."""

    async def list_jobs(self, filters: JobFilter, *, limit: int, cursor: str | None) -> Page[JobView]:
        """Return the jobs that match the filters, newest first."""

    async def job(self, job_id: str) -> JobView:
        """Return the view of a job. Raise NotFound if it does not exist."""

    async def explain(self, job_id: str) -> ExplainView:
        """Return the last decision about a job, or its state if there is none yet. Raise NotFound if the job does not exist."""

    async def events(self, job_id: str, *, after: int, limit: int) -> Page[EventView]:
        """Return the events after a sequence number, oldest first."""

    async def starts(self, job_id: str) -> list[int]:
        """Return the first generation of each start that the job's history still contains, oldest first."""

    async def metrics(self, job_id: str, *, after: int, limit: int) -> Page[MetricPoint]:
        """Return the reported values after a cursor, oldest first."""

    async def sizes(
        self, job_ids: Sequence[str], since: datetime | None = None
    ) -> dict[str, list[SizeChange]]:
        """Return the allocations of each job, oldest first; with `since`, those that ended after it or go on."""

    async def series(self, job_id: str, points: int) -> dict[str, list[tuple[datetime, int, float]]]:
        """Return moment, samples and value of reported values, oldest first, by name of the metric.

        Adjacent values are averaged if there are more than `points`. Values that are not numbers are left
        out.
        """

    async def holding(self, limit: int) -> list[str]:
        """Return the ids of at most `limit` jobs that hold slots, in the order of their submission."""
