"""Append-only records of jobs: events, exits, measurements, metrics."""

from __future__ import annotations

import math
from datetime import datetime

from sqlalchemy import func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.runtime import Metrics, Progress
from service.adapters.postgres.tables import events, measurements, metrics, rank_exits
from service.domain.failures import RankExit
from service.domain.jobs import size_of
from service.domain.membership import Born
from service.usecases.records import AllocationRecord, Event


class PostgresHistory:
    """Implements `usecases.ports.History`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def event(self, event: Event) -> None:
        """Something happened."""
        await self._connection.execute(
            insert(events).values(
                job_id=event.job_id,
                at=event.at,
                kind=event.kind,
                state=event.state,
                reason=event.reason,
                message=event.message,
                generation=event.generation,
                data=dict(event.data),
            )
        )

    async def exit(self, job_id: str, generation: int, exit_: RankExit, now: datetime) -> None:
        """A rank ended. The first report of a rank counts."""
        statement = upsert(rank_exits).values(
            job_id=job_id,
            generation=generation,
            rank=exit_.rank,
            exit_code=exit_.exit_code,
            signal=exit_.signal,
            stopped_by_agent=exit_.stopped_by_agent,
            completed=exit_.completed,
            log_tail=list(exit_.log_tail),
            start_error=exit_.start_error,
            at=now,
        )
        await self._connection.execute(statement.on_conflict_do_nothing())

    async def exits(self, job_id: str, oldest: int) -> dict[Born, RankExit]:
        """How processes ended that were started for generation `oldest` or newer ones, by who they were."""
        query = (
            select(rank_exits)
            .where(rank_exits.c.job_id == job_id, rank_exits.c.generation >= oldest)
            .order_by(rank_exits.c.generation, rank_exits.c.rank)
        )
        return {
            (row.generation, row.rank): RankExit(
                rank=row.rank,
                exit_code=row.exit_code,
                signal=row.signal,
                stopped_by_agent=row.stopped_by_agent,
                completed=row.completed,
                log_tail=tuple(row.log_tail),
                start_error=row.start_error,
            )
            for row in (await self._connection.execute(query)).all()
        }

    async def measure(
        self, job_id: str, allocation: AllocationRecord, progress: Progress, now: datetime
    ) -> None:
        """Add steps to the generation's statistics. What is no finite positive time is left out."""
        usable = progress.steps > 0 and math.isfinite(progress.step_s_sum) and progress.step_s_sum > 0
        if not usable or not math.isfinite(progress.step_s_squares):
            return
        statement = upsert(measurements).values(
            job_id=job_id,
            generation=allocation.generation,
            global_batch=progress.global_batch,
            device_kind=allocation.device_kind,
            slots=size_of(allocation.slots),
            nodes=len(allocation.slots),
            steps=progress.steps,
            step_s_sum=progress.step_s_sum,
            step_s_squares=progress.step_s_squares,
            sync_s_sum=progress.sync_s_sum,
            local_batch=progress.local_batch,
            accumulation=progress.accumulation,
            gradient_sqr=progress.gradient_sqr,
            gradient_var=progress.gradient_var,
            updated_at=now,
        )
        added = statement.excluded
        await self._connection.execute(
            statement.on_conflict_do_update(
                index_elements=["job_id", "generation", "global_batch"],
                set_={
                    "steps": measurements.c.steps + added.steps,
                    "step_s_sum": measurements.c.step_s_sum + added.step_s_sum,
                    "step_s_squares": measurements.c.step_s_squares + added.step_s_squares,
                    "sync_s_sum": measurements.c.sync_s_sum + added.sync_s_sum,
                    # Uneven ranks come to share steps in other ways: the last one counts.
                    "local_batch": added.local_batch,
                    "accumulation": added.accumulation,
                    # Smoothed already: the last estimate counts.
                    "gradient_sqr": func.coalesce(added.gradient_sqr, measurements.c.gradient_sqr),
                    "gradient_var": func.coalesce(added.gradient_var, measurements.c.gradient_var),
                    "updated_at": now,
                },
            )
        )

    async def metric(self, job_id: str, metrics_: Metrics, at: datetime) -> None:
        """Values that the script reported. Values that JSON cannot carry are left out."""
        rows = [
            {
                "job_id": job_id,
                "at": at,
                "generation": metrics_.generation,
                "epoch": metrics_.epoch,
                "samples": metrics_.samples,
                "name": name,
                "value": value,
            }
            for name, value in metrics_.values.items()
            if math.isfinite(value)
        ]
        if rows:
            await self._connection.execute(insert(metrics), rows)
