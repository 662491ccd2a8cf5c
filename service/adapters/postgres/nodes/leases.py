"""Leases of nodes, renewed in batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from headway.contract.agents import NodeState
from service.adapters.postgres.engine.session import OnSession, Statement
from service.usecases.ports.nodes import Heartbeat

_REPORTED = """
    reported AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:reported AS jsonb))
            AS one(id text, token text, instance text, holding jsonb, slots jsonb, sequence bigint)
    )
"""
_ORDINARY = f"""
    nodes JOIN reported USING (id)
    WHERE token_sha256 = reported.token AND (token_since IS NOT NULL OR previous_token_sha256 IS NULL)
        AND nodes.instance = reported.instance AND state <> '{NodeState.LOST}'
        AND NOT EXISTS (
            SELECT FROM jsonb_to_recordset(reported.holding) AS held(job text, generation int)
            WHERE NOT EXISTS (
                SELECT FROM slot_grants WHERE node_id = nodes.id AND released_at IS NULL
                    AND job_id = held.job AND slot_grants.generation = held.generation
            )
        )
        AND NOT EXISTS (
            SELECT FROM quarantines WHERE quarantines.node_id = nodes.id AND quarantines.released_at IS NULL
        )
    FOR NO KEY UPDATE OF nodes SKIP LOCKED
"""  # noqa: S608 - constants
"""Selection and lock of the nodes whose heartbeat needs nothing but a renewal.

A row that another transaction has locked is skipped, because that transaction is about to change the node; so
nobody waits. Nodes that use a new token for the first time, or the token before it, are left out too.
"""
_RENEW = Statement(
    f"""
    WITH {_REPORTED}, due AS MATERIALIZED (SELECT nodes.id, reported.slots FROM {_ORDINARY})
    UPDATE nodes SET seen_at = :now, slots = coalesce(due.slots, nodes.slots)
    FROM due WHERE nodes.id = due.id
    RETURNING nodes.id
    """  # noqa: S608
)
_LOCK = Statement(f"WITH {_REPORTED} SELECT nodes.id, nodes.last_sequence FROM {_ORDINARY}")  # noqa: S608
_KEEP = Statement(
    f"""
    WITH {_REPORTED}
    UPDATE nodes SET seen_at = :now, slots = coalesce(reported.slots, nodes.slots), last_sequence = reported.sequence
    FROM reported WHERE nodes.id = reported.id
    """  # noqa: S608
)
_COUNT = Statement(f"SELECT count(*) AS number FROM nodes WHERE state <> '{NodeState.LOST}'")  # noqa: S608


class NodeLeases(OnSession):
    """Mixin for leases of nodes, renewed in batches."""

    async def renew_leases(self, heartbeats: Sequence[Heartbeat], now: datetime) -> frozenset[str]:
        reported = json.dumps([_reported(one) for one in heartbeats])
        return frozenset(row.id for row in await self._session.fetch(_RENEW, reported=reported, now=now))

    async def lock_renewable(self, heartbeats: Sequence[Heartbeat]) -> dict[str, int]:
        reported = json.dumps([_reported(one) for one in heartbeats])
        return {row.id: row.last_sequence for row in await self._session.fetch(_LOCK, reported=reported)}

    async def keep_leases(self, heartbeats: Sequence[tuple[Heartbeat, int]], now: datetime) -> None:
        if heartbeats:
            reported = json.dumps([{**_reported(one), "sequence": sequence} for one, sequence in heartbeats])
            await self._session.fetch(_KEEP, reported=reported, now=now)

    async def count(self) -> int:
        (row,) = await self._session.fetch(_COUNT)
        return int(row.number)


def _reported(one: Heartbeat) -> dict[str, Any]:
    return {
        "id": one.node_id,
        "token": one.token_sha256,
        "instance": one.instance,
        "holding": [{"job": job, "generation": number} for job, number in one.holding],
        **({"slots": [slot.model_dump(mode="json") for slot in one.slots]} if one.slots else {}),
    }
