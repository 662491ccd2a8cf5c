"""How often spot machines of a kind are taken away, from the leases in the database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.markets import Market, pool_name
from service.adapters.postgres.machines import row_to_machine
from service.adapters.postgres.money_tables import machines
from service.domain.rental.catalogue import hazard_of
from service.domain.rental.hazards import REMEMBERED_H, hazards_by_kind

_LEASES = 1000
"""The newest ones are enough: older ones count for less, and every round asks."""


async def hazards_of_pools(
    connection: AsyncConnection, kinds: Collection[str], now: datetime
) -> dict[str, float]:
    """Losses of a spot machine an hour, by the name of the pool, of these device kinds."""
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
    leases = [row_to_machine(row) for row in (await connection.execute(query)).all()]
    found = hazards_by_kind(leases, {kind: hazard_of(kind) for kind in kinds}, now)
    return {pool_name(kind, Market.SPOT): hazard for kind, hazard in found.items()}
