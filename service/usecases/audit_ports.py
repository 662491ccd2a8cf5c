"""The record of what people did, as a port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from headway.contract.identity import AuditView
from headway.contract.jobs import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who did what, from where. `project` is None for what is about the cluster; `job` names the job whose project it is."""

    at: datetime
    actor: str
    token_id: str | None = None
    action: str
    target: str
    project: str | None = None
    job: str | None = None
    status: int
    address: str
    request_id: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """What to list. `projects`: those that the reader may read of; None: everything, what is about the cluster too."""

    projects: frozenset[str] | None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Audit(Protocol):
    """Written with the changes that it tells of: both are there, or neither."""

    def about(self, entry: Callable[[], AuditEntry]) -> None:
        """If this transaction changes anything, the entry is written with it. It is asked for just before the commit."""
        ...

    def by(self, actor: str, token_id: str | None = None) -> None:
        """Who it is, where a request comes from nobody that was known before it: whoever signs in, or joins."""
        ...

    async def add(self, entry: AuditEntry) -> None:
        """An entry of something that changed nothing: a refusal."""
        ...

    async def page(self, wanted: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditView]:
        """Entries, newest first."""
        ...
