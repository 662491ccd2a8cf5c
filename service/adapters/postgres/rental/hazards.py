"""Rates at which spot machines of a device kind are reclaimed, from the leases in the database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import select

from headway.contract.values.markets import Market, pool_name
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import Session
from service.adapters.postgres.tables.rental import machines
from service.domain.rental.catalogue import hazard_of
from service.domain.rental.hazards import REMEMBERED_H, hazards_by_kind
from service.domain.rental.machines import Machine

_LEASES = 1000
"""Number of leases that count, newest first.

Older ones count for less, and every scheduling round runs the query.
"""


async def hazards_of_pools(session: Session, kinds: Collection[str], now: datetime) -> dict[str, float]:
    """Return the expected losses of a spot machine per hour for these device kinds, by the name of the pool."""
    if not kinds:
        return {}
    query = (
        select(machines)
        .where(
            machines.c.market == Market.SPOT,
            machines.c.device_kind.in_(kinds),
            machines.c.requested_at > now - timedelta(hours=REMEMBERED_H),
        )
        .order_by(machines.c.requested_at.desc(), machines.c.id.desc())
        .limit(_LEASES)
    )
    leases = [record_of(Machine, row) for row in await session.rows(query)]
    found = hazards_by_kind(leases, {kind: hazard_of(kind) for kind in kinds}, now)
    return {pool_name(kind, Market.SPOT): hazard for kind, hazard in found.items()}
