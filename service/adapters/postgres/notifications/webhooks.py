"""Rows of webhooks and their messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.webhooks import DeliveryView, WebhookView
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession, Statement, columns_of
from service.adapters.postgres.tables.identity import projects
from service.adapters.postgres.tables.notifications import webhook_messages, webhooks
from service.domain.notifications.retries import Answer, Verdict
from service.domain.shared.errors import NotFound
from service.usecases.identity.projects import no_project
from service.usecases.ports.notifications import Message, Outbox, Webhook, Webhooks
from service.usecases.ports.secrets import Sealed

_SEALED: Final = ("url", "secret", "old_secret")
NEW_ID = "'msg_' || replace(gen_random_uuid()::text, '-', '')"
"""SQL for the id of a new message."""
_ADD = Statement(
    f"""
    INSERT INTO webhook_messages (id, webhook_id, topic, data, created_at, next_at)
    SELECT {NEW_ID}, id, CAST(:topic AS text), CAST(:data AS jsonb), CAST(:now AS timestamptz), CAST(:now AS timestamptz)
    FROM webhooks
    WHERE (project = :project AND disabled_at IS NULL AND CAST(:topic AS text) = ANY(topics)) OR id = :webhook
    RETURNING id
    """  # noqa: S608 - constants
)
_CLAIM = Statement(
    f"""
    WITH due AS (
        SELECT chosen.id FROM webhooks CROSS JOIN LATERAL (
            SELECT id, next_at FROM webhook_messages
            WHERE webhook_id = webhooks.id AND next_at <= :now
            ORDER BY next_at
            LIMIT greatest(0, :each - cardinality(array_positions(CAST(:sending AS text[]), webhooks.id)))
            FOR UPDATE SKIP LOCKED
        ) AS chosen
        WHERE webhooks.disabled_at IS NULL
        ORDER BY chosen.next_at LIMIT :limit
    )
    UPDATE webhook_messages AS messages SET attempts = attempts + 1, next_at = :until
    FROM due, webhooks WHERE messages.id = due.id AND webhooks.id = messages.webhook_id
    RETURNING messages.id AS message_id, messages.topic AS message_topic, messages.data AS message_data,
        messages.created_at AS message_created_at, messages.attempts AS message_attempts, {columns_of(webhooks)}
    """  # noqa: S608
)
_SETTLE = Statement(
    """
    WITH settled AS (
        UPDATE webhook_messages SET state = :state, next_at = :next_at, status = :status, answer = :answer,
            ended_at = CASE WHEN CAST(:next_at AS timestamptz) IS NULL THEN CAST(:now AS timestamptz) END
        WHERE id = :id AND next_at IS NOT NULL RETURNING webhook_id
    )
    UPDATE webhooks SET
        failing_since = CASE WHEN :accepted THEN NULL ELSE coalesce(failing_since, CAST(:now AS timestamptz)) END,
        message = CASE WHEN :accepted AND disabled_at IS NULL THEN '' WHEN :accepted THEN message ELSE :message END,
        disabled_at = CASE WHEN :disable THEN CAST(:now AS timestamptz) ELSE disabled_at END
    FROM settled WHERE webhooks.id = settled.webhook_id AND (NOT :accepted OR failing_since IS NOT NULL)
    """
)
_VIEWS = text(
    """
    SELECT webhooks.*, disabled_at IS NULL AS enabled,
        (SELECT count(*) FROM webhook_messages WHERE webhook_id = webhooks.id AND next_at IS NOT NULL) AS waiting
    FROM webhooks WHERE project = :project ORDER BY name
    """
)


class PostgresWebhooks(OnSession, Webhooks):
    """Webhooks in PostgreSQL."""

    async def add(self, webhook: Webhook) -> bool:
        locked = select(projects.c.name).where(projects.c.name == webhook.project).with_for_update(read=True)
        if await self._session.first(locked) is None:
            raise NotFound(no_project(webhook.project))
        statement = upsert(webhooks).values(**_values(webhook)).on_conflict_do_nothing()
        return bool((await self._session.execute(statement)).rowcount)

    async def lock(self, project: str, name: str) -> Webhook:
        query = select(webhooks).where(webhooks.c.project == project, webhooks.c.name == name)
        row = await self._session.first(query.with_for_update())
        if row is None:
            raise _missing(project, name)
        return _webhook(dict(row._mapping))  # noqa: SLF001 - SQLAlchemy's public name for it

    async def save(self, webhook: Webhook) -> None:
        values = _values(webhook)
        await self._session.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(**values))

    async def delete(self, webhook_id: str) -> None:
        await self._session.execute(delete(webhooks).where(webhooks.c.id == webhook_id))

    async def of_project(self, project: str) -> list[WebhookView]:
        return [record_of(WebhookView, row) for row in await self._session.rows(_VIEWS, {"project": project})]

    async def named(self) -> list[tuple[str, str]]:
        query = select(webhooks.c.project, webhooks.c.name).order_by(webhooks.c.project, webhooks.c.name)
        return [(row.project, row.name) for row in await self._session.rows(query)]


class PostgresOutbox(OnSession, Outbox):
    """Messages of webhooks in PostgreSQL."""

    async def add(self, project: str, topic: str, data: Mapping[str, Any], now: datetime) -> None:
        values = {"topic": topic, "data": json.dumps(dict(data)), "now": now}
        await self._session.fetch(_ADD, project=project, webhook=None, **values)

    async def add_to(self, webhook: Webhook, topic: str, data: Mapping[str, Any], now: datetime) -> str:
        values = {"topic": topic, "data": json.dumps(dict(data)), "now": now}
        (row,) = await self._session.fetch(_ADD, project=None, webhook=webhook.id, **values)
        return str(row.id)

    async def claim(
        self, now: datetime, *, until: datetime, limit: int, each: int, sending: Sequence[str]
    ) -> list[Message]:
        rows = await self._session.fetch(
            _CLAIM, now=now, until=until, limit=limit, each=each, sending=list(sending)
        )
        return [
            Message(
                id=row.message_id,
                webhook=_webhook(row),
                topic=row.message_topic,
                data=row.message_data,
                created_at=row.message_created_at,
                attempts=row.message_attempts,
            )
            for row in rows
        ]

    async def settle(self, message: Message, answer: Answer, verdict: Verdict, now: datetime) -> None:
        failure = answer.text if answer.status is None else f"the receiver answered {answer.status}"
        await self._session.fetch(
            _SETTLE,
            id=message.id,
            state=verdict.state,
            next_at=verdict.next_at,
            status=answer.status,
            answer=answer.text,
            now=now,
            accepted=answer.accepted,
            message=verdict.disable or failure,
            disable=bool(verdict.disable),
        )

    async def make_due(self, webhook_id: str, now: datetime) -> None:
        waiting = webhook_messages.c.next_at.is_not(None), webhook_messages.c.webhook_id == webhook_id
        await self._session.execute(update(webhook_messages).where(*waiting).values(next_at=now))

    async def of_webhook(self, project: str, name: str, limit: int) -> list[DeliveryView]:
        named = select(webhooks.c.id).where(webhooks.c.project == project, webhooks.c.name == name)
        found = await self._session.first(named)
        if found is None:
            raise _missing(project, name)
        query = select(webhook_messages).where(webhook_messages.c.webhook_id == found.id)
        query = query.order_by(webhook_messages.c.created_at.desc(), webhook_messages.c.id).limit(limit)
        return [record_of(DeliveryView, row) for row in await self._session.rows(query)]


def _missing(project: str, name: str) -> NotFound:
    return NotFound(
        f"project {project} has no webhook named {name}; `headway webhook ls --project {project}` lists them."
    )


def _values(webhook: Webhook) -> dict[str, Any]:
    values = values_of(webhook, without=_SEALED)
    values["topics"] = [str(one) for one in webhook.topics]
    for name in _SEALED:
        sealed: Sealed | None = getattr(webhook, name)
        values[f"{name}_key_id"] = None if sealed is None else sealed.key_id
        values[f"{name}_sealed"] = None if sealed is None else sealed.data
    return values


def _webhook(row: Mapping[str, Any]) -> Webhook:
    sealed = {
        name: None if row[f"{name}_sealed"] is None else Sealed(row[f"{name}_key_id"], row[f"{name}_sealed"])
        for name in _SEALED
    }
    return record_of(Webhook, row, **sealed)
