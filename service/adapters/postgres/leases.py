"""The leases of nodes, renewed many at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState
from service.adapters.postgres.tables import nodes
from service.usecases.records import Heartbeat

_RENEW = text(
    f"""
    WITH said AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:said AS jsonb))
            AS one(id text, token text, instance text, holding jsonb, slots jsonb)
    ), due AS MATERIALIZED (
        SELECT nodes.id, said.slots FROM nodes JOIN said USING (id)
        WHERE token_sha256 = said.token AND nodes.instance = said.instance AND state <> '{NodeState.LOST}'
            AND NOT EXISTS (
                SELECT FROM jsonb_to_recordset(said.holding) AS held(job text, generation int)
                WHERE NOT EXISTS (
                    SELECT FROM slot_grants WHERE node_id = nodes.id AND released_at IS NULL
                        AND job_id = held.job AND slot_grants.generation = held.generation
                )
            )
            AND NOT EXISTS (
                SELECT FROM quarantines WHERE quarantines.node_id = nodes.id AND quarantines.released_at IS NULL
            )
        FOR NO KEY UPDATE OF nodes SKIP LOCKED
    )
    UPDATE nodes SET seen_at = :now, slots = coalesce(due.slots, nodes.slots)
    FROM due WHERE nodes.id = due.id
    RETURNING nodes.id
    """  # noqa: S608 - a word of our own
)
"""Whoever holds one of these rows now is about to say more about it: such a node is left out, and so nobody waits for another."""


class PostgresLeases:
    """Implements `usecases.ports.Leases`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def renew(self, heartbeats: Sequence[Heartbeat], now: datetime) -> frozenset[str]:
        """Renew those that nothing is to be said about; returns the ids of their nodes."""
        said = [
            {
                "id": one.node_id,
                "token": one.token_sha256,
                "instance": one.instance,
                "holding": [{"job": job, "generation": number} for job, number in one.holding],
                **({"slots": [slot.model_dump(mode="json") for slot in one.slots]} if one.slots else {}),
            }
            for one in heartbeats
        ]
        renewed = await self._connection.execute(_RENEW, {"said": json.dumps(said), "now": now})
        return frozenset(renewed.scalars())

    async def count(self) -> int:
        """Nodes that have a lease."""
        query = select(func.count()).select_from(nodes).where(nodes.c.state != NodeState.LOST)
        return int((await self._connection.execute(query)).scalar_one())
