"""Rows of what-if simulations. One table is queue, state and results."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Row, select, true, update
from sqlalchemy.dialects.postgresql import insert

from headway.contract.views.jobs import Page
from headway.contract.views.simulations import (
    SimulationRequest,
    SimulationResult,
    SimulationStatus,
    SimulationView,
)
from service.adapters.postgres.engine.cursors import cursor_after, newest_first
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.core import simulations
from service.domain.shared.errors import NotFound
from service.usecases.ports.simulations import AskedSimulation, Simulations, TakenSimulation

_LISTED = [column for column in simulations.c if column is not simulations.c.result]


class PostgresSimulations(OnSession, Simulations):
    """Simulations in PostgreSQL."""

    async def insert(
        self,
        simulation_id: str,
        request: SimulationRequest,
        *,
        seen: frozenset[str] | None,
        idempotency_key: str | None,
        request_digest: str,
        now: datetime,
    ) -> AskedSimulation:
        values = {
            "id": simulation_id,
            "idempotency_key": idempotency_key,
            "request": request.model_dump(mode="json", by_alias=True),
            "request_digest": request_digest,
            "projects": None if seen is None else sorted(seen),
            "status": SimulationStatus.QUEUED,
            "message": "waits for its turn",
            "created_at": now,
        }
        statement = insert(simulations).values(**values).on_conflict_do_nothing().returning(simulations)
        row = await self._session.first(statement)
        if row is not None:
            return AskedSimulation(record_of(SimulationView, row), request_digest, created=True)
        query = select(*_LISTED).where(simulations.c.idempotency_key == idempotency_key)
        before = (await self._session.execute(query)).one()
        return AskedSimulation(record_of(SimulationView, before), before.request_digest, created=False)

    async def get(self, simulation_id: str, *, seen: frozenset[str] | None) -> SimulationView:
        query = select(simulations).where(simulations.c.id == simulation_id, _within(seen))
        row = await self._find(query, simulation_id)
        return record_of(SimulationView, row)

    async def page(
        self, *, limit: int, cursor: str | None, seen: frozenset[str] | None
    ) -> Page[SimulationView]:
        query = select(*_LISTED).where(_within(seen))
        rows = await self._session.rows(
            newest_first(query, simulations.c.created_at, simulations.c.id, limit=limit, cursor=cursor)
        )
        return Page(
            items=[record_of(SimulationView, row) for row in rows[:limit]],
            next_cursor=cursor_after(rows, limit, "created_at"),
        )

    async def take(self, now: datetime) -> TakenSimulation | None:
        oldest = (
            select(simulations.c.id)
            .where(simulations.c.finished_at.is_(None))
            .order_by(simulations.c.created_at, simulations.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        statement = (
            update(simulations)
            .where(simulations.c.id == oldest)
            .values(
                status=SimulationStatus.RUNNING,
                attempt=simulations.c.attempt + 1,
                progress=0.0,
                message="is played through",
                started_at=now,
            )
            .returning(simulations.c.id, simulations.c.request, simulations.c.attempt, simulations.c.projects)
        )
        row = await self._session.first(statement)
        if row is None:
            return None
        seen = None if row.projects is None else frozenset(row.projects)
        return TakenSimulation(row.id, _request(row.request), row.attempt, seen)

    async def report(self, taken: TakenSimulation, progress: float) -> bool:
        return await self._change(taken, progress=progress)

    async def end(
        self,
        taken: TakenSimulation,
        status: SimulationStatus,
        message: str,
        now: datetime,
        result: SimulationResult | None = None,
    ) -> None:
        values: dict[str, Any] = {"status": status, "message": message, "finished_at": now}
        if result is not None:
            values |= {"progress": 1.0, "result": result.model_dump(mode="json")}
        await self._change(taken, **values)

    async def cancel(self, simulation_id: str, now: datetime) -> None:
        await self._find(
            select(simulations.c.id).where(simulations.c.id == simulation_id).with_for_update(), simulation_id
        )
        await self._session.execute(
            update(simulations)
            .where(simulations.c.id == simulation_id, simulations.c.finished_at.is_(None))
            .values(status=SimulationStatus.CANCELLED, message="was cancelled", finished_at=now)
        )

    async def _find(self, query: Any, simulation_id: str) -> Row[Any]:
        row: Row[Any] | None = await self._session.first(query)
        if row is None:
            raise NotFound(
                f"no simulation has the id {simulation_id!r}; simulations are deleted after some days."
            )
        return row

    async def _change(self, taken: TakenSimulation, **values: Any) -> bool:
        """Change the row of a run; return False if another attempt has taken it, or it has ended."""
        statement = (
            update(simulations)
            .where(
                simulations.c.id == taken.id,
                simulations.c.attempt == taken.attempt,
                simulations.c.status == SimulationStatus.RUNNING,
            )
            .values(**values)
        )
        return (await self._session.execute(statement)).rowcount > 0


def _within(seen: frozenset[str] | None) -> ColumnElement[bool]:
    """Return the condition that a simulation covers no other projects than `seen` (None: all)."""
    if seen is None:
        return true()
    within: ColumnElement[bool] = simulations.c.projects.contained_by(sorted(seen))
    return within


def _request(stored: dict[str, Any]) -> SimulationRequest | None:
    try:
        return SimulationRequest.model_validate(stored)
    except ValidationError:
        return None
