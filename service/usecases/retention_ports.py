"""How long things are kept, and what deletes them, as ports. Every method is one short transaction's work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

COMMANDS_KEPT: Final = timedelta(days=1)
"""After they were taken up."""
ROUNDS_KEPT: Final = timedelta(days=7)
SIMULATIONS_KEPT: Final = timedelta(days=7)
PROCESSES_KEPT: Final = timedelta(hours=1)
RENTED_NODES_KEPT: Final = timedelta(days=1)
"""After a rented machine was last heard of. Hosts of one's own are kept as long as jobs: they may come back."""
MONEY_KEPT: Final = timedelta(days=400)
"""Longer than the longest period of a budget, and than a year's bill is asked about."""
AUDIT_KEPT: Final = timedelta(days=366)
"""Longer than the year within which the database refuses to delete any of it."""
TOKENS_KEPT: Final = timedelta(days=30)
"""After they were revoked or have expired: until then they say so to whoever shows one."""
LOGINS_KEPT: Final = timedelta(hours=1)
"""After a sign-in at an identity provider was given up."""
HISTORY_KEPT: Final = timedelta(days=30)
"""Of a job that goes on. The ledger opens no hour again that is older."""
CAPPED_AFTER: Final = timedelta(days=7)
"""Events of a job that goes on are kept for so long however many they are."""
LEDGER_LAG: Final = timedelta(days=1)
"""What is younger than this was when the ledger last ran, it may not have charged for."""
BUNDLES_KEPT: Final = timedelta(days=1)
"""An upload may wait this long for the submit that refers to it."""
MAX_ROUNDS: Final = 50_000
MAX_SIMULATIONS: Final = 1_000
MAX_EVENTS: Final = 10_000
"""Of a job that goes on."""
BATCH: Final = 5_000
"""So many rows go in one transaction at most."""


class Doomed(StrEnum):
    """Rows that are deleted when they are old, or too many, whatever they belong to. In the order in which they go."""

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
    """Values that scripts report are thinned to one in `every` once they are older than `age`, of each job and name."""

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
    """What is older goes. `jobs`: ended ones; `history`: of jobs that go on, and grants that were released; `capped`:
    events beyond `MAX_EVENTS`.
    """

    now: datetime
    jobs: datetime
    history: datetime
    capped: datetime
    money: datetime

    def of(self, doomed: Doomed) -> datetime:
        """Since when rows of a kind are kept."""
        return {
            Doomed.COMMANDS: self.now - COMMANDS_KEPT,
            Doomed.ROUNDS: self.now - ROUNDS_KEPT,
            Doomed.SIMULATIONS: self.now - SIMULATIONS_KEPT,
            Doomed.PROCESSES: self.now - PROCESSES_KEPT,
            Doomed.GRANTS: self.history,
            Doomed.RENTED_NODES: self.now - RENTED_NODES_KEPT,
            Doomed.NODES: self.jobs,
            Doomed.QUARANTINES: self.jobs,
            Doomed.AUDIT: self.now - AUDIT_KEPT,
            Doomed.TOKENS: self.now - TOKENS_KEPT,
            Doomed.JOIN_TOKENS: self.now - TOKENS_KEPT,
            Doomed.LOGINS: self.now - LOGINS_KEPT,
        }.get(doomed, self.money)


def horizons(now: datetime, keep_days: int, accrued_at: datetime | None) -> Horizons:
    """Since when what is kept. History is never deleted before the ledger has charged for it: `accrued_at` is how far that
    is, None where it was never kept.
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
    """Ids of jobs that are gone, and whether there is more to delete."""

    job_ids: Sequence[str]
    more: bool


class Retention(Protocol):
    """Old rows go: every table has an end. Each call deletes `BATCH` rows at most."""

    async def accrued_at(self) -> datetime | None:
        """How far the ledger is."""
        ...

    async def delete_rows(self, doomed: Doomed, before: datetime) -> int:
        """Delete rows of a kind that are older, or beyond their number. Returns how many."""
        ...

    async def delete_jobs(self, before: datetime) -> JobsDeleted:
        """Delete jobs that ended before, first all that hangs on them."""
        ...

    async def unused_bundles(self, before: datetime) -> list[str]:
        """Digests of bundles that were uploaded before a moment and that no job refers to; their rows are deleted."""
        ...


class Thinning(Protocol):
    """What goes on for months keeps its history, but not all of it."""

    async def metrics(self, tier: Tier, now: datetime) -> bool:
        """Thin a batch of what has come of age; whether there is more."""
        ...

    async def long_lived(self, submitted_before: datetime) -> list[str]:
        """Jobs that go on."""
        ...

    async def history(self, job_id: str, horizons: Horizons) -> int:
        """Delete a batch of what a job that goes on did long ago. Returns how many rows are gone."""
        ...


class Owners(Protocol):
    """Who objects in storage belong to."""

    async def jobs(self, job_ids: Collection[str]) -> set[str]:
        """Those of the jobs that there are."""
        ...

    async def bundles(self, digests: Collection[str]) -> set[str]:
        """Those of the bundles that there are."""
        ...

    async def live_jobs(self) -> list[str]:
        """Jobs that have not ended."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """An object, and when it was written."""

    key: str
    size_bytes: int
    at: datetime


class StoredObjects(Protocol):
    """Object storage, as who tidies it sees it. Every method raises Unavailable."""

    def folders(self, prefix: str) -> AsyncIterator[str]:
        """Names of what looks like folders right under a prefix, such as `logs/`."""
        ...

    def entries(self, prefix: str) -> AsyncIterator[Stored]:
        """Objects under a prefix, by key."""
        ...

    async def delete_folder(self, prefix: str) -> None:
        """Everything under a prefix that ends in `/` goes."""
        ...

    async def delete_all(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are absent are no error."""
        ...

    async def delete_partial(self, before: datetime) -> int:
        """Remove uploads that were cut short before a moment, where the store does not do so by itself; how many."""
        ...
