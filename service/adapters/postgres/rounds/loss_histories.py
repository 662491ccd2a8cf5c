"""Losses that the latest jobs of classes reported, with the batches that they trained with."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from service.adapters.postgres.engine.session import Session
from service.adapters.postgres.tables.core import ALL_MEASUREMENTS
from service.domain.cluster.snapshot import CLASS_JOBS, LossHistory, LossPoint

CURVE_JOBS = 8
"""Number of jobs of a class, the latest that started and report a loss, whose losses are read."""
CURVE_POINTS = 16
"""Number of parts of a job's reports, over equal ranges of row numbers, with a mean loss each."""
CURVE_ROWS = 32
"""Maximum number of rows that are read of a part, its first ones. A job may report many values a second."""

_LOSSES = text(
    f"""
    SELECT job.job_class, job.id, job.reference_batch, job.lr_rule, point.samples, point.loss, batch.global_batch
    FROM unnest(CAST(:classes AS text[])) AS wanted
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT id, job_class, submitted_at, CAST(spec->'batch'->>'global' AS int) AS reference_batch,
                progress->>'lr_rule' AS lr_rule, progress->'metrics'->'loss' IS NOT NULL AS reports
            FROM jobs WHERE job_class = wanted AND started_at IS NOT NULL
            ORDER BY submitted_at DESC LIMIT {CLASS_JOBS}
        ) AS latest
        WHERE reports ORDER BY submitted_at DESC LIMIT {CURVE_JOBS}
    ) AS job
    CROSS JOIN LATERAL (
        SELECT min(id) AS first, max(id) - min(id) + 1 AS number FROM metrics WHERE job_id = job.id
    ) AS span
    CROSS JOIN generate_series(0, {CURVE_POINTS - 1}) AS part
    CROSS JOIN LATERAL (
        SELECT generation, CAST(avg(samples) AS float8) AS samples, avg(value) AS loss
        FROM (
            SELECT generation, samples, name, value FROM metrics
            WHERE job_id = job.id AND id >= span.first + span.number * part / {CURVE_POINTS}
                AND id < span.first + span.number * (part + 1) / {CURVE_POINTS}
            ORDER BY id LIMIT {CURVE_ROWS}
        ) AS rows
        WHERE name = 'loss' AND value NOT IN ('NaN', 'Infinity', '-Infinity')
        GROUP BY generation
    ) AS point
    JOIN LATERAL (
        SELECT global_batch FROM {ALL_MEASUREMENTS}
        WHERE job_id = job.id AND generation = point.generation AND global_batch > 0
        ORDER BY steps DESC LIMIT 1
    ) AS batch ON true
    ORDER BY job.job_class, job.submitted_at, job.id, part, point.generation
    """  # noqa: S608 - constants
)


async def loss_histories_of(session: Session, classes: Sequence[str]) -> dict[str, tuple[LossHistory, ...]]:
    """Return the losses of the latest jobs of each class, oldest job first; without classes, no query.

    At most `CURVE_JOBS` jobs of a class are read, and of each job `CURVE_POINTS` times `CURVE_ROWS` rows.
    """
    rows = await session.rows(_LOSSES, {"classes": list(classes)}) if classes else []
    points: dict[str, list[LossPoint]] = {}
    for row in rows:
        points.setdefault(row.id, []).append(LossPoint(row.samples, row.loss, row.global_batch))
    jobs = {row.id: row for row in rows}
    found: dict[str, tuple[LossHistory, ...]] = {}
    for job_id, row in jobs.items():
        history = LossHistory(job_id, row.reference_batch, row.lr_rule, tuple(points[job_id]))
        found[row.job_class] = (*found.get(row.job_class, ()), history)
    return found
