"""Rows of leases and charges, and the history from which charges are computed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, text
from sqlalchemy import Row as SqlRow
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession, Statement
from service.adapters.postgres.tables.core import allocations, events, jobs, nodes, slot_grants
from service.adapters.postgres.tables.rental import charges, leases, ledger_state, machines
from service.domain.rental.ledger import BilledLease, Held, Lease, Place, from_us, hour_of, to_us
from service.domain.rental.machines import Machine
from service.domain.rental.paid import Host
from service.domain.rental.timeline import MARKS, PHASE_MARKS, UNKNOWN_RATE, TimelineEvent
from service.domain.shared.retention import MONEY_KEPT
from service.usecases.ports.money import Ledger, LedgerState, MachineDue

_NOT_LONG = timedelta(days=1)
"""Time after its end for which a lease can still be settled. An older lease that is not settled was left by a
service that stopped for long.
"""
_PAID_TO = (
    "greatest(machines.billed_to, machines.billed_from + make_interval(secs => greatest(min_billed_s, 0)))"
)

_TAKE_BACK = Statement("DELETE FROM charges WHERE lease_id = ANY(:leases) AND hour >= :since")
_TAKE_BACK_OPEN = Statement(
    """
    WITH gone AS (DELETE FROM charges WHERE lease_id = ANY(:leases) AND hour >= :hour AND settled_us = 0)
    UPDATE charges SET slot_us = settled_us
    WHERE lease_id = ANY(:leases) AND hour >= :hour AND settled_us > 0 AND slot_us > settled_us
    """
)
_CHARGE = Statement(
    """
    INSERT INTO charges (lease_id, hour, job_id, project, category, cause, slot_us, settled_us)
    SELECT * FROM unnest(
        CAST(:lease_ids AS text[]), CAST(:hours AS timestamptz[]), CAST(:job_ids AS text[]), CAST(:projects AS text[]),
        CAST(:categories AS text[]), CAST(:causes AS text[]), CAST(:slot_us AS bigint[]), CAST(:settled_us AS bigint[])
    )
    ON CONFLICT (lease_id, hour, job_id, category, cause) DO UPDATE
    SET slot_us = charges.slot_us + excluded.slot_us, settled_us = charges.settled_us + excluded.settled_us
    """
)
_MARKS: Sequence[ColumnElement[Any]] = (
    events.c.sequence,
    events.c.job_id,
    events.c.at,
    events.c.kind,
    events.c.state,
    events.c.reason,
    events.c.generation,
    events.c.data,
)
_SETTLED = (
    select(func.coalesce(func.sum(charges.c.settled_us), 0))
    .where(
        charges.c.lease_id == leases.c.id,
        charges.c.hour == func.date_trunc("hour", leases.c.settled_at, "UTC"),
    )
    .scalar_subquery()
    .label("settled_us")
)


class PostgresLedger(OnSession, Ledger):
    """Ledger in PostgreSQL."""

    async def lock(self) -> LedgerState:
        first = upsert(ledger_state).values(id=1, accrued_at=None, events_to=0, events_before=0)
        await self._session.execute(first.on_conflict_do_nothing())
        row = (await self._session.execute(select(ledger_state).with_for_update())).one()
        accrued_us = None if row.accrued_at is None else to_us(row.accrued_at)
        return LedgerState(accrued_us, row.events_to, row.events_before)

    async def save_state(self, state: LedgerState) -> None:
        await self._session.execute(
            ledger_state.update().values(
                accrued_at=None if state.accrued_us is None else from_us(state.accrued_us),
                events_to=state.events_to,
                events_before=state.events_before,
            )
        )

    async def machines_due(self, now: datetime) -> list[MachineDue]:
        query = (
            select(machines, leases.c.id.label("lease_id"))
            .outerjoin(leases, leases.c.id == machines.c.id)
            .where(
                machines.c.billed_from.is_not(None),
                func.coalesce(machines.c.billed_to, now) > now - MONEY_KEPT,
                or_(
                    machines.c.billed_to.is_(None),
                    leases.c.id.is_(None),
                    leases.c.open,
                    leases.c.settled_at < leases.c.to_at,
                    leases.c.from_at != machines.c.billed_from,
                    leases.c.to_at != text(_PAID_TO),
                ),
            )
            .order_by(machines.c.id)
        )
        rows = await self._session.rows(query)
        ids = [row.id for row in rows]
        known = {one.id: one for one in await self._leases(one_of(leases.c.id, ids))}
        joined = await self._session.rows(select(nodes).where(one_of(nodes.c.machine_id, ids)))
        hosts = {row.machine_id: _host(row) for row in joined}
        return [MachineDue(record_of(Machine, row), hosts.get(row.id), known.get(row.id)) for row in rows]

    async def hosts(self) -> list[tuple[Host, list[Lease]]]:
        query = select(nodes).where(nodes.c.machine_id.is_(None)).order_by(nodes.c.id)
        found = await self._leases(leases.c.open, leases.c.machine_id.is_(None))
        by_node: dict[str | None, list[Lease]] = {}
        for one in found:
            by_node.setdefault(one.node_id, []).append(one)
        # The lease of a node ends when a machine has taken over the node.
        hosts = [(_host(row), by_node.pop(row.id, [])) for row in await self._session.rows(query)]
        return hosts + [(_gone(node or ""), leased) for node, leased in by_node.items()]

    async def unsettled(self, after_us: int) -> list[Lease]:
        return await self._leases(
            leases.c.machine_id.is_(None),
            ~leases.c.open,
            leases.c.to_at > from_us(after_us) - _NOT_LONG,
            leases.c.settled_at < leases.c.to_at,
        )

    async def leases_on(self, node_ids: Collection[str], after_us: int) -> list[Lease]:
        return await self._leases(one_of(leases.c.node_id, node_ids), leases.c.to_at > from_us(after_us))

    async def _leases(self, *where: Any) -> list[Lease]:
        query = select(leases, _SETTLED).where(*where).order_by(leases.c.id)
        return [
            record_of(
                Lease, row, from_us=to_us(row.from_at), to_us=to_us(row.to_at), settled_us=_settled(row)
            )
            for row in await self._session.rows(query)
        ]

    async def new_events(self, after: int) -> tuple[int, list[str]]:
        last = (await self._session.execute(select(func.max(events.c.sequence)))).scalar_one()
        fresh = select(events.c.job_id).where(events.c.sequence > after, events.c.kind.in_(MARKS)).distinct()
        return last or 0, sorted(await self._session.scalars(fresh))

    async def timeline_events(
        self, job_ids: Collection[str], since_us: int | None
    ) -> dict[str, list[TimelineEvent]]:
        query = select(*_MARKS).where(one_of(events.c.job_id, job_ids), events.c.kind.in_(MARKS))
        if since_us is not None:
            earlier = events.alias("earlier")
            first = (
                select(func.max(earlier.c.sequence))
                .where(
                    earlier.c.job_id == events.c.job_id,
                    earlier.c.at <= from_us(since_us),
                    earlier.c.kind.in_(PHASE_MARKS),
                )
                .scalar_subquery()
            )
            query = query.where(events.c.sequence >= func.coalesce(first, 0))
        found: dict[str, list[TimelineEvent]] = {}
        for row in await self._session.rows(query.order_by(events.c.sequence)):
            found.setdefault(row.job_id, []).append(_mark(row))
        return found

    async def members(
        self, job_ids: Collection[str], since_us: int
    ) -> dict[str, tuple[str, dict[int, frozenset[Place]]]]:
        rows = await self._session.execute(
            select(jobs.c.id, jobs.c.project).where(one_of(jobs.c.id, job_ids))
        )
        found: dict[str, tuple[str, dict[int, frozenset[Place]]]] = {
            row.id: (row.project, {}) for row in rows
        }
        query = select(allocations.c.job_id, allocations.c.generation, allocations.c.slots).where(
            one_of(allocations.c.job_id, job_ids),
            or_(allocations.c.ended_at.is_(None), allocations.c.ended_at > from_us(since_us)),
        )
        for row in await self._session.rows(query):
            places = frozenset((node, slot) for node, slots in row.slots.items() for slot in slots)
            found[row.job_id][1][row.generation] = places
        return found

    async def held(
        self, since_us: int, *, node_ids: Collection[str] | None = None, job_id: str | None = None
    ) -> list[Held]:
        query = select(slot_grants).where(
            or_(slot_grants.c.released_at.is_(None), slot_grants.c.released_at > from_us(since_us))
        )
        if node_ids is not None:
            query = query.where(one_of(slot_grants.c.node_id, node_ids))
        if job_id is not None:
            query = query.where(slot_grants.c.job_id == job_id)
        return [
            Held(
                place=(row.node_id, row.slot),
                job_id=row.job_id,
                from_us=to_us(row.granted_at),
                to_us=None if row.released_at is None else to_us(row.released_at),
            )
            for row in await self._session.rows(query)
        ]

    async def store(self, written: Sequence[BilledLease], since_us: int) -> None:
        if not written:
            return
        values = [_values(one.lease) for one in written]
        statement = upsert(leases)
        changed = {name: statement.excluded[name] for name in values[0] if name != "id"}
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=["id"], set_=changed), values
        )
        ids, hour_us = [one.lease.id for one in written], hour_of(since_us)
        if since_us == hour_us:
            await self._session.fetch(_TAKE_BACK, leases=ids, since=from_us(since_us))
        else:
            await self._session.fetch(_TAKE_BACK_OPEN, leases=ids, hour=from_us(hour_us))
        rows = [(one.lease.id, row, share) for one in written for row, share in one.rows.items()]
        await self._session.fetch(
            _CHARGE,
            lease_ids=[lease_id for lease_id, _, _ in rows],
            hours=[from_us(row.hour_us) for _, row, _ in rows],
            job_ids=[row.job_id for _, row, _ in rows],
            projects=[row.project for _, row, _ in rows],
            categories=[row.category for _, row, _ in rows],
            causes=[row.cause for _, row, _ in rows],
            slot_us=[share.slot_us for _, _, share in rows],
            settled_us=[share.settled_us for _, _, share in rows],
        )


def _settled(row: SqlRow[Any]) -> int | None:
    """Return the time up to which a lease is settled.

    If its charges do not add up to that time, an older version of the service has written them. The result is
    then the beginning of the hour.
    """
    if row.settled_at is None:
        return None
    settled_us = to_us(row.settled_at)
    hour_us = hour_of(settled_us)
    paid_us = len(row.slots) * max(0, settled_us - max(hour_us, to_us(row.from_at)))
    return settled_us if row.settled_us == paid_us else hour_us


def _values(lease: Lease) -> dict[str, Any]:
    return {
        **values_of(lease, without={"from_us", "to_us", "settled_us"}),
        "slots": list(lease.slots),
        "from_at": from_us(lease.from_us),
        "to_at": from_us(lease.to_us),
        "settled_at": None if lease.settled_us is None else from_us(lease.settled_us),
    }


def _host(row: SqlRow[Any]) -> Host:
    return Host(
        node_id=row.id,
        lost=row.state == NodeState.LOST,
        slots={slot["index"]: slot["device_kind"] for slot in row.slots},
        market=Market(row.market),
        usd_per_slot_h=row.usd_per_slot_h,
        joined_us=to_us(row.joined_at),
        seen_us=to_us(row.seen_at),
    )


def _gone(node_id: str) -> Host:
    return Host(
        node_id=node_id,
        lost=True,
        slots={},
        market=Market.ON_DEMAND,
        usd_per_slot_h=None,
        joined_us=0,
        seen_us=0,
    )


def _mark(row: SqlRow[Any]) -> TimelineEvent:
    data, lost_s = row.data, 0.0
    if data.get("lost_samples"):
        rate_known = isinstance(data.get("lost_s"), int | float)
        lost_s = max(0.0, float(data["lost_s"])) if rate_known else UNKNOWN_RATE
    return TimelineEvent(
        sequence=row.sequence,
        at_us=to_us(row.at),
        kind=row.kind,
        state=JobState(row.state),
        reason=row.reason or "",
        generation=row.generation,
        pause_s=max(0.0, float(data.get("pause_s") or 0.0)),
        lost_s=lost_s,
        plain=bool(data.get("plain", False)),
    )
