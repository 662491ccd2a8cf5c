"""The audit record: an entry for each change, and for refused requests.

Refusals are written one by one up to a limit and counted beyond it, so that a flood of them cannot fill the
record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from headway.contract.views.identity import Role
from service.domain.identity.access import Principal
from service.usecases.ports.audit import AuditEntry
from service.usecases.ports.transactions import Transaction, Transactions

WINDOW = timedelta(minutes=1)
ONE_BY_ONE = 5
"""Maximum refusals of one kind from one address written within the window. Further ones are only counted."""
MOST_ONE_BY_ONE = 100
"""Maximum refusals of all kinds written within the window."""
_MOST_SOURCES = 1_000
_COMMAND_LINE = "command line"


@dataclass(slots=True)
class _Refused:
    """Refusals of one kind from one source since `since`. `counted` of them were not written."""

    last: AuditEntry
    since: datetime
    written: int = 0
    counted: int = 0


class Refusals:
    """Recent refusals by status, address and actor. Memory is bounded for any number of sources."""

    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[int, str, str], _Refused] = OrderedDict()
        self._since: datetime | None = None
        self._written = 0

    def take(self, entry: AuditEntry) -> list[AuditEntry]:
        """Add a refusal. Return the entries to write now."""
        due = self.due(entry.at)
        key = (entry.status, entry.address, entry.actor)
        if key not in self._refused and len(self._refused) >= _MOST_SOURCES:
            key = (entry.status, "many addresses", "many")
            entry = replace(entry, address=key[1], actor=key[2])
        refused = self._refused.setdefault(key, _Refused(entry, entry.at))
        refused.last = entry
        if self._since is None or entry.at - self._since >= WINDOW:
            self._since, self._written = entry.at, 0
        if refused.written < ONE_BY_ONE and self._written < MOST_ONE_BY_ONE:
            refused.written += 1
            self._written += 1
            return [*due, entry]
        refused.counted += 1
        return due

    def due(self, now: datetime) -> list[AuditEntry]:
        """Return the entries of windows that are over: the last refusal of each kind, with the number that
        was only counted.
        """
        over = [key for key, one in self._refused.items() if now - one.since >= WINDOW]
        ended = [self._refused.pop(key) for key in over]
        return [
            replace(one.last, detail={**one.last.detail, "refused_times": one.counted})
            for one in ended
            if one.counted
        ]


def readable(reader: Principal, project: str | None) -> frozenset[str] | None:
    """Return the projects whose entries an admin may read: `project`, or (None) all that they administer.

    Raises:
        NotFound, Forbidden: the reader is not an admin of that project.
    """
    if project is None:
        return reader.projects(Role.ADMIN)
    reader.require(Role.ADMIN, project)
    return frozenset({project})


def on_command_line(
    transactions: Transactions, action: str, now: Callable[[], datetime], *, target: str = ""
) -> Transactions:
    """Return transactions that audit their changes as made by the operator, with `python -m service`."""

    def entry() -> AuditEntry:
        return AuditEntry(
            at=now(),
            actor=_COMMAND_LINE,
            action=action,
            target=f"python -m service {action} {target}".rstrip(),
            status=200,
            address="local",
            request_id="",
        )

    return Audited(transactions, entry)


class Audited(Transactions):
    """Transactions that each write an audit entry if they change anything."""

    def __init__(self, transactions: Transactions, entry: Callable[[], AuditEntry]) -> None:
        self._transactions = transactions
        self._entry = entry

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """Begin a transaction that also writes the entry."""
        async with self._transactions.begin() as tx:
            tx.audit.about(self._entry)
            yield tx
