"""Retention periods, and interfaces for retention and operations. Every method runs in one short transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from service.domain.nodes.diagnosis import Facts

COMMANDS_KEPT: Final = timedelta(days=1)
"""Retention of commands, after their acknowledgement."""
ROUNDS_KEPT: Final = timedelta(days=7)
SIMULATIONS_KEPT: Final = timedelta(days=7)
PROCESSES_KEPT: Final = timedelta(hours=1)
RENTED_NODES_KEPT: Final = timedelta(days=1)
"""Retention of nodes on rented machines, after their last contact.

Other hosts may come back, so they are kept as long as jobs.
"""
MONEY_KEPT: Final = timedelta(days=400)
"""Retention of charges and leases: longer than the longest budget period, and than the year that a yearly
bill covers.
"""
AUDIT_KEPT: Final = timedelta(days=366)
"""Retention of the audit record: longer than the year during which the database refuses to delete entries."""
TOKENS_KEPT: Final = timedelta(days=30)
"""Retention of tokens after they were revoked or expired.

Until then, their use is answered with that reason.
"""
LOGINS_KEPT: Final = timedelta(hours=1)
"""Retention of sign-ins at an identity provider that were never completed."""
HISTORY_KEPT: Final = timedelta(days=30)
"""Retention of the history of jobs that have not ended. The ledger never recomputes an older hour."""
CAPPED_AFTER: Final = timedelta(days=7)
"""Retention of the events of a job that has not ended, regardless of their number."""
LEDGER_LAG: Final = timedelta(days=1)
"""Distance kept from the ledger's last run.

The ledger may not yet have charged for events younger than this.
"""
BUNDLES_KEPT: Final = timedelta(days=1)
"""Retention of a bundle that no job refers to: the time between an upload and its submit."""
MAX_ROUNDS: Final = 50_000
MAX_SIMULATIONS: Final = 1_000
MAX_EVENTS: Final = 10_000
"""Maximum number of old events of a job that has not ended."""
BATCH: Final = 5_000
"""Maximum number of rows deleted in one transaction."""


class ExpiringRows(StrEnum):
    """Kinds of rows that are deleted by age or number, regardless of their owner, in the order of deletion."""

    COMMANDS = "commands"
    ROUNDS = "rounds"
    SIMULATIONS = "simulations"
    PROCESSES = "processes"
    GRANTS = "grants"
    QUARANTINES = "quarantines"
    CHARGES = "charges"
    LEASES = "leases"
    MACHINES = "machines"
    BUDGET_NOTICES = "budget_notices"
    AUDIT = "audit"
    TOKENS = "tokens"
    JOIN_TOKENS = "join_tokens"
    LOGINS = "logins"
    RENTED_NODES = "rented_nodes"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Tier:
    """A thinning rule: values that scripts report are thinned to one per `every`, for each job and name, once
    older than `age`.
    """

    age: timedelta
    every: timedelta


TIERS: Final = (
    Tier(timedelta(hours=1), timedelta(seconds=10)),
    Tier(timedelta(days=1), timedelta(minutes=1)),
    Tier(timedelta(days=7), timedelta(hours=1)),
    Tier(timedelta(days=30), timedelta(days=1)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizons:
    """The moments before which rows are deleted.

    `jobs` applies to ended jobs. `history` applies to jobs that have not ended and to released grants.
    `capped` applies to events beyond `MAX_EVENTS`.
    """

    now: datetime
    jobs: datetime
    history: datetime
    capped: datetime
    money: datetime

    def of(self, kind: ExpiringRows) -> datetime:
        """Return the moment before which rows of a kind are deleted."""
        return {
            ExpiringRows.COMMANDS: self.now - COMMANDS_KEPT,
            ExpiringRows.ROUNDS: self.now - ROUNDS_KEPT,
            ExpiringRows.SIMULATIONS: self.now - SIMULATIONS_KEPT,
            ExpiringRows.PROCESSES: self.now - PROCESSES_KEPT,
            ExpiringRows.GRANTS: self.history,
            ExpiringRows.RENTED_NODES: self.now - RENTED_NODES_KEPT,
            ExpiringRows.NODES: self.jobs,
            ExpiringRows.QUARANTINES: self.jobs,
            ExpiringRows.AUDIT: self.now - AUDIT_KEPT,
            ExpiringRows.TOKENS: self.now - TOKENS_KEPT,
            ExpiringRows.JOIN_TOKENS: self.now - TOKENS_KEPT,
            ExpiringRows.LOGINS: self.now - LOGINS_KEPT,
        }.get(kind, self.money)


def horizons(now: datetime, keep_days: int, accrued_at: datetime | None) -> Horizons:
    """Return the moments before which rows are deleted.

    History is never deleted before the ledger has charged for it. `accrued_at` is the moment up to which the
    ledger has charged, None if it never ran.
    """
    charged = now if accrued_at is None else accrued_at - LEDGER_LAG
    kept = timedelta(days=keep_days)
    return Horizons(
        now=now,
        jobs=min(now - kept, charged),
        history=min(now - min(kept, HISTORY_KEPT), charged),
        capped=min(now - min(kept, CAPPED_AFTER), charged),
        money=now - max(MONEY_KEPT, kept),
    )


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


class Retention(Protocol):
    """Deletion and thinning of old rows. Every table is bounded. Each call handles at most `BATCH` rows."""

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
