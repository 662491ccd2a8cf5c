"""What the API reads: views, as the adapters build them straight from rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

from headway.contract.agents import NodeState
from headway.contract.decisions import RoundView
from headway.contract.forecasts import ScoredPrediction
from headway.contract.jobs import EventView, ExplainView, JobState, JobView, MetricPoint, Page
from headway.contract.nodes import NodeView
from service.domain.cluster import Measurement
from service.domain.silence import SilenceRule
from service.usecases.records import JobFilter, JobRef, PredictionErrors, SlotCount


class JobQueries(Protocol):
    """Jobs as the API shows them. A job is named by its id or its name."""

    async def find(self, job: str, projects: frozenset[str] | None) -> JobRef:
        """The job of this id or name in one of the projects (None: in any). Raises NotFound."""
        ...

    async def list_jobs(self, filters: JobFilter, *, limit: int, cursor: str | None) -> Page[JobView]:
        """Jobs, newest first."""
        ...

    async def job(self, job_id: str) -> JobView:
        """One job. Raises NotFound."""
        ...

    async def explain(self, job_id: str) -> ExplainView:
        """The last decision about a job. Raises NotFound."""
        ...


class HistoryQueries(Protocol):
    """A job's history as the API shows it."""

    async def events(self, job_id: str, *, after: int, limit: int) -> Page[EventView]:
        """Events after a sequence number, oldest first."""
        ...

    async def starts(self, job_id: str) -> list[int]:
        """The first generation of each start of the job that its history still has, oldest first."""
        ...

    async def metrics(self, job_id: str, *, after: int, limit: int) -> Page[MetricPoint]:
        """Reported values after a cursor, oldest first."""
        ...


class NodeQueries(Protocol):
    """Nodes as the API shows them."""

    async def list_nodes(
        self, now: datetime, silence: SilenceRule, *, seen: frozenset[str] | None
    ) -> list[NodeView]:
        """Every node with who holds its slots, by name; jobs of projects that are not `seen` (None: all are) without theirs."""
        ...


class DecisionQueries(Protocol):
    """Rounds and the cluster as the API shows them."""

    async def rounds(self, *, limit: int, cursor: str | None, seen: frozenset[str] | None) -> Page[RoundView]:
        """Rounds that changed something and the latest one, newest first, with what concerns the projects that are `seen` (None:
        all are).
        """
        ...

    async def round(self, round_id: str, *, seen: frozenset[str] | None) -> RoundView:
        """One round, likewise; `latest` names the newest. Raises NotFound."""
        ...

    async def slots(self) -> list[SlotCount]:
        """Slots by the state of their node and by device kind."""
        ...

    async def nodes(self) -> dict[NodeState, int]:
        """How many nodes are in each state."""
        ...

    async def leader(self) -> tuple[int, float]:
        """The newest term of a leader, and seconds since it was renewed; 0 and 0 before the first."""
        ...

    async def predictions(self, job_id: str) -> list[ScoredPrediction]:
        """What rounds expected of the job's generations, of those that were measured; the latest ones, newest first."""
        ...

    async def prediction_errors(self, since: datetime, quantiles: Sequence[float]) -> PredictionErrors:
        """How good the predictions since a moment were."""
        ...

    async def forecast_errors(
        self, of: Literal["time", "cost"], share: float, since: datetime, quantiles: Sequence[float]
    ) -> PredictionErrors:
        """How good the forecasts were that were kept at a share of the work, of jobs that succeeded since a moment; its
        coverage is the share that kept to their P90.
        """
        ...

    async def used_since(self, job_id: str, since: datetime, now: datetime) -> tuple[float, dict[str, float]]:
        """Seconds that the job has held slots since a moment, and slot-seconds by device kind."""
        ...

    async def measured_of_class(self, job_class: str) -> tuple[Measurement, ...]:
        """What the latest jobs of a class have measured."""
        ...

    async def ended_samples(self, job_class: str) -> list[float]:
        """Samples that the latest jobs of a class took that have succeeded."""
        ...

    async def live_jobs(self, *, seen: frozenset[str] | None) -> dict[JobState, int]:
        """How many jobs of the projects that are `seen` (None: all are) are in each state that is not terminal."""
        ...
