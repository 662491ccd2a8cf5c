"""Rows of the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from sqlalchemy import select, text

from headway.contract.views.identity import AuditView
from headway.contract.views.jobs import Page
from service.adapters.postgres.engine.records import values_of
from service.adapters.postgres.engine.session import OnSession, Session
from service.adapters.postgres.tables.core import TERMINAL_SQL
from service.adapters.postgres.tables.identity import audit
from service.domain.shared.errors import InvalidField
from service.usecases.ports.audit import Audit, AuditEntry, AuditFilter

COLUMNS = "at, actor, token_id, action, target, project, status, address, request_id, detail"
VALUES = (
    "CAST(:audit_at AS timestamptz), CAST(:audit_actor AS text), CAST(:audit_token_id AS text), "
    "CAST(:audit_action AS text), CAST(:audit_target AS text), {project}, CAST(:audit_status AS integer), "
    "CAST(:audit_address AS text), CAST(:audit_request_id AS text), CAST(:audit_detail AS jsonb)"
)
_OF_JOB = f"SELECT project FROM jobs WHERE {{column}} = :audit_job ORDER BY ({TERMINAL_SQL}), submitted_at DESC LIMIT 1"  # noqa: S608
_OF_SWEEP = (
    "SELECT project FROM sweeps WHERE id = :audit_sweep OR name = :audit_sweep "
    "ORDER BY id = :audit_sweep DESC, submitted_at DESC LIMIT 1"
)
_PROJECT = (
    "COALESCE(CAST(:audit_project AS text), "
    f"({_OF_JOB.format(column='id')}), ({_OF_JOB.format(column='name')}), ({_OF_SWEEP}))"
)
_ADD = f"INSERT INTO audit ({COLUMNS}) SELECT {VALUES.format(project=_PROJECT)}"
_ADD_ALWAYS = text(_ADD)
_CHANGED = text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
"""Query whether the transaction has changed something, or has locked a row to change it: from then on
PostgreSQL gives it an id. The test is a separate statement because a read-only transaction refuses an INSERT
even of no rows.
"""


class PostgresAudit(OnSession, Audit):
    """Audit log in PostgreSQL.

    The caller runs `flush` before the commit.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._entry: Callable[[], AuditEntry] | None = None
        self._by: dict[str, str | None] = {}

    def about(self, entry: Callable[[], AuditEntry]) -> None:
        self._entry = entry

    def by(self, actor: str, token_id: str | None = None) -> None:
        self._by = {"audit_actor": actor, "audit_token_id": token_id}

    async def add(self, entry: AuditEntry) -> None:
        await self._session.execute(_ADD_ALWAYS, _row(entry))

    def take(self) -> dict[str, Any]:
        """Return the values of the pending entry, for a statement that writes it with the change.

        Every value is None if no entry is pending.
        """
        entry, self._entry = self._entry, None
        return dict.fromkeys(_NAMES) if entry is None else {**_row(entry()), **self._by}

    async def flush(self) -> None:
        """Write the pending entry if the transaction has changed anything."""
        if self._entry is not None and (await self._session.execute(_CHANGED)).scalar_one():
            await self._session.execute(_ADD_ALWAYS, self.take())

    async def page(self, wanted: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditView]:
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
        rows = await self._session.rows(query)
        items = [AuditView.model_validate(row, from_attributes=True) for row in rows[:limit]]
        return Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


def _id_in(cursor: str) -> int:
    if not cursor.isdecimal() or len(cursor) > 18:
        raise InvalidField(
            "cursor", "this is not a cursor of this listing; repeat the request without a cursor"
        )
    return int(cursor)


def _row(entry: AuditEntry) -> dict[str, Any]:
    values = {f"audit_{name}": value for name, value in values_of(entry).items()}
    return {**values, "audit_detail": json.dumps(dict(entry.detail))}


_NAMES = tuple(f"audit_{field.name}" for field in fields(AuditEntry))
