"""Rows of nodes, their quarantines and leases, and of API processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.agents import NodeState
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession, Statement, columns_of
from service.adapters.postgres.tables.core import api_processes, nodes, slot_grants
from service.adapters.postgres.tables.upkeep import quarantines, stragglers
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.health import Quarantine
from service.domain.nodes.stragglers import LONGEST, StragglerMark
from service.domain.shared.errors import NotFound
from service.usecases.ports.nodes import Heartbeat, NodeRecord, Nodes

_COLUMNS = columns_of(nodes)
_LOCK = Statement(f"SELECT {_COLUMNS} FROM nodes WHERE id = :node OR name = :node FOR NO KEY UPDATE")  # noqa: S608
_MANY = Statement(f"SELECT {_COLUMNS} FROM nodes WHERE id = ANY(:nodes)")  # noqa: S608
_SEEN = Statement("UPDATE nodes SET seen_at = :seen_at, last_sequence = :last_sequence WHERE id = :node")
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
_LOCK_ORDINARY = Statement(f"WITH {_REPORTED} SELECT nodes.id, nodes.last_sequence FROM {_ORDINARY}")  # noqa: S608
_KEEP = Statement(
    f"""
    WITH {_REPORTED}
    UPDATE nodes SET seen_at = :now, slots = coalesce(reported.slots, nodes.slots), last_sequence = reported.sequence
    FROM reported WHERE nodes.id = reported.id
    """  # noqa: S608
)
_COUNT = Statement(f"SELECT count(*) AS number FROM nodes WHERE state <> '{NodeState.LOST}'")  # noqa: S608
_OPEN = quarantines.c.released_at.is_(None)
_MARKED = Statement(
    f"SELECT {columns_of(stragglers)} FROM stragglers WHERE marked_at > :since ORDER BY node_id, slot"  # noqa: S608
)
_OPEN_ON = Statement(
    f"""
    SELECT {columns_of(quarantines)} FROM quarantines
    WHERE released_at IS NULL AND (CAST(:nodes AS text[]) IS NULL OR node_id = ANY(:nodes)) ORDER BY node_id, slot
    """  # noqa: S608 - constants
)


class PostgresNodes(OnSession, Nodes):
    """Nodes in PostgreSQL.

    Row locks leave the key alone (FOR NO KEY UPDATE). A report of one node adds commands and grants that
    refer to another node, and must not wait for that node's own report about the same job.
    """

    async def lock(self, node_id: str) -> NodeRecord:
        rows = await self._session.fetch(_LOCK, node=node_id)
        if not rows:
            raise NotFound(f"no node has the id or name {node_id!r}; `headway nodes` lists them.")
        return record_of(NodeRecord, rows[0])

    async def find(self, name: str) -> NodeRecord | None:
        query = select(nodes).where(nodes.c.name == name).with_for_update(key_share=True)
        row = await self._session.first(query)
        return None if row is None else record_of(NodeRecord, row)

    async def save(self, node: NodeRecord) -> None:
        # An update of the key would take a stronger lock than FOR NO KEY UPDATE.
        slots = [slot.model_dump(mode="json") for slot in node.slots]
        values = {**values_of(node, without={"id", "name"}), "slots": slots, "labels": dict(node.labels)}
        statement = upsert(nodes).values(id=node.id, name=node.name, **values)
        await self._session.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))

    async def seen(self, node: NodeRecord) -> None:
        await self._session.fetch(_SEEN, node=node.id, seen_at=node.seen_at, last_sequence=node.last_sequence)

    async def device_kinds(self) -> set[str]:
        query = text("SELECT DISTINCT slot->>'device_kind' FROM nodes, jsonb_array_elements(slots) AS slot")
        return set(await self._session.scalars(query))

    async def many(self, node_ids: Sequence[str]) -> dict[str, NodeRecord]:
        if not node_ids:
            return {}
        rows = await self._session.fetch(_MANY, nodes=list(node_ids))
        return {row.id: record_of(NodeRecord, row) for row in rows}

    async def silent_since(self, moment: datetime) -> list[str]:
        query = select(nodes.c.id).where(_silent(moment)).order_by(nodes.c.seen_at)
        return await self._session.scalars(query)

    async def lock_silent(self, node_id: str, moment: datetime) -> NodeRecord | None:
        query = select(nodes).where(nodes.c.id == node_id, _silent(moment))
        locked = query.with_for_update(key_share=True, skip_locked=True)
        row = await self._session.first(locked)
        return None if row is None else record_of(NodeRecord, row)

    async def reset_future_contacts(self, now: datetime, slack_s: float) -> None:
        late = nodes.c.seen_at > now + timedelta(seconds=slack_s)
        await self._session.execute(update(nodes).where(late).values(seen_at=now))

    async def reachable_since(self, now: datetime, gap_s: float) -> datetime | None:
        api = api_processes.c
        query = select(func.min(api.up_since), func.max(api.late_at)).where(_fresh(now, gap_s))
        up_since: datetime | None
        late_at: datetime | None
        up_since, late_at = (await self._session.execute(query)).one()
        return up_since if late_at is None or up_since is None else max(up_since, late_at)

    async def beat(self, process_id: str, now: datetime, gap_s: float, *, late: bool = False) -> None:
        late_at = now if late else None
        statement = upsert(api_processes).values(id=process_id, up_since=now, seen_at=now, late_at=late_at)
        unbroken = _fresh(now, gap_s)
        known = {
            "up_since": case((unbroken, api_processes.c.up_since), else_=now),
            "seen_at": now,
            "late_at": now if late else case((unbroken, api_processes.c.late_at), else_=None),
        }
        await self._session.execute(statement.on_conflict_do_update(index_elements=["id"], set_=known))

    async def renew_leases(self, heartbeats: Sequence[Heartbeat], now: datetime) -> frozenset[str]:
        reported = json.dumps([_reported(one) for one in heartbeats])
        return frozenset(row.id for row in await self._session.fetch(_RENEW, reported=reported, now=now))

    async def lock_renewable(self, heartbeats: Sequence[Heartbeat]) -> dict[str, int]:
        reported = json.dumps([_reported(one) for one in heartbeats])
        return {
            row.id: row.last_sequence for row in await self._session.fetch(_LOCK_ORDINARY, reported=reported)
        }

    async def keep_leases(self, heartbeats: Sequence[tuple[Heartbeat, int]], now: datetime) -> None:
        if heartbeats:
            reported = json.dumps([{**_reported(one), "sequence": sequence} for one, sequence in heartbeats])
            await self._session.fetch(_KEEP, reported=reported, now=now)

    async def count(self) -> int:
        (row,) = await self._session.fetch(_COUNT)
        return int(row.number)

    async def quarantines_of(self, slot: SlotKey, since: datetime) -> list[Quarantine]:
        query = (
            select(quarantines)
            .where(
                quarantines.c.node_id == slot.node_id,
                quarantines.c.slot == slot.slot,
                or_(_OPEN, quarantines.c.since > since),
            )
            .order_by(quarantines.c.since, quarantines.c.id)
        )
        return [record_of(Quarantine, row) for row in await self._session.rows(query)]

    async def open_quarantines(self, node_ids: Sequence[str] | None = None) -> list[Quarantine]:
        wanted = None if node_ids is None else list(node_ids)
        return [record_of(Quarantine, row) for row in await self._session.fetch(_OPEN_ON, nodes=wanted)]

    async def save_quarantine(self, quarantine: Quarantine) -> bool:
        values = values_of(quarantine, without={"id"})
        if quarantine.id is not None:
            statement = update(quarantines).where(quarantines.c.id == quarantine.id).values(values)
            await self._session.execute(statement)
            return True
        insertion = (
            upsert(quarantines)
            .values(values)
            .on_conflict_do_nothing(index_elements=["node_id", "slot"], index_where=_OPEN)
            .returning(quarantines.c.id)
        )
        return await self._session.first(insertion) is not None

    async def mark_straggler(self, mark: StragglerMark) -> None:
        values = values_of(mark)
        await self._session.execute(
            upsert(stragglers)
            .values(values)
            .on_conflict_do_update(index_elements=["node_id", "slot"], set_=values)
        )

    async def unmark_stragglers(self, slots: Sequence[SlotKey]) -> None:
        if slots:
            marked = tuple_(stragglers.c.node_id, stragglers.c.slot)
            keys = [(key.node_id, key.slot) for key in slots]
            await self._session.execute(delete(stragglers).where(marked.in_(keys)))

    async def stragglers(self, now: datetime) -> list[StragglerMark]:
        rows = await self._session.fetch(_MARKED, since=now - LONGEST)
        return [mark for mark in (record_of(StragglerMark, row) for row in rows) if mark.counts(now)]


def _silent(moment: datetime) -> ColumnElement[bool]:
    """Return the condition that a node was last seen before `moment` and is not LOST, or still holds slots."""
    held = select(slot_grants.c.id).where(
        slot_grants.c.node_id == nodes.c.id, slot_grants.c.released_at.is_(None)
    )
    return and_(nodes.c.seen_at < moment, or_(nodes.c.state != NodeState.LOST, held.exists()))


def _fresh(now: datetime, gap_s: float) -> ColumnElement[bool]:
    """Return the condition that an API process reported within `gap_s`.

    A report further than `gap_s` in the future does not count: some clock was set back since.
    """
    gap = timedelta(seconds=gap_s)
    seen_at = api_processes.c.seen_at
    return and_(seen_at > now - gap, seen_at < now + gap)


def _reported(one: Heartbeat) -> dict[str, Any]:
    return {
        "id": one.node_id,
        "token": one.token_sha256,
        "instance": one.instance,
        "holding": [{"job": job, "generation": number} for job, number in one.holding],
        **({"slots": [slot.model_dump(mode="json") for slot in one.slots]} if one.slots else {}),
    }
