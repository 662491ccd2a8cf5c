"""The record of what people did: written with each change, and for refusals one by one or counted, so that no flood fills it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from headway.contract.identity import Role
from service.domain.access import Principal
from service.usecases.audit_ports import AuditEntry
from service.usecases.ports import Transaction, Transactions

WINDOW = timedelta(minutes=1)
ONE_BY_ONE = 5
"""Of one kind from one address within the window; more are counted."""
MOST_ONE_BY_ONE = 100
"""Of all of them within the window."""
_MOST_SOURCES = 1_000
_COMMAND_LINE = "command line"


@dataclass(slots=True)
class _Seen:
    """Refusals of one kind from one source since `since`; `counted` of them were not written."""

    last: AuditEntry
    since: datetime
    written: int = 0
    counted: int = 0


class Refusals:
    """What was refused lately, by status, address and actor. Bounded, whoever asks how often."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int, str, str], _Seen] = OrderedDict()
        self._since: datetime | None = None
        self._written = 0

    def take(self, entry: AuditEntry) -> list[AuditEntry]:
        """What is to be written now that this was refused."""
        due = self.due(entry.at)
        key = (entry.status, entry.address, entry.actor)
        if key not in self._seen and len(self._seen) >= _MOST_SOURCES:
            key = (entry.status, "many addresses", "many")
            entry = replace(entry, address=key[1], actor=key[2])
        seen = self._seen.setdefault(key, _Seen(entry, entry.at))
        seen.last = entry
        if self._since is None or entry.at - self._since >= WINDOW:
            self._since, self._written = entry.at, 0
        if seen.written < ONE_BY_ONE and self._written < MOST_ONE_BY_ONE:
            seen.written += 1
            self._written += 1
            return [*due, entry]
        seen.counted += 1
        return due

    def due(self, now: datetime) -> list[AuditEntry]:
        """What was counted in windows that are over: the last of each kind, and how many there were."""
        over = [key for key, one in self._seen.items() if now - one.since >= WINDOW]
        told = [self._seen.pop(key) for key in over]
        return [
            replace(one.last, detail={**one.last.detail, "refused_times": one.counted})
            for one in told
            if one.counted
        ]


def readable(reader: Principal, project: str | None) -> frozenset[str] | None:
    """The projects whose entries an admin may read: of all that they are an admin of, the one that is asked for.

    Raises:
        NotFound, Forbidden: they are no admin of that project.
    """
    if project is None:
        return reader.projects(Role.ADMIN)
    reader.require(Role.ADMIN, project)
    return frozenset({project})


def on_command_line(
    transactions: Transactions, action: str, now: Callable[[], datetime], *, target: str = ""
) -> Transactions:
    """The same transactions; what they change is told of as done by the operator, with `python -m service`."""

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


class Audited:
    """Transactions of which each tells of itself, if it changes anything. Implements `usecases.ports.Transactions`."""

    def __init__(self, transactions: Transactions, entry: Callable[[], AuditEntry]) -> None:
        self._transactions = transactions
        self._entry = entry

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """A transaction that commits when its block ends without an error."""
        async with self._transactions.begin() as tx:
            tx.audit.about(self._entry)
            yield tx
