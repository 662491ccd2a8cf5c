"""Outbox of commands to agents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import or_, select, update

from headway.contract.agents import AnyCommand, NodeState
from service.adapters.postgres.engine.session import OnSession, Statement
from service.adapters.postgres.tables.core import commands, nodes
from service.usecases.ports.facts import CommandTaken
from service.usecases.ports.rounds import Commands, Delivery, PendingCommand

_ADD = Statement(
    """
    INSERT INTO commands (id, node_id, job_id, generation, body, created_at)
    SELECT id, node_id, job_id, generation, body, :now
    FROM ROWS FROM (
        jsonb_to_recordset(CAST(:rows AS jsonb))
            AS (id text, node_id text, job_id text, generation int, body jsonb)
    ) WITH ORDINALITY AS one(id, node_id, job_id, generation, body, position)
    ORDER BY position
    ON CONFLICT (id) DO NOTHING
    """
)

_ACKNOWLEDGE = Statement(
    """
    UPDATE commands SET acknowledged_at = :now
    FROM unnest(CAST(:nodes AS text[]), CAST(:ids AS text[])) AS received(node, id), jobs
    WHERE commands.id = received.id AND commands.node_id = received.node AND acknowledged_at IS NULL AND jobs.id = commands.job_id
    RETURNING commands.id AS command_id, commands.node_id, commands.body->>'kind' AS kind, commands.job_id, jobs.project,
        jobs.reason, commands.generation, commands.body->>'traceparent' AS traceparent, commands.created_at,
        commands.acknowledged_at
    """
)


_LATEST_DELIVERY = Statement("SELECT number, at FROM deliveries")
_BEGIN_DELIVERY = Statement(
    """
    INSERT INTO deliveries AS known (id, number, at) VALUES (1, 1, :now)
    ON CONFLICT (id) DO UPDATE SET number = known.number + 1, at = excluded.at
    RETURNING number, at
    """
)
_SKIP_DELIVERIES = Statement(
    """
    INSERT INTO deliveries AS known (id, number, at) VALUES (1, CAST(:number AS bigint) + 1, :now)
    ON CONFLICT (id) DO UPDATE SET number = greatest(known.number, excluded.number), at = excluded.at
    """
)


class PostgresCommands(OnSession, Commands):
    """Commands in PostgreSQL."""

    async def add(self, commands: Sequence[tuple[str, AnyCommand]], now: datetime) -> None:
        rows = [
            {
                "id": command.command_id,
                "node_id": node_id,
                "job_id": command.job_id,
                "generation": command.generation,
                "body": command.model_dump(mode="json"),
            }
            for node_id, command in commands
        ]
        if rows:
            await self._session.fetch(_ADD, rows=json.dumps(rows), now=now)

    async def acknowledge(
        self, command_ids: Mapping[str, Sequence[str]], now: datetime
    ) -> list[CommandTaken]:
        received = [(node, command) for node, ids in command_ids.items() for command in ids]
        if not received:
            return []
        nodes_, ids_ = ([pair[column] for pair in received] for column in (0, 1))
        rows = await self._session.fetch(_ACKNOWLEDGE, nodes=nodes_, ids=ids_, now=now)
        return [CommandTaken(**row) for row in rows]

    async def take_due(self, now: datetime, push_again_s: float, limit: int) -> list[PendingCommand]:
        # A push time after `now` counts as old: the clock was set back since.
        again = timedelta(seconds=push_again_s)
        due = (
            select(commands.c.id)
            .join(nodes, nodes.c.id == commands.c.node_id)
            .where(
                commands.c.acknowledged_at.is_(None),
                nodes.c.state != NodeState.LOST,  # a lost node reads its commands when it returns
                or_(
                    commands.c.pushed_at.is_(None),
                    commands.c.pushed_at < now - again,
                    commands.c.pushed_at > now + again,
                ),
            )
            .order_by(commands.c.sequence)
            .limit(limit)
            .with_for_update(skip_locked=True, of=commands)
        )
        statement = (
            update(commands)
            .where(commands.c.id.in_(due.scalar_subquery()))
            .values(pushed_at=now, pushes=commands.c.pushes + 1)
            .returning(commands.c.sequence, commands.c.id, commands.c.node_id, commands.c.body)
        )
        rows = sorted(await self._session.rows(statement), key=lambda row: row.sequence)
        return [PendingCommand(row.id, row.node_id, json.dumps(row.body)) for row in rows]

    async def latest_delivery(self) -> Delivery | None:
        rows = await self._session.fetch(_LATEST_DELIVERY)
        return next((Delivery(row.number, row.at) for row in rows), None)

    async def begin_delivery(self, now: datetime) -> Delivery:
        (row,) = await self._session.fetch(_BEGIN_DELIVERY, now=now)
        return Delivery(row.number, row.at)

    async def skip_deliveries(self, number: int, now: datetime) -> None:
        await self._session.fetch(_SKIP_DELIVERIES, number=number, now=now)
