"""Interfaces for retention and operations. Every method runs in one short transaction.

`service.domain.shared.retention` has the retention periods.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.standstills import Standstill
from service.domain.nodes.diagnosis import Facts
from service.domain.shared.retention import ExpiringRows, Horizons, Tier


@dataclass(frozen=True, slots=True)
class JobsDeleted:
    """The ids of deleted jobs, and a flag that says that more remain."""

    job_ids: Sequence[str]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    """Figures of the cluster at one moment. Counts of past events cover the last hour."""

    jobs: Mapping[tuple[str, str, str], int]
    """Number of jobs that have not ended, by state, reason and project."""
    oldest_waiting_s: float
    """Longest time that a job has been waiting; 0 if no job waits."""
    nodes: Mapping[str, int]
    """Number of nodes by state."""
    silent_s: float
    """Longest time since a node that is not LOST was last heard of; 0 without nodes."""
    slots: Mapping[tuple[str, str], tuple[int, int]]
    """Number of slots of nodes that are not LOST, and the held ones among them, by device kind and market."""
    commands_waiting: int
    oldest_command_s: float
    """Longest time that a command has been waiting to be acknowledged; 0 if no command waits."""
    round_s: Sequence[float]
    """Median and maximum duration of rounds."""
    gap: float
    """Upper bound of the optimality gap of the latest round."""
    changes: Mapping[tuple[str, str], int]
    """Number of decisions of rounds about jobs, by action and reason."""


class Standstills(Protocol):
    """Standstills of the loops of all processes of the service. Old ones are dropped."""

    async def add(self, standstills: Sequence[Standstill]) -> None:
        """Add standstills of this process.

        Raises:
            Unavailable: they were not added.
        """

    async def since(self, at: datetime) -> Sequence[Standstill]:
        """Return those that were added after a moment, the oldest first.

        Raises:
            Unavailable: they cannot be read now.
        """


class Retention(Protocol):
    """Deletion and thinning of old rows. Every table is bounded. Each call handles at most `retention.BATCH` rows."""

    async def delete_rows(self, kind: ExpiringRows, before: datetime) -> int:
        """Delete rows of a kind that are older than `before` or exceed their maximum number.

        Return the number deleted.
        """

    async def delete_jobs(self, before: datetime) -> JobsDeleted:
        """Delete jobs that ended before a moment, their dependent rows first."""

    async def unused_bundles(self, before: datetime) -> list[str]:
        """Return digests of bundles that were uploaded before a moment and that no job refers to, and delete
        their rows.
        """

    async def thin_metrics(self, tier: Tier, now: datetime) -> bool:
        """Thin a batch of values that have passed the tier's age. Return True if there are more."""

    async def long_lived(self, submitted_before: datetime) -> list[str]:
        """Return ids of jobs submitted before a moment that have not ended."""

    async def thin_history(self, job_id: str, horizons: Horizons) -> int:
        """Delete a batch of old history of a job that has not ended. Return the number of rows deleted."""

    async def existing_jobs(self, job_ids: Collection[str]) -> set[str]:
        """Return the ids of those jobs that exist."""

    async def existing_bundles(self, digests: Collection[str]) -> set[str]:
        """Return the digests of those bundles that exist."""

    async def live_jobs(self) -> list[str]:
        """Return the ids of jobs that have not ended."""


class Operations(Protocol):
    """Figures for monitoring, facts for a diagnosis, and the steps after the restoration of a database."""

    async def figures(self, now: datetime) -> ClusterFigures:
        """Return the figures as of `now`."""

    async def facts(self, now: datetime) -> Facts:
        """Return facts about nodes, jobs, the leader, and the origin of the database."""

    async def known_until(self) -> datetime | None:
        """Return the latest moment recorded in the database, or None if it is empty."""

    async def unended_jobs(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""

    async def disconnect_nodes(self, message: str, terms_left_out: int) -> int:
        """Mark all nodes as LOST, drop all commands, and end the leader's term. Return the number of nodes."""

    async def restored(self, known_until: datetime, now: datetime) -> None:
        """Release the database for use again."""
