"""Views of nodes, and of the holders of their slots over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, text

from headway.contract.agents import NodeState
from headway.contract.health import QuarantineView
from headway.contract.views.nodes import NodeView, SlotView
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession, Statement
from service.adapters.postgres.nodes.links import PostgresHostLinks
from service.adapters.postgres.nodes.nodes import PostgresNodes
from service.adapters.postgres.tables.core import jobs, nodes, slot_grants
from service.adapters.postgres.tables.rental import ENDED_SQL, machines
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.health import Quarantine
from service.domain.nodes.links import apart_of
from service.domain.nodes.silence import SilenceRule
from service.usecases.ports.nodes import HeldSlot, JobTurn, NodeQueries, NodeSlots, QuarantinePeriod

_ALONE = "gets jobs of one node only: {}; see headway doctor --cluster"
_SLOW = "gets jobs of several nodes last: {}; see headway doctor --cluster"
_FOREIGN = "another project"
"""Name shown for a job that the reader may not see."""
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


class PostgresNodeQueries(OnSession, NodeQueries):
    """Views of nodes in PostgreSQL."""

    async def list_nodes(
        self, now: datetime, silence: SilenceRule, *, seen: frozenset[str] | None
    ) -> list[NodeView]:
        held = (
            select(slot_grants.c.node_id, slot_grants.c.slot, jobs.c.id, jobs.c.name, jobs.c.project)
            .join(jobs, jobs.c.id == slot_grants.c.job_id)
            .where(slot_grants.c.released_at.is_(None))
        )
        holders = {
            (row.node_id, row.slot): (row.id, row.name)
            if seen is None or row.project in seen
            else ("", _FOREIGN)
            for row in await self._session.rows(held)
        }
        confined = {one.key: one for one in await PostgresNodes(self._session).open_quarantines()}
        slow = {one.key: one.sentence for one in await PostgresNodes(self._session).stragglers(now)}
        over = (
            select(machines.c.id)
            .where(machines.c.id == nodes.c.machine_id, text(f"machines.{ENDED_SQL}"))
            .exists()
        )
        query = select(nodes).where(~((nodes.c.state == NodeState.LOST) & over)).order_by(nodes.c.name)
        rows = await self._session.rows(query)
        silence_s = silence.silence_of(sum(row.state != NodeState.LOST for row in rows))
        links = PostgresHostLinks(self._session)
        alone = apart_of(await links.concerning_failures(), now).alone
        behind = await links.slow()
        notes = {node: _SLOW.format(link) for node, link in behind.items()} | {
            node: _ALONE.format(failure) for node, failure in alone.items()
        }
        views = [_node_view(row, holders, confined, slow, now, silence_s) for row in rows]
        return [
            view.model_copy(
                update={"message": "; ".join(one for one in (view.message, notes.get(view.id)) if one)}
            )
            for view in views
        ]

    async def slots(self) -> list[NodeSlots]:
        return [record_of(NodeSlots, row) for row in await self._session.fetch(_NODES)]

    async def releases(self, node_ids: Sequence[str], since: datetime) -> dict[str, int]:
        rows = await self._session.fetch(_RELEASES, nodes=list(node_ids), since=since)
        return {row.id: row.number for row in rows}

    async def held(
        self, node_ids: Sequence[str], since: datetime, *, seen: frozenset[str] | None, limit: int
    ) -> list[HeldSlot]:
        rows = await self._session.fetch(
            _HELD, nodes=list(node_ids), since=since, seen=None if seen is None else sorted(seen), limit=limit
        )
        hidden = {"job_id": "", "job_name": _FOREIGN, "generation": 0}
        return [record_of(HeldSlot, row, **({} if row.own else hidden)) for row in rows]

    async def turns(self, job_ids: Sequence[str], since: datetime) -> list[JobTurn]:
        rows = await self._session.fetch(_TURNS, jobs=list(job_ids), since=since)
        return [record_of(JobTurn, row) for row in rows]

    async def quarantined(self, node_ids: Sequence[str], since: datetime) -> list[QuarantinePeriod]:
        rows = await self._session.fetch(_QUARANTINED, nodes=list(node_ids), since=since)
        return [record_of(QuarantinePeriod, row) for row in rows]


def _message(message: str, slots: Sequence[SlotView]) -> str:
    """Return the message of a node. The reason why its agent takes no jobs precedes everything else."""
    why = next((slot.withheld for slot in slots if slot.withheld), "")
    return f"takes no jobs: {why}" if why else message


def _node_view(
    row: Any,
    holders: Mapping[tuple[str, int], tuple[str, str]],
    confined: Mapping[SlotKey, Quarantine],
    slow: Mapping[SlotKey, str],
    now: datetime,
    silence_s: float,
) -> NodeView:
    slots = []
    for slot in row.slots:
        job_id, job_name = holders.get((row.id, slot["index"]), (None, None))
        key = SlotKey(row.id, slot["index"])
        quarantine = confined.get(key)
        view = None if quarantine is None else record_of(QuarantineView, values_of(quarantine))
        more = {"quarantine": view, "slow": slow.get(key, "")}
        slots.append(record_of(SlotView, slot, job_id=job_id, job_name=job_name, **more))
    return record_of(
        NodeView,
        row,
        message=_message(row.message, slots),
        slots=slots,
        lease_remaining_s=silence_s - (now - row.seen_at).total_seconds(),
    )
