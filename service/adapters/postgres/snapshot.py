"""The picture that a round decides on, in few queries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState
from service.adapters.postgres.jobs import row_to_job
from service.adapters.postgres.tables import (
    TERMINAL_SQL,
    cluster_settings,
    jobs,
    measurements,
    nodes,
    slot_grants,
)
from service.domain.cluster import Measurement, Node, PolicySetting, Served, SlotKey, Snapshot

ENOUGH_STEPS = 10
"""Fewer steps than this say little of a size's speed: the first ones are slow."""
CLASS_JOBS = 20
"""So many jobs of a class, the latest that have started, say what its next one may be like."""

_CLASS_MEASUREMENTS = text(
    f"""
    SELECT latest.job_class, measurements.*
    FROM unnest(CAST(:classes AS text[])) AS wanted
    CROSS JOIN LATERAL (
        SELECT id, job_class FROM jobs
        WHERE job_class = wanted AND started_at IS NOT NULL
        ORDER BY submitted_at DESC LIMIT {CLASS_JOBS}
    ) AS latest
    JOIN measurements ON measurements.job_id = latest.id AND measurements.steps >= {ENOUGH_STEPS}
    ORDER BY measurements.job_id, measurements.generation, measurements.global_batch
    """  # noqa: S608 - numbers of our own
)
_SERVED = text(
    """
    SELECT job_id, device_kind, slot_s,
           (SELECT sum(extract(epoch FROM upper(span) - lower(span))) FROM unnest(spans) AS span) AS seconds
    FROM (
        SELECT held.job_id, device_kind, range_agg(span) AS spans,
               sum(extract(epoch FROM upper(span) - lower(span))) AS slot_s
        FROM (
            SELECT job_id, generation,
                   tstzrange(granted_at, greatest(granted_at, coalesce(released_at, :now)), '[]') AS span
            FROM slot_grants WHERE job_id = ANY(CAST(:jobs AS text[]))
        ) AS held
        JOIN allocations USING (job_id, generation)
        GROUP BY held.job_id, device_kind
    ) AS totals
    """
)
"""Grants are per slot, so their spans overlap: `seconds` counts a moment once, `slot_s` once for each slot. Slots that
a generation was granted and never started on do not count.
"""


async def take_snapshot(
    connection: AsyncConnection, now: datetime, usd_per_slot_h: Mapping[str, float]
) -> Snapshot:
    """One consistent picture of every job that is not terminal, every node and every held slot. It must be the first
    thing that its transaction does.
    """
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    live = select(jobs).where(text(f"NOT ({TERMINAL_SQL})"))
    job_rows = (await connection.execute(live)).all()
    node_rows = (await connection.execute(select(nodes))).all()
    grants = await connection.execute(
        select(slot_grants.c.node_id, slot_grants.c.slot, slot_grants.c.job_id).where(
            slot_grants.c.released_at.is_(None)
        )
    )
    job_ids = [row.id for row in job_rows]
    settings = (await connection.execute(select(cluster_settings))).first()
    return Snapshot(
        now=now,
        jobs={row.id: row_to_job(row) for row in job_rows},
        nodes={
            row.id: Node(
                id=row.id,
                name=row.name,
                state=NodeState(row.state),
                slots={slot["index"]: slot["device_kind"] for slot in row.slots},
            )
            for row in node_rows
        },
        held={SlotKey(row.node_id, row.slot): row.job_id for row in grants.all()},
        measurements=await _measurements(connection, job_ids),
        class_measurements=await measured_of_classes(connection, sorted({row.job_class for row in job_rows})),
        served=await _served(connection, job_ids, now),
        usd_per_slot_h=dict(usd_per_slot_h),
        policy=PolicySetting() if settings is None else PolicySetting(settings.policy, settings.parameters),
        policy_state={} if settings is None else settings.policy_state,
    )


async def _measurements(
    connection: AsyncConnection, job_ids: Sequence[str]
) -> dict[str, tuple[Measurement, ...]]:
    query = select(measurements).where(
        measurements.c.job_id.in_(job_ids), measurements.c.steps >= ENOUGH_STEPS
    )
    found: dict[str, list[Measurement]] = {}
    for row in (await connection.execute(query)).all():
        found.setdefault(row.job_id, []).append(_measurement(row))
    return {job_id: tuple(rows) for job_id, rows in found.items()}


async def measured_of_classes(
    connection: AsyncConnection, classes: Sequence[str]
) -> dict[str, tuple[Measurement, ...]]:
    """What the latest jobs of each class have measured, by class."""
    rows = await connection.execute(_CLASS_MEASUREMENTS, {"classes": list(classes)})
    found: dict[str, list[Measurement]] = {}
    for row in rows.all():
        found.setdefault(row.job_class, []).append(_measurement(row))
    return {job_class: tuple(of_class) for job_class, of_class in found.items()}


def _measurement(row: Row[Any]) -> Measurement:
    step_s = row.step_s_sum / row.steps
    variance = row.step_s_squares / row.steps - step_s * step_s
    return Measurement(
        row.device_kind,
        row.slots,
        row.global_batch / step_s,
        row.steps,
        nodes=row.nodes,
        generation=row.generation,
        global_batch=row.global_batch,
        local_batch=row.local_batch,
        accumulation=row.accumulation,
        step_s=step_s,
        step_s_spread=math.sqrt(max(variance, 0.0)),
        # Ranks that do not measure it say 0, which cannot be true of several.
        sync_s=None if row.slots > 1 and row.sync_s_sum <= 0 else row.sync_s_sum / row.steps,
        gradient_sqr=row.gradient_sqr,
        gradient_var=row.gradient_var,
    )


async def _served(connection: AsyncConnection, job_ids: Sequence[str], now: datetime) -> dict[str, Served]:
    rows = await connection.execute(_SERVED, {"jobs": list(job_ids), "now": now})
    seconds: dict[str, dict[str, float]] = {}
    slot_s: dict[str, float] = {}
    for row in rows.all():
        seconds.setdefault(row.job_id, {})[row.device_kind] = float(row.seconds)
        slot_s[row.job_id] = slot_s.get(row.job_id, 0.0) + float(row.slot_s)
    return {job_id: Served(by_kind, slot_s[job_id]) for job_id, by_kind in seconds.items()}
