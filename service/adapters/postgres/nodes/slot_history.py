"""Queries for the chart of slots over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession, Statement
from service.adapters.postgres.tables.rental import ENDED_SQL
from service.usecases.ports.nodes import HeldSlot, JobTurn, NodeSlots, QuarantinePeriod

_FOREIGN = {"job_id": "", "job_name": "another project", "generation": 0}
"""Fields shown of a grant whose job the reader may not see."""
_NODES = Statement(
    f"""
    SELECT id, name, state, message, coalesce(slots->0->>'device_kind', '') AS device_kind,
           jsonb_path_query_array(slots, '$[*].index') AS slots
    FROM nodes
    WHERE NOT (state = 'LOST' AND EXISTS (
        SELECT FROM machines WHERE machines.id = nodes.machine_id AND machines.{ENDED_SQL}
    ))
    ORDER BY name
    """  # noqa: S608 - constants
)
_RELEASES = Statement(
    """
    SELECT wanted.id, ended.number
    FROM unnest(CAST(:nodes AS text[])) AS wanted(id)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM slot_grants WHERE node_id = wanted.id AND released_at > :since
    ) AS ended
    WHERE ended.number > 0
    """
)
"""Number of ended grants per node. The index begins with the node, so each node needs one short range of it.
"""

_HELD = Statement(
    """
    SELECT held.node_id, held.slot, held.job_id, jobs.name AS job_name, held.generation, held.granted_at, held.released_at,
           CAST(:seen AS text[]) IS NULL OR jobs.project = ANY(:seen) AS own
    FROM (
        SELECT * FROM slot_grants WHERE node_id = ANY(:nodes) AND released_at IS NULL
        UNION ALL
        SELECT * FROM slot_grants WHERE node_id = ANY(:nodes) AND released_at > :since
    ) AS held
    JOIN jobs ON jobs.id = held.job_id
    ORDER BY held.released_at DESC NULLS FIRST LIMIT :limit
    """
)
_TURNS = Statement(
    """
    SELECT job_id, at, kind, generation, message FROM events
    WHERE job_id = ANY(:jobs) AND at >= :since AND kind IN (
        'cancel', 'fail_rank', 'first_step', 'give_up', 'prepare', 'start', 'succeed', 'switch', 'vacate'
    )
    ORDER BY sequence
    """
)
_QUARANTINED = Statement(
    """
    SELECT node_id, slot, since, released_at, message FROM quarantines
    WHERE node_id = ANY(:nodes) AND (released_at IS NULL OR released_at > :since)
    ORDER BY since
    """
)


class SlotHistory(OnSession):
    """Mixin for the holders of slots over time."""

    async def slots(self) -> list[NodeSlots]:
        return [record_of(NodeSlots, row) for row in await self._session.fetch(_NODES)]

    async def releases(self, node_ids: Sequence[str], since: datetime) -> dict[str, int]:
        rows = await self._session.fetch(_RELEASES, nodes=list(node_ids), since=since)
        return {row.id: row.number for row in rows}

    async def held(
        self, node_ids: Sequence[str], since: datetime, *, seen: frozenset[str] | None, limit: int
    ) -> list[HeldSlot]:
        rows = await self._session.fetch(
            _HELD,
            nodes=list(node_ids),
            since=since,
            seen=None if seen is None else sorted(seen),
            limit=limit,
        )
        return [record_of(HeldSlot, row, **({} if row.own else _FOREIGN)) for row in rows]

    async def turns(self, job_ids: Sequence[str], since: datetime) -> list[JobTurn]:
        rows = await self._session.fetch(_TURNS, jobs=list(job_ids), since=since)
        return [record_of(JobTurn, row) for row in rows]

    async def quarantined(self, node_ids: Sequence[str], since: datetime) -> list[QuarantinePeriod]:
        rows = await self._session.fetch(_QUARANTINED, nodes=list(node_ids), since=since)
        return [record_of(QuarantinePeriod, row) for row in rows]
