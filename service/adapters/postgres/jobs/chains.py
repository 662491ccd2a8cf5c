"""Rows of the jobs that other jobs wait for."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from headway.contract.spec_after import AfterEnd
from headway.contract.views.jobs import TERMINAL_STATES, GraphEdge, GraphJob, GraphView, JobState, Reason
from service.adapters.postgres.engine.session import FetchedRow, OnSession, Statement
from service.adapters.postgres.tables.core import TERMINAL_SQL
from service.domain.jobs.after import Predecessor
from service.domain.jobs.job import Job
from service.usecases.ports.chains import Chains

_CHOSEN = Statement(
    f"""
    SELECT key, found.id FROM unnest(CAST(:keys AS text[])) AS key
    CROSS JOIN LATERAL (
        SELECT id FROM jobs WHERE (id = key OR name = key) AND project = :project
        ORDER BY id = key DESC, ({TERMINAL_SQL}), submitted_at DESC LIMIT 1
    ) AS found
    """  # noqa: S608 - constants
)
_LOCKED = Statement(
    "SELECT id, name, state, reason FROM jobs WHERE id = ANY(CAST(:jobs AS text[])) ORDER BY id FOR SHARE"
)
"""The state is read with the lock: an end that is under way is awaited, and a later one finds the new rows."""
_ADD = Statement(
    """
    INSERT INTO predecessors (job_id, predecessor_id, key, name, ends, files, position, ended_state, ended_reason)
    SELECT :job, * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS one (
        id text, key text, name text, ends text, files boolean, position integer, ended text, reason text
    )
    """
)
_OF = Statement(
    """
    SELECT predecessor_id AS id, key, name, ends, files, ended_state, ended_reason FROM predecessors
    WHERE job_id = :job ORDER BY position
    """
)
_NOTE_END = Statement(
    """
    UPDATE predecessors SET ended_state = :state, ended_reason = :reason
    FROM jobs WHERE predecessor_id = :job AND ended_state IS NULL AND jobs.id = predecessors.job_id AND jobs.waits
    RETURNING predecessors.job_id
    """
)
_READY = Statement(
    f"""
    SELECT id FROM jobs
    WHERE waits AND NOT ({TERMINAL_SQL}) AND NOT id = ANY(CAST(:without AS text[])) AND NOT EXISTS (
        SELECT FROM predecessors WHERE predecessors.job_id = jobs.id AND ended_state IS NULL
    )
    ORDER BY submitted_at, id LIMIT :limit
    """  # noqa: S608
)
_MOST_EDGES = 2000
_EDGES = Statement(
    f"""
    WITH RECURSIVE linked (job_id) AS (
        SELECT id FROM jobs
        WHERE (id = :job OR CAST(:job AS text) IS NULL AND waits AND NOT ({TERMINAL_SQL}))
            AND (CAST(:projects AS text[]) IS NULL OR project = ANY(CAST(:projects AS text[])))
        UNION
        SELECT CASE WHEN edge.job_id = linked.job_id THEN edge.predecessor_id ELSE edge.job_id END
        FROM linked JOIN predecessors AS edge ON linked.job_id IN (edge.job_id, edge.predecessor_id)
    )
    SELECT job_id, predecessor_id, name, ends, ended_state FROM predecessors
    WHERE job_id IN (SELECT job_id FROM linked) ORDER BY job_id, position LIMIT :most
    """  # noqa: S608
)
_JOBS = Statement(
    "SELECT id, name, state, message FROM jobs WHERE id = ANY(CAST(:jobs AS text[])) ORDER BY submitted_at, id"
)


class PostgresChains(OnSession, Chains):
    """Chains of jobs in PostgreSQL."""

    async def find(self, project: str, keys: Sequence[str]) -> dict[str, Predecessor]:
        rows = await self._session.fetch(_CHOSEN, project=project, keys=list(keys))
        chosen = {row.key: row.id for row in rows}
        locked = {
            row.id: row for row in await self._session.fetch(_LOCKED, jobs=sorted(set(chosen.values())))
        }
        return {key: _found(key, locked[job_id]) for key, job_id in chosen.items() if job_id in locked}

    async def add(self, job_id: str, predecessors: Sequence[Predecessor]) -> None:
        rows = [
            {
                "id": one.id,
                "key": one.key,
                "name": one.name,
                "ends": one.on.value,
                "files": one.files,
                "position": position,
                "ended": one.ended,
                "reason": one.reason,
            }
            for position, one in enumerate(predecessors)
        ]
        await self._session.fetch(_ADD, job=job_id, rows=json.dumps(rows))

    async def of(self, job_id: str) -> list[Predecessor]:
        return [_stored(row) for row in await self._session.fetch(_OF, job=job_id)]

    async def note_end(self, job: Job) -> list[str]:
        rows = await self._session.fetch(_NOTE_END, job=job.id, state=job.state, reason=job.reason)
        return sorted(row.job_id for row in rows)

    async def ready(self, limit: int, *, without: Collection[str]) -> list[str]:
        return [row.id for row in await self._session.fetch(_READY, limit=limit, without=list(without))]

    async def graph(self, job_id: str | None, projects: Collection[str] | None) -> GraphView:
        seen = None if projects is None else sorted(projects)
        edges = await self._session.fetch(_EDGES, job=job_id, projects=seen, most=_MOST_EDGES)
        names = {row.predecessor_id: row.name for row in edges}
        wanted = {*names, *(row.job_id for row in edges), *(() if job_id is None else (job_id,))}
        jobs = [
            GraphJob(id=row.id, name=row.name, state=JobState(row.state), present=row.message)
            for row in await self._session.fetch(_JOBS, jobs=sorted(wanted))
        ]
        deleted = sorted(names.keys() - {one.id for one in jobs})
        return GraphView(
            jobs=[*(GraphJob(id=one, name=names[one], state=None) for one in deleted), *jobs],
            edges=[
                GraphEdge(
                    job_id=row.job_id,
                    after_id=row.predecessor_id,
                    on=AfterEnd(row.ends),
                    ended=None if row.ended_state is None else JobState(row.ended_state),
                )
                for row in edges
            ],
        )


def _found(key: str, row: FetchedRow) -> Predecessor:
    state = JobState(row.state)
    ended = state in TERMINAL_STATES
    return Predecessor(
        id=row.id,
        key=key,
        name=row.name,
        ended=state if ended else None,
        reason=Reason(row.reason) if ended else None,
    )


def _stored(row: FetchedRow) -> Predecessor:
    return Predecessor(
        id=row.id,
        key=row.key,
        name=row.name,
        on=AfterEnd(row.ends),
        files=row.files,
        ended=None if row.ended_state is None else JobState(row.ended_state),
        reason=None if row.ended_reason is None else Reason(row.ended_reason),
    )
