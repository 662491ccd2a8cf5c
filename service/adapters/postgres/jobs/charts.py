"""Queries of the console pages: short histories of jobs to draw, and the reasons for their slots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text

from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession, Statement
from service.usecases.ports.jobs import SizeChange

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


class JobCharts(OnSession):
    """Mixin for the histories of jobs that the console draws."""

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
