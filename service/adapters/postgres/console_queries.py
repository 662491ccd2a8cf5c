"""Reads for the pages: histories of jobs, short enough to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import Text

from service.usecases.records import SizeChange

_SIZES = text(
    """
    SELECT job_id, generation, size, device_kind, reason, message, granted_at, ended_at FROM allocations
    WHERE job_id = ANY(:jobs) ORDER BY job_id, generation
    """
).bindparams(bindparam("jobs", type_=ARRAY(Text)))
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


class PostgresConsoleQueries:
    """Implements `usecases.console_ports.ConsoleQueries`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def sizes(self, job_ids: Sequence[str]) -> dict[str, list[SizeChange]]:
        """What each of these jobs has run on, the oldest first."""
        found: dict[str, list[SizeChange]] = {}
        for row in (await self._connection.execute(_SIZES, {"jobs": list(job_ids)})).all():
            change = SizeChange(
                generation=row.generation,
                size=row.size,
                device_kind=row.device_kind,
                reason=row.reason,
                message=row.message,
                granted_at=row.granted_at,
                ended_at=row.ended_at,
            )
            found.setdefault(row.job_id, []).append(change)
        return found

    async def series(self, job_id: str, points: int) -> dict[str, list[tuple[datetime, int, float]]]:
        """Moment, samples and value by name of a metric, the oldest first."""
        found: dict[str, list[tuple[datetime, int, float]]] = {}
        rows = (await self._connection.execute(_SERIES, {"job": job_id, "points": points})).all()
        for row in rows:
            found.setdefault(row.name, []).append((row.at, row.samples, row.value))
        return found
