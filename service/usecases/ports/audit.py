"""Interface for the audit record of people's actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from headway.contract.views.identity import AuditView
from headway.contract.views.jobs import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry of the audit record.

    `project` is None for actions on the cluster. `job` and `sweep` name one whose project is to be filled in.
    """

    at: datetime
    actor: str
    token_id: str | None = None
    action: str
    target: str
    project: str | None = None
    job: str | None = None
    sweep: str | None = None
    status: int
    address: str
    request_id: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """A filter for listing entries.

    `projects` are those that the reader may audit; None means everything, the cluster included.
    """

    projects: frozenset[str] | None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Audit(Protocol):
    """The audit record. An entry commits together with the changes that it describes."""

    def about(self, entry: Callable[[], AuditEntry]) -> None:
        """Write an entry with this transaction if the transaction changes anything.

        `entry` is called just before the commit.
        """

    def by(self, actor: str, token_id: str | None = None) -> None:
        """Set the actor of the entry, for requests whose caller is not known beforehand: sign-ins and joins."""

    async def add(self, entry: AuditEntry) -> None:
        """Store an entry about a refused request, which changed nothing."""

    async def page(self, wanted: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditView]:
        """Return the entries that match the filter, newest first."""
