"""Rows of hosts and of the connections between them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.links import HostFacts
from headway.contract.values.topology import crossed_level, placed_labels
from headway.contract.views.hosts import HostView, LinkView
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import FetchedRow, OnSession, Statement
from service.domain.nodes.links import Link
from service.usecases.ports.links import HostLinks, LinkRecord, ProbeTarget

_LIVE = f"state <> '{NodeState.LOST}'"
_LINK = "source_id, target_id, failure, probed_at, transferred_at, job_at, bytes_per_s"
_SAVE_FACTS = Statement(
    """
    INSERT INTO host_facts (node_id, source_address, facts, probe_key, reported_at)
    VALUES (:node, :source, CAST(:facts AS jsonb), :key, :now)
    ON CONFLICT (node_id) DO UPDATE SET source_address = excluded.source_address, facts = excluded.facts,
        probe_key = excluded.probe_key, reported_at = excluded.reported_at
    """
)
_FORGET = Statement("DELETE FROM host_links WHERE (source_id = :node OR target_id = :node) AND failure = ''")
_SAVE_CLOCK = Statement("UPDATE host_facts SET clock_ahead_s = :ahead_s WHERE node_id = :node")
_TARGETS = Statement(
    f"""
    SELECT nodes.id, name, nodes.address, CAST(facts->>'probe_port' AS int) AS probe_port, probe_key, slow_link, suspected_at,
        doubted_at,
        (SELECT coalesce(string_agg(DISTINCT slot->>'device_kind', ', '), '') FROM jsonb_array_elements(slots) AS slot) AS kinds
    FROM host_facts JOIN nodes ON nodes.id = node_id WHERE {_LIVE} ORDER BY nodes.id
    """  # noqa: S608 - constants
)
_SLOW = Statement(
    f"""
    SELECT node_id, slow_link FROM host_facts JOIN nodes ON nodes.id = node_id WHERE slow_link <> '' AND {_LIVE}
    ORDER BY node_id
    """  # noqa: S608
)
_SUSPECT = Statement(
    """
    UPDATE host_facts SET suspected_at = :now
    FROM (
        SELECT node_id AS id FROM host_facts
        WHERE node_id = ANY(:nodes)
            AND coalesce(suspected_at < CAST(:now AS timestamptz) - interval '1 minute', true)
        ORDER BY node_id FOR UPDATE SKIP LOCKED
    ) AS locked WHERE node_id = locked.id
    """
)
_SAVE_SLOW = Statement(
    """
    UPDATE host_facts SET slow_link = locked.slow_link, doubted_at = locked.doubted_at
    FROM (
        SELECT node_id AS id, one.slow_link, one.doubted_at FROM host_facts
        JOIN jsonb_to_recordset(CAST(:found AS jsonb)) AS one(node text, slow_link text, doubted_at timestamptz)
            ON one.node = node_id
        ORDER BY node_id FOR UPDATE OF host_facts
    ) AS locked WHERE node_id = locked.id
    """
)
_SPANNING = Statement(
    """
    SELECT job_id, generation, crossed, slots::text AS slots FROM allocations
    WHERE ended_at IS NULL AND slots ?| :nodes ORDER BY job_id, generation
    """
)
_LABELS = Statement("SELECT id, labels::text AS labels FROM nodes WHERE id = ANY(:nodes)")
_CROSS = Statement(
    "UPDATE allocations SET crossed = :crossed WHERE job_id = :job AND generation = :generation"
)
_BETWEEN_LIVE = f"""
    EXISTS (SELECT FROM nodes WHERE nodes.id = source_id AND {_LIVE})
    AND EXISTS (SELECT FROM nodes WHERE nodes.id = target_id AND {_LIVE})
"""  # noqa: S608
_ALL = Statement(f"SELECT {_LINK} FROM host_links WHERE {_BETWEEN_LIVE}")  # noqa: S608
_OF_SOURCE = Statement(f"SELECT {_LINK} FROM host_links WHERE source_id = :node")  # noqa: S608
_FAILING = Statement(
    f"SELECT source_id, target_id FROM host_links WHERE failure <> '' AND {_BETWEEN_LIVE}"  # noqa: S608
)
_CONCERNING = Statement(
    f"""
    SELECT {_LINK} FROM host_links
    WHERE (source_id = ANY(:nodes) OR target_id = ANY(:nodes)) AND {_BETWEEN_LIVE}
    """  # noqa: S608
)
_SAVE = Statement(
    """
    INSERT INTO host_links AS known (source_id, target_id, address, port, failure, since, probed_at, job_at, transferred_at,
        connect_s, bytes_per_s)
    SELECT one.* FROM jsonb_to_recordset(CAST(:links AS jsonb)) AS one(source_id text, target_id text, address text, port int,
        failure text, since timestamptz, probed_at timestamptz, job_at timestamptz, transferred_at timestamptz,
        connect_s float, bytes_per_s float)
    WHERE EXISTS (SELECT FROM nodes WHERE nodes.id = one.target_id) AND EXISTS (SELECT FROM nodes WHERE nodes.id = one.source_id)
    ORDER BY one.source_id, one.target_id
    ON CONFLICT (source_id, target_id) DO UPDATE SET address = excluded.address, port = excluded.port,
        failure = excluded.failure, probed_at = excluded.probed_at,
        since = CASE WHEN (known.failure = '') = (excluded.failure = '') THEN known.since ELSE excluded.since END,
        job_at = coalesce(excluded.job_at, known.job_at),
        transferred_at = coalesce(excluded.transferred_at, known.transferred_at),
        connect_s = coalesce(excluded.connect_s, known.connect_s),
        bytes_per_s = coalesce(excluded.bytes_per_s, known.bytes_per_s)
    """
)
_FORGET_BEFORE = Statement("DELETE FROM host_links WHERE probed_at < :moment")
_HOSTS = Statement(
    f"""
    SELECT nodes.id AS node_id, name, state, address, agent_version, coalesce(source_address, '') AS source_address,
        clock_ahead_s, coalesce(slow_link, '') AS slow_link, coalesce(facts, '{{}}'::jsonb)::text AS facts
    FROM nodes LEFT JOIN host_facts ON node_id = nodes.id WHERE {_LIVE} ORDER BY name
    """  # noqa: S608
)
_VIEWS = Statement(
    f"""
    SELECT source_id, source.name AS source, target_id, target.name AS target, host_links.address, port, failure,
        failure <> '' AND job_at IS NOT NULL AND job_at >= since AS by_job, connect_s, bytes_per_s, since, probed_at
    FROM host_links JOIN nodes AS source ON source.id = source_id JOIN nodes AS target ON target.id = target_id
    WHERE source.{_LIVE} AND target.{_LIVE} ORDER BY source.name, target.name
    """  # noqa: S608
)


_EXECUTES = Statement(
    """
    SELECT coalesce(CAST(facts->>'executes' AS boolean), false) AS executes,
        coalesce(CAST(facts->>'executes_with_input' AS boolean), false) AS with_input
    FROM host_facts WHERE node_id = :node
    """
)


class PostgresHostLinks(OnSession, HostLinks):
    """Hosts and connections in PostgreSQL."""

    async def executes(self, node_id: str, *, with_input: bool = False) -> bool:
        found = await self._session.fetch(_EXECUTES, node=node_id)
        return any(row.executes and (row.with_input or not with_input) for row in found)

    async def save_facts(
        self, node_id: str, facts: HostFacts | None, source_address: str, now: datetime
    ) -> None:
        await self._session.fetch(_FORGET, node=node_id)
        described = facts or HostFacts()
        await self._session.fetch(
            _SAVE_FACTS,
            node=node_id,
            source=source_address,
            facts=described.model_dump_json(exclude={"probe_key"}),
            key=described.probe_key,
            now=now,
        )

    async def slow(self) -> dict[str, str]:
        return {row.node_id: row.slow_link for row in await self._session.fetch(_SLOW)}

    async def suspect(self, node_ids: Sequence[str], now: datetime) -> None:
        await self._session.fetch(_SUSPECT, nodes=list(node_ids), now=now)

    async def save_slow(self, targets: Sequence[ProbeTarget]) -> None:
        rows = [
            {
                "node": one.id,
                "slow_link": one.slow_link,
                "doubted_at": None if one.doubted_at is None else one.doubted_at.isoformat(),
            }
            for one in targets
        ]
        await self._session.fetch(_SAVE_SLOW, found=json.dumps(rows))

    async def relabel(self, node_ids: Collection[str]) -> None:
        spanning = await self._session.fetch(_SPANNING, nodes=sorted(node_ids))
        places = {(row.job_id, row.generation): (row.crossed, json.loads(row.slots)) for row in spanning}
        ids = sorted({node for _, slots in places.values() for node in slots})
        slow = await self.slow() if places else {}
        labels = {
            row.id: placed_labels(json.loads(row.labels), row.id, slow.get(row.id, ""))
            for row in (await self._session.fetch(_LABELS, nodes=ids) if ids else [])
        }
        for (job, generation), (before, slots) in places.items():
            crossed = crossed_level(labels[node] for node in slots if node in labels)
            if crossed != before:
                await self._session.fetch(_CROSS, job=job, generation=generation, crossed=crossed)

    async def save_clock(self, node_id: str, clock_ahead_s: float) -> None:
        await self._session.fetch(_SAVE_CLOCK, node=node_id, ahead_s=clock_ahead_s)

    async def targets(self) -> list[ProbeTarget]:
        return [record_of(ProbeTarget, row) for row in await self._session.fetch(_TARGETS)]

    async def all(self) -> list[Link]:
        return [_link(row) for row in await self._session.fetch(_ALL)]

    async def of_source(self, node_id: str) -> list[Link]:
        return [_link(row) for row in await self._session.fetch(_OF_SOURCE, node=node_id)]

    async def concerning_failures(self) -> list[Link]:
        failing = await self._session.fetch(_FAILING)
        if not failing:
            return []
        ends = sorted({node for row in failing for node in (row.source_id, row.target_id)})
        return [_link(row) for row in await self._session.fetch(_CONCERNING, nodes=ends)]

    async def save(self, links: Sequence[LinkRecord]) -> None:
        rows = [{**values_of(one), **_moments(one)} for one in links]
        await self._session.fetch(_SAVE, links=json.dumps(rows))

    async def forget_before(self, moment: datetime) -> None:
        await self._session.fetch(_FORGET_BEFORE, moment=moment)

    async def hosts(self) -> list[HostView]:
        rows = await self._session.fetch(_HOSTS)
        return [record_of(HostView, {**json.loads(row.facts), **dict(row.items())}) for row in rows]

    async def views(self) -> list[LinkView]:
        return [record_of(LinkView, row) for row in await self._session.fetch(_VIEWS)]


def _link(row: FetchedRow) -> Link:
    return Link(
        row.source_id,
        row.target_id,
        row.failure,
        row.probed_at,
        row.transferred_at,
        row.job_at,
        row.bytes_per_s,
    )


def _moments(one: LinkRecord) -> dict[str, str | None]:
    """Return the times of a record as text for JSON."""
    named = {
        "since": one.since,
        "probed_at": one.probed_at,
        "job_at": one.job_at,
        "transferred_at": one.transferred_at,
    }
    return {name: None if moment is None else moment.isoformat() for name, moment in named.items()}
