"""The leases of nodes, renewed many at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState
from service.adapters.postgres.direct import Statement, fetch
from service.usecases.records import Heartbeat

_SAID = """
    said AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:said AS jsonb))
            AS one(id text, token text, instance text, holding jsonb, slots jsonb, sequence bigint)
    )
"""
_ORDINARY = f"""
    nodes JOIN said USING (id)
    WHERE token_sha256 = said.token AND (token_since IS NOT NULL OR previous_token_sha256 IS NULL)
        AND nodes.instance = said.instance AND state <> '{NodeState.LOST}'
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
"""  # noqa: S608 - a word of our own
"""Nodes about which there is nothing else to be said or done, locked. Whoever holds one of these rows now is about to say more
about it: such a node is left out, and so nobody waits for another. So is one that uses a new token for the first time, or the
one before it.
"""
_RENEW = Statement(
    f"""
    WITH {_SAID}, due AS MATERIALIZED (SELECT nodes.id, said.slots FROM {_ORDINARY})
    UPDATE nodes SET seen_at = :now, slots = coalesce(due.slots, nodes.slots)
    FROM due WHERE nodes.id = due.id
    RETURNING nodes.id
    """  # noqa: S608
)
_LOCK = Statement(f"WITH {_SAID} SELECT nodes.id, nodes.last_sequence FROM {_ORDINARY}")  # noqa: S608
_KEEP = Statement(
    f"""
    WITH {_SAID}
    UPDATE nodes SET seen_at = :now, slots = coalesce(said.slots, nodes.slots), last_sequence = said.sequence
    FROM said WHERE nodes.id = said.id
    """  # noqa: S608
)
_COUNT = Statement(f"SELECT count(*) AS number FROM nodes WHERE state <> '{NodeState.LOST}'")  # noqa: S608


class PostgresLeases:
    """Implements `usecases.ports.Leases`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def renew(self, heartbeats: Sequence[Heartbeat], now: datetime) -> frozenset[str]:
        """Renew those that nothing is to be said about; returns the ids of their nodes."""
        said = json.dumps([_said(one) for one in heartbeats])
        return frozenset(row.id for row in await fetch(self._connection, _RENEW, said=said, now=now))

    async def lock(self, heartbeats: Sequence[Heartbeat]) -> dict[str, int]:
        """Lock those that nothing is to be said about; by id, how far their news were taken in."""
        said = json.dumps([_said(one) for one in heartbeats])
        return {row.id: row.last_sequence for row in await fetch(self._connection, _LOCK, said=said)}

    async def keep(self, heartbeats: Sequence[tuple[Heartbeat, int]], now: datetime) -> None:
        """Renew locked ones, with how far their news were taken in."""
        if heartbeats:
            said = json.dumps([{**_said(one), "sequence": sequence} for one, sequence in heartbeats])
            await fetch(self._connection, _KEEP, said=said, now=now)

    async def count(self) -> int:
        """Nodes that have a lease."""
        (row,) = await fetch(self._connection, _COUNT)
        return int(row.number)


def _said(one: Heartbeat) -> dict[str, Any]:
    return {
        "id": one.node_id,
        "token": one.token_sha256,
        "instance": one.instance,
        "holding": [{"job": job, "generation": number} for job, number in one.holding],
        **({"slots": [slot.model_dump(mode="json") for slot in one.slots]} if one.slots else {}),
    }
