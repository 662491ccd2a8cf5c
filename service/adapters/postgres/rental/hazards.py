"""Risks of the spot machines of some device kinds, from the leases in the database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import select

from headway.contract.values.markets import Market
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import Session
from service.adapters.postgres.tables.rental import machines
from service.domain.rental.catalogue import hazard_of
from service.domain.rental.machines import Machine
from service.domain.rental.spot.history import NO_HISTORY, SpotHistory, spot_history
from service.domain.rental.spot.observations import REMEMBERED_H

_LEASES = 1000
"""Number of leases that count, newest first.

Older ones count for less, and every scheduling round runs the query.
"""


async def history_of_kinds(session: Session, kinds: Collection[str], now: datetime) -> SpotHistory:
    """Return the risks of spot machines with these device kinds."""
    if not kinds:
        return NO_HISTORY
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
    return spot_history(leases, {kind: hazard_of(kind) for kind in kinds}, now)
