"""Rows of rented machines."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, insert, or_, select, text, update

from headway.contract.views.jobs import Page
from headway.contract.views.machines import MachineView
from service.adapters.postgres.engine.cursors import cursor_after, newest_first
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.rental.hazards import history_of_kinds
from service.adapters.postgres.tables.core import TERMINAL_SQL, nodes, slot_grants
from service.adapters.postgres.tables.rental import ENDED_SQL, machines
from service.domain.cluster.market_limits import MarketLimit
from service.domain.rental.fleet import Joined
from service.domain.rental.machines import Machine, billed_s, cost_usd
from service.domain.rental.spot.history import SpotHistory
from service.domain.shared.errors import NotFound
from service.usecases.ports.rental import Machines

_STORE_LIMITS = text(
    """
    UPDATE jobs SET market_limit = chosen.market_limit
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS chosen(id text, market_limit jsonb) WHERE jobs.id = chosen.id
    """
)
_DROP_LIMITS = text(
    f"UPDATE jobs SET market_limit = NULL WHERE market_limit IS NOT NULL AND NOT ({TERMINAL_SQL})"  # noqa: S608 - constants
)


class PostgresMachines(OnSession, Machines):
    """Machines in PostgreSQL."""

    async def lock_decisions(self) -> None:
        await self._session.execute(text("SELECT pg_advisory_xact_lock(hashtext('headway-renting'))"))

    async def insert(self, machine: Machine) -> None:
        await self._session.execute(insert(machines).values(values_of(machine)))

    async def lock(self, machine_id: str) -> Machine:
        query = select(machines).where(machines.c.id == machine_id).with_for_update()
        row = await self._session.first(query)
        if row is None:
            raise NotFound(f"no machine has the id {machine_id!r}; `headway machines` lists them.")
        return record_of(Machine, row)

    async def save(self, machine: Machine) -> None:
        values = values_of(machine, without={"id"})
        await self._session.execute(update(machines).where(machines.c.id == machine.id).values(values))

    async def of_token(self, token_sha256: str) -> Machine | None:
        query = select(machines).where(machines.c.join_token_sha256 == token_sha256).with_for_update()
        row = await self._session.first(query)
        return None if row is None else record_of(Machine, row)

    async def open(self) -> list[Machine]:
        return await self._all(select(machines).where(text(f"NOT ({ENDED_SQL})")))

    async def joined(self) -> dict[str, Joined]:
        held = (
            select(slot_grants.c.id)
            .where(slot_grants.c.node_id == nodes.c.id, slot_grants.c.released_at.is_(None))
            .exists()
        )
        query = (
            select(nodes, held.label("held"))
            .join(machines, machines.c.id == nodes.c.machine_id)
            .where(text(f"NOT (machines.{ENDED_SQL})"))
        )
        return {
            row.machine_id: record_of(Joined, row, node_id=row.id, empty=not row.held)
            for row in await self._session.rows(query)
        }

    async def known(self, provider: str, names: Collection[str]) -> list[Machine]:
        own = and_(machines.c.provider == provider, one_of(machines.c.external_id, names))
        return await self._all(select(machines).where(or_(one_of(machines.c.id, names), own)))

    async def spot_history(self, kinds: Collection[str], now: datetime) -> SpotHistory:
        return await history_of_kinds(self._session, kinds, now)

    async def store_market_limits(self, limits: Mapping[str, MarketLimit | None]) -> None:
        rows = [
            {"id": job, "market_limit": None if one is None else asdict(one)} for job, one in limits.items()
        ]
        await self._session.execute(_STORE_LIMITS, {"rows": json.dumps(rows)})

    async def drop_market_limits(self) -> None:
        await self._session.execute(_DROP_LIMITS)

    async def requested_since(self, moment: datetime) -> list[Machine]:
        return await self._all(select(machines).where(machines.c.requested_at >= moment))

    async def _all(self, query: Select[Any]) -> list[Machine]:
        ordered = query.order_by(machines.c.requested_at, machines.c.id)
        return [record_of(Machine, row) for row in await self._session.rows(ordered)]

    async def views_of(self, machine_ids: Sequence[str], now: datetime) -> list[MachineView]:
        query = select(machines, nodes.c.name.label("node")).outerjoin(
            nodes, nodes.c.machine_id == machines.c.id
        )
        query = query.where(one_of(machines.c.id, machine_ids)).order_by(machines.c.id)
        return [_view(row, now) for row in await self._session.rows(query)]

    async def views(
        self, now: datetime, *, open_only: bool, limit: int, cursor: str | None
    ) -> Page[MachineView]:
        query = select(machines, nodes.c.name.label("node")).outerjoin(
            nodes, nodes.c.machine_id == machines.c.id
        )
        if open_only:
            query = query.where(text(f"NOT (machines.{ENDED_SQL})"))
        rows = await self._session.rows(
            newest_first(query, machines.c.requested_at, machines.c.id, limit=limit, cursor=cursor)
        )
        return Page(
            items=[_view(row, now) for row in rows[:limit]],
            next_cursor=cursor_after(rows, limit, "requested_at"),
        )


def _view(row: Row[Any], now: datetime) -> MachineView:
    machine = record_of(Machine, row)
    return record_of(MachineView, row, billed_s=billed_s(machine, now), cost_usd=cost_usd(machine, now))
