"""Append-only records of jobs: events, exits, measurements, metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert

from headway.contract.values.topology import SLOW_LINK
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession, Statement, columns_of
from service.adapters.postgres.notifications.webhooks import NEW_ID
from service.adapters.postgres.tables.core import metrics, rank_exits
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import size_of
from service.domain.jobs.membership import Born
from service.domain.jobs.records import Event
from service.domain.notifications.topics import topics_of
from service.domain.perf.batch import log_noise_scale
from service.usecases.ports.jobs import Measured, Reported

_SUMS = ("steps", "step_s_sum", "step_s_squares", "sync_s_sum", "noise_steps", "log_noise_sum")
_LAST_KNOWN = ("gradient_sqr", "gradient_var")
_EVENT = Statement(
    """
    INSERT INTO events (job_id, at, kind, state, reason, message, generation, data)
    VALUES (:job_id, :at, :kind, :state, :reason, :message, :generation, :data)
    """
)
_TOLD_EVENT = Statement(
    f"""
    WITH stored AS (
        INSERT INTO events (job_id, at, kind, state, reason, message, generation, data)
        VALUES (:job_id, :at, :kind, :state, :reason, :message, :generation, :data)
        RETURNING job_id, at, state, reason, message, generation
    )
    INSERT INTO webhook_messages (id, webhook_id, topic, data, created_at, next_at)
    SELECT {NEW_ID}, webhooks.id,
        (SELECT topic FROM unnest(CAST(:topics AS text[])) WITH ORDINALITY AS told(topic, place)
         WHERE topic = ANY(webhooks.topics) ORDER BY place LIMIT 1),
        jsonb_build_object(
            'id', jobs.id, 'name', jobs.name, 'project', jobs.project, 'owner', jobs.owner, 'state', stored.state,
            'reason', stored.reason, 'message', stored.message, 'generation', stored.generation
        ), stored.at, stored.at
    FROM stored JOIN jobs ON jobs.id = stored.job_id JOIN webhooks ON webhooks.project = jobs.project
    WHERE webhooks.disabled_at IS NULL AND webhooks.topics && CAST(:topics AS text[])
    """  # noqa: S608 - constants
)
"""An event with the messages to the webhooks of the job's project that have chosen one of its topics."""
_EXITS = Statement(
    f"""
    SELECT {columns_of(rank_exits)} FROM rank_exits
    WHERE job_id = :job_id AND generation >= :oldest ORDER BY generation, rank
    """  # noqa: S608 - constants
)
_EXIT = Statement(
    """
    INSERT INTO rank_exits (job_id, generation, rank, exit_code, signal, stopped_by_agent, completed, log_tail,
        start_error, at)
    VALUES (:job_id, :generation, :rank, :exit_code, :signal, :stopped_by_agent, :completed, :log_tail, :start_error, :at)
    ON CONFLICT DO NOTHING
    """
)
_MEASURE_INTO = """
    INSERT INTO {table} AS known (job_id, generation, global_batch, device_kind, slots, nodes, steps, step_s_sum,
        step_s_squares, sync_s_sum, noise_steps, log_noise_sum, local_batch, accumulation, gradient_sqr, gradient_var,
        crossed, updated_at)
    SELECT added.*, :now FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS added(
        job_id text, generation int, global_batch int, device_kind text, slots int, nodes int, steps bigint,
        step_s_sum float8, step_s_squares float8, sync_s_sum float8, noise_steps bigint, log_noise_sum float8,
        local_batch int, accumulation int, gradient_sqr float8, gradient_var float8, crossed text
    )
    ON CONFLICT (job_id, generation, global_batch) DO UPDATE SET
        steps = known.steps + excluded.steps,
        step_s_sum = known.step_s_sum + excluded.step_s_sum,
        step_s_squares = known.step_s_squares + excluded.step_s_squares,
        sync_s_sum = known.sync_s_sum + excluded.sync_s_sum,
        noise_steps = known.noise_steps + excluded.noise_steps,
        log_noise_sum = known.log_noise_sum + excluded.log_noise_sum,
        local_batch = excluded.local_batch,
        accumulation = excluded.accumulation,
        gradient_sqr = coalesce(excluded.gradient_sqr, known.gradient_sqr),
        gradient_var = coalesce(excluded.gradient_var, known.gradient_var),
        updated_at = excluded.updated_at
    """
"""Addition of a batch of steps to the statistics in a table.

For the local batch, the accumulation and the smoothed gradient noise the latest value replaces the earlier
one. `log_noise_sum` has the logarithm of the noise scale, added up over `noise_steps`. Uneven ranks can change their shares between reports.
"""
_MEASURE = Statement(_MEASURE_INTO.format(table="measurements"))
_MEASURE_BEHIND = Statement(_MEASURE_INTO.format(table="slow_link_measurements"))

_LAST_TURN = Statement(
    """
    SELECT at, kind, data FROM events
    WHERE job_id = :job AND kind IN ('fail_rank', 'first_step', 'pause', 'requeue', 'submit', 'switch', 'vacate')
    ORDER BY sequence DESC LIMIT 1
    """
)

_LAST_OUTPUT = Statement(
    """
    SELECT kind, message FROM events
    WHERE job_id = :job AND kind IN ('output_fetched', 'output_lost', 'output_saved')
    ORDER BY sequence DESC LIMIT 1
    """
)

_LAST_SAVE = Statement(
    """
    SELECT kind, message FROM events
    WHERE job_id = :job AND kind IN ('output_failed', 'output_fetched', 'output_lost', 'output_saved')
    ORDER BY sequence DESC LIMIT 1
    """
)


class StoredHistory(OnSession):
    """Mixin for the history of jobs."""

    async def add_event(self, event: Event) -> None:
        values = {**values_of(event), "data": json.dumps(dict(event.data))}
        topics = topics_of(event)
        if topics:
            await self._session.fetch(_TOLD_EVENT, topics=[str(one) for one in topics], **values)
        else:
            await self._session.fetch(_EVENT, **values)

    async def vacated_at(self, job_id: str) -> datetime | None:
        rows = await self._session.fetch(_LAST_TURN, job=job_id)
        moved: list[datetime] = [one.at for one in rows if one.kind == "vacate" and one.data.get("to", 0) > 0]
        return moved[0] if moved else None

    async def output_lost(self, job_id: str) -> str | None:
        rows = await self._session.fetch(_LAST_OUTPUT, job=job_id)
        return next((str(one.message) for one in rows if one.kind == "output_lost"), None)

    async def output_failure(self, job_id: str) -> str | None:
        rows = await self._session.fetch(_LAST_SAVE, job=job_id)
        return next((str(one.message) for one in rows if one.kind in {"output_failed", "output_lost"}), None)

    async def add_exit(self, job_id: str, generation: int, exit_: RankExit, now: datetime) -> None:
        values = {**values_of(exit_), "log_tail": json.dumps(exit_.log_tail)}
        await self._session.fetch(_EXIT, job_id=job_id, generation=generation, at=now, **values)

    async def exits(self, job_id: str, oldest: int) -> dict[Born, RankExit]:
        return {
            (row.generation, row.rank): record_of(RankExit, row)
            for row in await self._session.fetch(_EXITS, job_id=job_id, oldest=oldest)
        }

    async def add_measured(self, measured: Sequence[Measured], now: datetime) -> None:
        # Values that are not finite and positive are left out.
        rows: dict[tuple[str, int, int, str], dict[str, Any]] = {}
        for one in measured:
            row = _row(one)
            if row["steps"] <= 0 or row["step_s_sum"] <= 0 or not _is_finite(row):
                continue
            key = row["job_id"], row["generation"], row["global_batch"], row["crossed"]
            both = _added(rows[key], row) if key in rows else row
            if _is_finite(both):
                rows[key] = both
        for statement, behind in ((_MEASURE, False), (_MEASURE_BEHIND, True)):
            part = [row for row in rows.values() if (row["crossed"] == SLOW_LINK) is behind]
            if part:
                await self._session.fetch(statement, rows=json.dumps(part), now=now)

    async def add_reported(self, reported: Sequence[Reported]) -> None:
        rows = [
            {
                "job_id": one.job_id,
                "at": one.at,
                "generation": one.metrics.generation,
                "epoch": one.metrics.epoch,
                "samples": one.metrics.samples,
                "name": name,
                "value": value,
            }
            for one in reported
            for name, value in one.metrics.values.items()
            if math.isfinite(value)
        ]
        if rows:
            await self._session.execute(insert(metrics), rows)


def _is_finite(row: Mapping[str, Any]) -> bool:
    return all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def _row(one: Measured) -> dict[str, Any]:
    progress = one.progress
    log_noise = log_noise_scale(progress.gradient_sqr, progress.gradient_var)
    return {
        "job_id": one.job_id,
        "generation": one.allocation.generation,
        "global_batch": progress.global_batch,
        "device_kind": one.allocation.device_kind,
        "slots": size_of(one.allocation.slots),
        "nodes": len(one.allocation.slots),
        "steps": progress.steps,
        "step_s_sum": progress.step_s_sum,
        "step_s_squares": progress.step_s_squares,
        "sync_s_sum": progress.sync_s_sum,
        "noise_steps": 0 if log_noise is None else progress.steps,
        "log_noise_sum": 0.0 if log_noise is None else progress.steps * log_noise,
        "local_batch": progress.local_batch,
        "accumulation": progress.accumulation,
        "gradient_sqr": progress.gradient_sqr,
        "gradient_var": progress.gradient_var,
        "crossed": one.allocation.crossed,
    }


def _added(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two rows of one key as `_MEASURE` would. The statement cannot update a row twice."""
    sums = {name: before[name] + after[name] for name in _SUMS}
    last = {name: before[name] if after[name] is None else after[name] for name in _LAST_KNOWN}
    return {**after, **sums, **last}
