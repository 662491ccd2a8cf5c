"""Rows of the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.identity import AuditView
from headway.contract.jobs import Page
from service.adapters.postgres.identity_tables import audit
from service.adapters.postgres.tables import TERMINAL_SQL
from service.domain.errors import InvalidField
from service.usecases.audit_ports import AuditEntry, AuditFilter

COLUMNS = "at, actor, token_id, action, target, project, status, address, request_id, detail"
VALUES = (
    "CAST(:audit_at AS timestamptz), CAST(:audit_actor AS text), CAST(:audit_token_id AS text), "
    "CAST(:audit_action AS text), CAST(:audit_target AS text), {project}, CAST(:audit_status AS integer), "
    "CAST(:audit_address AS text), CAST(:audit_request_id AS text), CAST(:audit_detail AS jsonb)"
)
_OF_JOB = f"SELECT project FROM jobs WHERE {{column}} = :audit_job ORDER BY ({TERMINAL_SQL}), submitted_at DESC LIMIT 1"  # noqa: S608
_PROJECT = (
    "COALESCE(CAST(:audit_project AS text), "
    f"({_OF_JOB.format(column='id')}), ({_OF_JOB.format(column='name')}))"
)
_ADD = f"INSERT INTO audit ({COLUMNS}) SELECT {VALUES.format(project=_PROJECT)}"
_ADD_ALWAYS = text(_ADD)
_CHANGED = text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
"""A transaction has a number once it has changed something, or has locked a row in order to. Asked by itself: one that may only
read refuses an INSERT even of no rows.
"""


class PostgresAudit:
    """Implements `usecases.audit_ports.Audit`. Who commits calls `flush` before."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._entry: Callable[[], AuditEntry] | None = None
        self._by: dict[str, str | None] = {}

    def about(self, entry: Callable[[], AuditEntry]) -> None:
        """If this transaction changes anything, the entry is written with it."""
        self._entry = entry

    def by(self, actor: str, token_id: str | None = None) -> None:
        """Who it is, where a request comes from nobody that was known before it."""
        self._by = {"audit_actor": actor, "audit_token_id": token_id}

    async def add(self, entry: AuditEntry) -> None:
        """An entry of something that changed nothing."""
        await self._connection.execute(_ADD_ALWAYS, _row(entry))

    def take(self) -> dict[str, Any]:
        """The values of what is to be written, for a statement that writes it along with the change; each None if nothing is."""
        entry, self._entry = self._entry, None
        return dict.fromkeys(_NAMES) if entry is None else {**_row(entry()), **self._by}

    async def flush(self) -> None:
        """Write what is to be written with the transaction's changes, if it has made any."""
        if self._entry is not None and (await self._connection.execute(_CHANGED)).scalar_one():
            await self._connection.execute(_ADD_ALWAYS, self.take())

    async def page(self, wanted: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditView]:
        """Entries, newest first."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit + 1)
        if wanted.projects is not None:
            query = query.where(audit.c.project.in_(wanted.projects))
        if wanted.actor is not None:
            query = query.where(audit.c.actor == wanted.actor)
        if wanted.since is not None:
            query = query.where(audit.c.at >= wanted.since)
        if wanted.until is not None:
            query = query.where(audit.c.at < wanted.until)
        if cursor is not None:
            query = query.where(audit.c.id < _id_in(cursor))
        rows = (await self._connection.execute(query)).all()
        items = [AuditView.model_validate(row, from_attributes=True) for row in rows[:limit]]
        return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


def _id_in(cursor: str) -> int:
    if not cursor.isdecimal() or len(cursor) > 18:
        raise InvalidField("cursor", "not a cursor of this listing; start without one")
    return int(cursor)


def _row(entry: AuditEntry) -> dict[str, Any]:
    return {
        "audit_at": entry.at,
        "audit_actor": entry.actor,
        "audit_token_id": entry.token_id,
        "audit_action": entry.action,
        "audit_target": entry.target,
        "audit_project": entry.project,
        "audit_job": entry.job,
        "audit_status": entry.status,
        "audit_address": entry.address,
        "audit_request_id": entry.request_id,
        "audit_detail": json.dumps(dict(entry.detail)),
    }


_NAMES = (
    "audit_at",
    "audit_actor",
    "audit_token_id",
    "audit_action",
    "audit_target",
    "audit_project",
    "audit_job",
    "audit_status",
    "audit_address",
    "audit_request_id",
    "audit_detail",
)
