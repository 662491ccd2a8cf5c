"""Views of jobs and of their history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Column, Row, select, text

from headway.contract.views.jobs import (
    TERMINAL_STATES,
    EventView,
    ExplainView,
    JobProgress,
    JobState,
    JobView,
    MetricPoint,
    Page,
    Reason,
    SizeOption,
    still_applies,
)
from service.adapters.postgres.engine.cursors import cursor_after, read_cursor
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import FetchedRow, OnSession, Statement
from service.adapters.postgres.jobs.jobs import COLUMNS, find_row, spec_of
from service.adapters.postgres.money.job_costs import costs_of_jobs
from service.adapters.postgres.tables.core import TERMINAL_SQL, events, metrics
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.status import (
    UNTAKEN_AFTER_S,
    LastDecision,
    UntakenCommands,
    present_reason,
    standing,
    untaken_text,
)
from service.usecases.ports.jobs import JobFilter, JobQueries, JobRef, SizeChange

_DECIDED_ABOUT = frozenset({JobState.PENDING, JobState.RUNNING})
_WITHOUT_COMMANDS = TERMINAL_STATES | {JobState.PENDING, JobState.PAUSED}
"""States in which no agent has anything to do for a job."""
_LISTED = {
    "state": "state = :state",
    "name": "name = :name",
    "project": "project = :project",
    "owner": "owner = :owner",
    "projects": "project = ANY(CAST(:projects AS text[]))",
    "live": f"NOT ({TERMINAL_SQL})",
    "after": "(submitted_at, id) < (:after_at, :after_id)",
}
_DECISION = Statement(
    "SELECT action, reason, message, round_id, decided_at, options, starts_at FROM decisions WHERE job_id = :job"
)
_LAST_DECISIONS = Statement(
    "SELECT job_id, action, message, starts_at FROM decisions WHERE job_id = ANY(CAST(:jobs AS text[]))"
)
_NODE_NAMES = Statement("SELECT id, name FROM nodes WHERE id = ANY(CAST(:nodes AS text[]))")
_UNTAKEN = Statement(
    """
    SELECT commands.job_id, array_agg(DISTINCT nodes.name) AS names, min(commands.created_at) AS since
    FROM commands JOIN nodes ON nodes.id = commands.node_id
    WHERE commands.acknowledged_at IS NULL AND commands.job_id = ANY(CAST(:jobs AS text[]))
        AND commands.created_at < :before AND nodes.state <> 'LOST'
    GROUP BY commands.job_id
    """
)
_SIZES = text(
    """
    SELECT job_id, generation, size, device_kind, reason, message, granted_at, ended_at FROM allocations
    WHERE job_id = ANY(CAST(:jobs AS text[])) AND (CAST(:since AS timestamptz) IS NULL OR ended_at IS NULL OR ended_at > :since)
    ORDER BY job_id, generation
    """
)
_SERIES = text(
    """
    SELECT name, max(at) AS at, max(samples) AS samples, avg(value) AS value
    FROM (
        SELECT name, at, samples, value, ntile(:points) OVER (PARTITION BY name ORDER BY id) AS part
        FROM metrics WHERE job_id = :job AND value NOT IN ('NaN', 'Infinity', '-Infinity')
    ) AS parts
    GROUP BY name, part ORDER BY name, part
    """
)

_HOLDING = Statement(
    """
    SELECT id FROM jobs
    WHERE id IN (SELECT job_id FROM slot_grants WHERE released_at IS NULL GROUP BY job_id ORDER BY job_id LIMIT :limit)
    ORDER BY submitted_at, id
    """
)
"""Query of jobs that hold slots. It groups along the index of held slots, so it stops after `limit` jobs."""


@cache
def _listing(by: frozenset[str]) -> Statement:
    """Return the statement that lists jobs by these conditions of `_LISTED`."""
    where = " AND ".join(condition for name, condition in _LISTED.items() if name in by) or "true"
    order = "ORDER BY submitted_at DESC, id DESC LIMIT :most"
    return Statement(f"SELECT {COLUMNS} FROM jobs WHERE {where} {order}")  # noqa: S608 - constants


class PostgresJobQueries(OnSession, JobQueries):
    """Views of jobs in PostgreSQL."""

    async def find(self, job: str, projects: frozenset[str] | None) -> JobRef:
        row = await find_row(self._session, job, projects=projects)
        return JobRef(row.id, row.project)

    async def list_jobs(self, filters: JobFilter, *, limit: int, cursor: str | None) -> Page[JobView]:
        after = None if cursor is None else read_cursor(cursor)
        values: dict[str, Any] = {
            "state": filters.state,
            "name": filters.name,
            "project": filters.project,
            "owner": filters.owner,
            "projects": None if filters.projects is None else list(filters.projects),
            "live": True if filters.live_only else None,
            "after": after,
        }
        by = frozenset(name for name, value in values.items() if value is not None)
        if after is not None:
            values |= {"after_at": after[0], "after_id": after[1]}
        rows = await self._session.fetch(_listing(by), most=limit + 1, **values)
        return Page(
            items=await self._views(rows[:limit]), next_cursor=cursor_after(rows, limit, "submitted_at")
        )

    async def job(self, job_id: str) -> JobView:
        (view,) = await self._views([await find_row(self._session, job_id)])
        return view

    async def explain(self, job_id: str) -> ExplainView:
        row = await find_row(self._session, job_id)
        decision = next(iter(await self._session.fetch(_DECISION, job=row.id)), None)
        settled = decision is None or not still_applies(JobState(row.state), decision.action)
        progress = JobProgress.model_validate_json(row.progress)
        return ExplainView(
            imposed_count=progress.imposed_count,
            imposed_s=progress.imposed_s,
            size=sum(len(slots) for slots in row.allocation.values()),
            progress_unit=progress.unit,
            job_id=row.id,
            name=row.name,
            state=JobState(row.state),
            action=decision.action if decision is not None else "none",
            reason=Reason(row.reason if settled or decision is None else decision.reason),
            message=row.message if settled or decision is None else decision.message,
            round_id=decision.round_id if decision is not None else None,
            decided_at=decision.decided_at if decision is not None else None,
            options=[SizeOption.model_validate(one) for one in decision.options] if decision else [],
            starts_at=None if settled or decision is None else decision.starts_at,
        )

    async def _views(self, rows: Sequence[FetchedRow]) -> list[JobView]:
        names = await self._node_names(rows)
        decided = await self._decided(rows)
        now = datetime.now(UTC)
        untaken = await self._untaken(rows, now)
        views = [_view(row, names, decided.get(row.id), untaken.get(row.id), now) for row in rows]
        costs = await costs_of_jobs(self._session, views)
        return [view.model_copy(update={"cost": costs.get(view.id)}) for view in views]

    async def _decided(self, rows: Sequence[FetchedRow]) -> dict[str, LastDecision]:
        """Return the latest decisions about the jobs in a state to which a decision can apply."""
        wanted = [row.id for row in rows if row.state in _DECIDED_ABOUT]
        if not wanted:
            return {}
        found = await self._session.fetch(_LAST_DECISIONS, jobs=wanted)
        return {row.job_id: LastDecision(row.action, row.message, row.starts_at) for row in found}

    async def _untaken(self, rows: Sequence[FetchedRow], now: datetime) -> dict[str, UntakenCommands]:
        """Return the commands about jobs that have not arrived although their nodes are alive."""
        wanted = [row.id for row in rows if row.state not in _WITHOUT_COMMANDS]
        if not wanted:
            return {}
        before = now - timedelta(seconds=UNTAKEN_AFTER_S)
        found = await self._session.fetch(_UNTAKEN, jobs=wanted, before=before)
        return {row.job_id: UntakenCommands(tuple(row.names), row.since) for row in found}

    async def _node_names(self, rows: Sequence[FetchedRow]) -> dict[str, str]:
        wanted = sorted({node for row in rows for node in row.allocation})
        if not wanted:
            return {}
        return {row.id: row.name for row in await self._session.fetch(_NODE_NAMES, nodes=wanted)}

    async def events(self, job_id: str, *, after: int, limit: int) -> Page[EventView]:
        rows, cursor = await self._rows_after(events.c.sequence, job_id, after, limit)
        items = [
            record_of(EventView, row, state=row.state or None, reason=row.reason or None) for row in rows
        ]
        return Page(items=items, next_cursor=cursor)

    async def starts(self, job_id: str) -> list[int]:
        starts = select(events.c.generation).where(
            events.c.job_id == job_id, events.c.kind == JobEvent.ALLOCATE.value
        )
        return await self._session.scalars(starts.order_by(events.c.sequence))

    async def metrics(self, job_id: str, *, after: int, limit: int) -> Page[MetricPoint]:
        rows, cursor = await self._rows_after(metrics.c.id, job_id, after, limit)
        items = [
            record_of(MetricPoint, row, value=row.value if math.isfinite(row.value) else 0.0) for row in rows
        ]
        return Page(items=items, next_cursor=cursor)

    async def _rows_after(
        self, number: Column[int], job_id: str, after: int, limit: int
    ) -> tuple[Sequence[Row[Any]], str | None]:
        """Return a page of a job's rows in the order of their number, and the cursor of the next page."""
        columns = number.table.c
        query = select(*columns).where(columns.job_id == job_id, number > after)
        rows = await self._session.rows(query.order_by(number).limit(limit + 1))
        more = str(getattr(rows[limit - 1], number.name)) if len(rows) > limit else None
        return rows[:limit], more

    async def sizes(
        self, job_ids: Sequence[str], since: datetime | None = None
    ) -> dict[str, list[SizeChange]]:
        found: dict[str, list[SizeChange]] = {}
        values = {"jobs": list(job_ids), "since": since}
        for row in await self._session.rows(_SIZES, values):
            found.setdefault(row.job_id, []).append(record_of(SizeChange, row))
        return found

    async def series(self, job_id: str, points: int) -> dict[str, list[tuple[datetime, int, float]]]:
        found: dict[str, list[tuple[datetime, int, float]]] = {}
        rows = await self._session.rows(_SERIES, {"job": job_id, "points": points})
        for row in rows:
            found.setdefault(row.name, []).append((row.at, row.samples, row.value))
        return found

    async def holding(self, limit: int) -> list[str]:
        return [row.id for row in await self._session.fetch(_HOLDING, limit=limit)]


def _view(
    row: FetchedRow,
    names: Mapping[str, str],
    decided: LastDecision | None,
    untaken: UntakenCommands | None,
    now: datetime,
) -> JobView:
    spec, state = spec_of(row.spec), JobState(row.state)
    size = sum(len(slots) for slots in row.allocation.values())
    progress = JobProgress.model_validate_json(row.progress)
    note = standing(progress, state, row.generation, now)
    if note:
        progress.samples_per_s = 0.0
    return record_of(
        JobView,
        row,
        size=size,
        allocation={names.get(node, node): slots for node, slots in row.allocation.items()},
        progress=progress,
        spec=spec,
        starts_at=decided.starts_at if decided is not None and still_applies(state, decided.action) else None,
        present=note
        or (untaken_text(untaken, now) if untaken is not None else "")
        or present_reason(
            spec=spec, state=state, size=size, pinned=row.pinned_size, message=row.message, last=decided
        ),
    )
