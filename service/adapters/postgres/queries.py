"""Reads for the API: jobs, history and nodes as views."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState, SlotInfo
from headway.contract.health import QuarantineView
from headway.contract.jobs import (
    EventView,
    ExplainView,
    JobProgress,
    JobState,
    JobView,
    MetricPoint,
    Page,
    Reason,
    SizeOption,
)
from headway.contract.markets import Market
from headway.contract.nodes import NodeView, SlotView
from service.adapters.postgres.cursors import read_cursor, write_cursor
from service.adapters.postgres.direct import Row, Statement, fetch
from service.adapters.postgres.job_costs import costs_of_jobs
from service.adapters.postgres.jobs import COLUMNS, find_row, spec_of
from service.adapters.postgres.money_tables import ENDED_SQL, machines
from service.adapters.postgres.quarantines import PostgresQuarantines
from service.adapters.postgres.tables import (
    TERMINAL_SQL,
    events,
    jobs,
    metrics,
    nodes,
    slot_grants,
)
from service.domain.cluster import SlotKey
from service.domain.health import Quarantine
from service.domain.lifecycle import JobEvent
from service.domain.silence import SilenceRule
from service.usecases.records import JobFilter, JobRef

_FOREIGN = ("", "another project")
"""Whoever holds a slot and is not to be seen."""
_LISTED = {
    "state": "state = :state",
    "name": "name = :name",
    "project": "project = :project",
    "projects": "project = ANY(CAST(:projects AS text[]))",
    "live": f"NOT ({TERMINAL_SQL})",
    "after": "(submitted_at, id) < (:after_at, :after_id)",
}
_DECISION = Statement(
    "SELECT action, reason, message, round_id, decided_at, options FROM decisions WHERE job_id = :job"
)
_NODE_NAMES = Statement("SELECT id, name FROM nodes WHERE id = ANY(CAST(:nodes AS text[]))")


@cache
def _listing(by: frozenset[str]) -> Statement:
    """Of jobs, by these of `_LISTED`."""
    where = " AND ".join(condition for name, condition in _LISTED.items() if name in by) or "true"
    order = "ORDER BY submitted_at DESC, id DESC LIMIT :most"
    return Statement(f"SELECT {COLUMNS} FROM jobs WHERE {where} {order}")  # noqa: S608 - words of our own


class PostgresJobQueries:
    """Implements `usecases.ports.JobQueries`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, job: str, projects: frozenset[str] | None) -> JobRef:
        """The job of this id or name in one of the projects."""
        row = await find_row(self._connection, job, projects=projects)
        return JobRef(row.id, row.project)

    async def list_jobs(self, filters: JobFilter, *, limit: int, cursor: str | None) -> Page[JobView]:
        """Jobs, newest first."""
        after = None if cursor is None else read_cursor(cursor)
        values: dict[str, Any] = {
            "state": filters.state,
            "name": filters.name,
            "project": filters.project,
            "projects": None if filters.projects is None else list(filters.projects),
            "live": True if filters.live_only else None,
            "after": after,
        }
        by = frozenset(name for name, value in values.items() if value is not None)
        if after is not None:
            values |= {"after_at": after[0], "after_id": after[1]}
        rows = await fetch(self._connection, _listing(by), most=limit + 1, **values)
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(
            items=await self._views(rows[:limit]),
            next_cursor=write_cursor(last.submitted_at, last.id) if last is not None else None,
        )

    async def job(self, job_id: str) -> JobView:
        """One job by id, or the newest of that name."""
        (view,) = await self._views([await find_row(self._connection, job_id)])
        return view

    async def explain(self, job_id: str) -> ExplainView:
        """The last decision about a job; before the first one, its state."""
        row = await find_row(self._connection, job_id)
        decision = next(iter(await fetch(self._connection, _DECISION, job=row.id)), None)
        settled = decision is None or row.state not in {JobState.PENDING, JobState.RUNNING}
        return ExplainView(
            job_id=row.id,
            name=row.name,
            state=JobState(row.state),
            action=decision.action if decision is not None else "none",
            reason=Reason(row.reason if settled or decision is None else decision.reason),
            message=row.message if settled or decision is None else decision.message,
            round_id=decision.round_id if decision is not None else None,
            decided_at=decision.decided_at if decision is not None else None,
            options=[SizeOption.model_validate(one) for one in decision.options] if decision else [],
        )

    async def _views(self, rows: Sequence[Row]) -> list[JobView]:
        names = await self._node_names(rows)
        views = [_view(row, names) for row in rows]
        costs = await costs_of_jobs(self._connection, views)
        return [view.model_copy(update={"cost": costs.get(view.id)}) for view in views]

    async def _node_names(self, rows: Sequence[Row]) -> dict[str, str]:
        wanted = sorted({node for row in rows for node in row.allocation})
        if not wanted:
            return {}
        return {row.id: row.name for row in await fetch(self._connection, _NODE_NAMES, nodes=wanted)}


def _view(row: Row, names: Mapping[str, str]) -> JobView:
    return JobView(
        id=row.id,
        name=row.name,
        project=row.project,
        state=JobState(row.state),
        reason=Reason(row.reason),
        message=row.message,
        generation=row.generation,
        attempt=row.attempt,
        size=sum(len(slots) for slots in row.allocation.values()),
        allocation={names.get(node, node): slots for node, slots in row.allocation.items()},
        pinned_size=row.pinned_size,
        progress=JobProgress.model_validate_json(row.progress),
        preemptions=row.preemptions,
        infrastructure_failures=row.infrastructure_failures,
        user_errors=row.user_errors,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        spec=spec_of(row.spec),
    )


class PostgresHistoryQueries:
    """Implements `usecases.ports.HistoryQueries`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def events(self, job_id: str, *, after: int, limit: int) -> Page[EventView]:
        """Events after a sequence number, oldest first."""
        query = (
            select(events)
            .where(events.c.job_id == job_id, events.c.sequence > after)
            .order_by(events.c.sequence)
            .limit(limit + 1)
        )
        rows = (await self._connection.execute(query)).all()
        items = [
            EventView(
                sequence=row.sequence,
                job_id=row.job_id,
                at=row.at,
                kind=row.kind,
                state=JobState(row.state) if row.state else None,
                reason=Reason(row.reason) if row.reason else None,
                message=row.message,
                generation=row.generation,
                data=row.data,
            )
            for row in rows[:limit]
        ]
        return Page(items=items, next_cursor=str(items[-1].sequence) if len(rows) > limit else None)

    async def starts(self, job_id: str) -> list[int]:
        """The first generation of each start of the job that its history still has, oldest first."""
        starts = select(events.c.generation).where(
            events.c.job_id == job_id, events.c.kind == JobEvent.ALLOCATE.value
        )
        return list((await self._connection.execute(starts.order_by(events.c.sequence))).scalars())

    async def metrics(self, job_id: str, *, after: int, limit: int) -> Page[MetricPoint]:
        """Reported values after a cursor, oldest first."""
        query = (
            select(metrics)
            .where(metrics.c.job_id == job_id, metrics.c.id > after)
            .order_by(metrics.c.id)
            .limit(limit + 1)
        )
        rows = (await self._connection.execute(query)).all()
        items = [
            MetricPoint(
                at=row.at,
                generation=row.generation,
                epoch=row.epoch,
                samples=row.samples,
                name=row.name,
                value=row.value if math.isfinite(row.value) else 0.0,
            )
            for row in rows[:limit]
        ]
        return Page(items=items, next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None)


class PostgresNodeQueries:
    """Implements `usecases.ports.NodeQueries`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list_nodes(
        self, now: datetime, silence: SilenceRule, *, seen: frozenset[str] | None
    ) -> list[NodeView]:
        """Every node with who holds its slots, by name; not those whose machines were given back."""
        held = await self._connection.execute(
            select(slot_grants.c.node_id, slot_grants.c.slot, jobs.c.id, jobs.c.name, jobs.c.project)
            .join(jobs, jobs.c.id == slot_grants.c.job_id)
            .where(slot_grants.c.released_at.is_(None))
        )
        holders = {
            (row.node_id, row.slot): (row.id, row.name) if seen is None or row.project in seen else _FOREIGN
            for row in held.all()
        }
        confined = {one.key: one for one in await PostgresQuarantines(self._connection).open()}
        over = (
            select(machines.c.id)
            .where(machines.c.id == nodes.c.machine_id, text(f"machines.{ENDED_SQL}"))
            .exists()
        )
        query = select(nodes).where(~((nodes.c.state == NodeState.LOST) & over)).order_by(nodes.c.name)
        rows = (await self._connection.execute(query)).all()
        silence_s = silence.silence_of(sum(row.state != NodeState.LOST for row in rows))
        return [_node_view(row, holders, confined, now, silence_s) for row in rows]


def _quarantine_view(one: Quarantine | None) -> QuarantineView | None:
    if one is None:
        return None
    return QuarantineView(
        slot=one.slot,
        grade=one.grade,
        cause=one.cause,
        message=one.message,
        since=one.since,
        probe_at=one.probe_at,
        probes=one.probes,
    )


def _node_view(
    row: Any,
    holders: Mapping[tuple[str, int], tuple[str, str]],
    confined: Mapping[SlotKey, Quarantine],
    now: datetime,
    silence_s: float,
) -> NodeView:
    slots = []
    for info in (SlotInfo.model_validate(slot) for slot in row.slots):
        job_id, job_name = holders.get((row.id, info.index), (None, None))
        slots.append(
            SlotView(
                index=info.index,
                device_kind=info.device_kind,
                job_id=job_id,
                job_name=job_name,
                health=info.health,
                quarantine=_quarantine_view(confined.get(SlotKey(row.id, info.index))),
            )
        )
    return NodeView(
        id=row.id,
        name=row.name,
        state=NodeState(row.state),
        message=row.message,
        address=row.address,
        slots=slots,
        lease_remaining_s=silence_s - (now - row.seen_at).total_seconds(),
        joined_at=row.joined_at,
        agent_version=row.agent_version,
        market=Market(row.market),
        usd_per_slot_h=row.usd_per_slot_h,
        container_engine=row.container_engine,
    )
