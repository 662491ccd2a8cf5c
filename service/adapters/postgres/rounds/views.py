"""Queries of the API: rounds and the cluster as views."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import TextClause, func, select, text

from headway.contract.agents import NodeState
from headway.contract.views.decisions import RoundView
from headway.contract.views.forecasts import ScoredPrediction
from headway.contract.views.jobs import JobState, Page
from service.adapters.postgres.engine.cursors import cursor_after, newest_first
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.rounds.snapshot import SERVED, ended_samples_of, measured_of_classes
from service.adapters.postgres.tables.core import TERMINAL_SQL, jobs, nodes, rounds
from service.domain.cluster.snapshot import LEAST_STEPS, Measurement
from service.domain.shared.errors import NotFound
from service.usecases.ports.rounds import PredictionErrors, RoundQueries, SlotCount
from service.usecases.rounds.views import seen_round

_LEADER = text("SELECT term, extract(epoch FROM clock_timestamp() - renewed_at) AS silent_s FROM leadership")
_SLOTS = text(
    """
    SELECT state AS node_state, reported->>'device_kind' AS device_kind, market, usd_per_slot_h, count(*) AS slots,
           count(held.id) AS held
    FROM nodes CROSS JOIN LATERAL jsonb_array_elements(slots) AS reported
    LEFT JOIN slot_grants AS held
        ON held.node_id = nodes.id AND held.slot = CAST(reported->>'index' AS int) AND held.released_at IS NULL
    GROUP BY 1, 2, 3, 4 ORDER BY 2, 3, 1, 4
    """
)

_SCORED = f"""
    SELECT job_id, generation, device_kind, size AS slots, predicted_samples_per_s AS predicted, predicted_low AS low,
           predicted_high AS high, measured, allocations.granted_at
    FROM allocations
    JOIN LATERAL (
        SELECT sum(greatest(global_batch, 1) * steps) / sum(step_s_sum) AS measured FROM measurements
        WHERE (job_id, generation) = (allocations.job_id, allocations.generation)
        HAVING sum(steps) >= {LEAST_STEPS}
    ) AS reality ON measured > 0
    WHERE predicted_samples_per_s > 0
"""  # noqa: S608 - constants
_LATEST = 50
_PREDICTIONS = text(f"{_SCORED} AND job_id = :job ORDER BY generation DESC LIMIT {_LATEST}")
_PREDICTION_ERRORS = text(
    f"""
    SELECT count(*) AS number,
           percentile_cont(CAST(:quantiles AS float[])) WITHIN GROUP (ORDER BY predicted / measured) AS ratios,
           avg(CAST(measured BETWEEN low AND high AS int)) AS coverage
    FROM ({_SCORED} AND granted_at >= :since) AS scored
    """  # noqa: S608
)
_FORECAST_ERRORS = text(
    """
    SELECT count(*) AS number,
           percentile_cont(CAST(:quantiles AS float[])) WITHIN GROUP (ORDER BY predicted / measured) AS ratios,
           avg(CAST(measured <= late AS int)) AS coverage
    FROM jobs
    CROSS JOIN LATERAL jsonb_to_recordset(progress->'forecasts') AS kept(
        share float, time_s float, time_p90_s float, took_s float,
        cost_usd float, cost_p90_usd float, cost_was_usd float
    )
    CROSS JOIN LATERAL (
        SELECT CASE WHEN :of = 'time' THEN time_s ELSE cost_usd END AS predicted,
               CASE WHEN :of = 'time' THEN time_p90_s ELSE cost_p90_usd END AS late,
               CASE WHEN :of = 'time' THEN took_s ELSE cost_was_usd END AS measured
    ) AS figures
    WHERE state = 'SUCCEEDED' AND finished_at >= :since AND share = :share AND predicted > 0 AND measured > 0
    """
)


class PostgresRoundQueries(OnSession, RoundQueries):
    """Views of rounds and the cluster in PostgreSQL."""

    async def rounds(self, *, limit: int, cursor: str | None, seen: frozenset[str] | None) -> Page[RoundView]:
        query = newest_first(select(rounds), rounds.c.at, rounds.c.id, limit=limit, cursor=cursor)
        rows = await self._session.rows(query)
        return Page(
            items=await self._seen([record_of(RoundView, row) for row in rows[:limit]], seen),
            next_cursor=cursor_after(rows, limit, "at"),
        )

    async def round(self, round_id: str, *, seen: frozenset[str] | None) -> RoundView:
        query = select(rounds).order_by(rounds.c.at.desc(), rounds.c.id.desc()).limit(1)
        if round_id != "latest":
            query = query.where(rounds.c.id == round_id)
        row = await self._session.first(query)
        if row is None:
            raise NotFound(
                "no round has been decided yet; check that a scheduler is running"
                if round_id == "latest"
                else f"no round {round_id!r} is stored: the service keeps the latest round and those that changed something."
            )
        (found,) = await self._seen([record_of(RoundView, row)], seen)
        return found

    async def _seen(self, views: list[RoundView], seen: frozenset[str] | None) -> list[RoundView]:
        """Return the rounds without the parts that concern projects outside `seen`."""
        if seen is None:
            return views
        changed = {one.job_id for view in views for one in view.changes}
        query = select(jobs.c.id).where(one_of(jobs.c.id, changed), jobs.c.project.in_(seen))
        own = set(await self._session.scalars(query))
        return [seen_round(view, own, seen) for view in views]

    async def slots(self) -> list[SlotCount]:
        return [record_of(SlotCount, row) for row in await self._session.rows(_SLOTS)]

    async def nodes(self) -> dict[NodeState, int]:
        query = select(nodes.c.state, func.count().label("number")).group_by(nodes.c.state)
        return {NodeState(row.state): row.number for row in await self._session.rows(query)}

    async def leader(self) -> tuple[int, float]:
        row = await self._session.first(_LEADER)
        return (0, 0.0) if row is None else (row.term, max(0.0, float(row.silent_s)))

    async def predictions(self, job_id: str) -> list[ScoredPrediction]:
        rows = await self._session.rows(_PREDICTIONS, {"job": job_id})
        return [record_of(ScoredPrediction, row) for row in rows]

    async def prediction_errors(self, since: datetime, quantiles: Sequence[float]) -> PredictionErrors:
        values = {"since": since, "quantiles": list(quantiles)}
        return await self._errors(_PREDICTION_ERRORS, values)

    async def forecast_errors(
        self, of: Literal["time", "cost"], share: float, since: datetime, quantiles: Sequence[float]
    ) -> PredictionErrors:
        values = {"of": of, "share": share, "since": since, "quantiles": list(quantiles)}
        return await self._errors(_FORECAST_ERRORS, values)

    async def _errors(self, statement: TextClause, values: Mapping[str, Any]) -> PredictionErrors:
        row = (await self._session.execute(statement, values)).one()
        if not row.number:
            return PredictionErrors(0, (math.nan,) * len(values["quantiles"]), math.nan)
        return PredictionErrors(row.number, tuple(row.ratios), float(row.coverage or 0.0))

    async def used_since(self, job_id: str, since: datetime, now: datetime) -> tuple[float, dict[str, float]]:
        rows = await self._session.rows(SERVED, {"jobs": [job_id], "now": now, "since": since})
        return sum(float(row.seconds) for row in rows), {row.device_kind: float(row.slot_s) for row in rows}

    async def measured_of_class(self, job_class: str) -> tuple[Measurement, ...]:
        found = await measured_of_classes(self._session, [job_class])
        return found.get(job_class, ())

    async def ended_samples(self, job_class: str) -> list[float]:
        return list((await ended_samples_of(self._session, [job_class])).get(job_class, ()))

    async def live_jobs(self, *, seen: frozenset[str] | None) -> dict[JobState, int]:
        columns = jobs.c.state, func.count().label("number")
        query = select(*columns).where(text(f"NOT ({TERMINAL_SQL})")).group_by(jobs.c.state)
        if seen is not None:
            query = query.where(jobs.c.project.in_(seen))
        return {JobState(row.state): row.number for row in await self._session.rows(query)}
