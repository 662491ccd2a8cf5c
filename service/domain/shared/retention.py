"""Retention periods of the rows in the database, and the moments before which rows are deleted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

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

Meanwhile, the service answers their use with that reason.
"""
MESSAGES_KEPT: Final = timedelta(days=7)
"""Retention of messages to webhooks, after their event, delivered or not."""
LOGINS_KEPT: Final = timedelta(hours=1)
"""Retention of sign-ins at an identity provider that were never completed."""
HISTORY_KEPT: Final = timedelta(days=30)
"""Retention of the history of jobs that have not ended. The ledger never recomputes an older hour."""
CAPPED_AFTER: Final = timedelta(days=7)
"""Retention of the events of a job that has not ended, regardless of their number."""
LEDGER_LAG: Final = timedelta(days=1)
"""Minimum distance between the ledger's last run and the events that are deleted.

The ledger may not have charged for younger events yet.
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
    MESSAGES = "messages"
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
            ExpiringRows.MESSAGES: self.now - MESSAGES_KEPT,
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
