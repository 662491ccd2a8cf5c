"""Rows of quarantines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.health import FaultCause, FaultGrade
from service.adapters.postgres.direct import Statement, columns_of, fetch
from service.adapters.postgres.reliability_tables import quarantines
from service.domain.cluster import SlotKey
from service.domain.health import Quarantine

_OPEN = quarantines.c.released_at.is_(None)
_OPEN_ON = Statement(
    f"""
    SELECT {columns_of(quarantines)} FROM quarantines
    WHERE released_at IS NULL AND (CAST(:nodes AS text[]) IS NULL OR node_id = ANY(:nodes)) ORDER BY node_id, slot
    """  # noqa: S608 - names of our own
)


class PostgresQuarantines:
    """Implements `usecases.health_ports.Quarantines`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def of_slot(self, slot: SlotKey, since: datetime) -> list[Quarantine]:
        """The quarantines of a slot that are open or began after a moment, oldest first."""
        query = (
            select(quarantines)
            .where(
                quarantines.c.node_id == slot.node_id,
                quarantines.c.slot == slot.slot,
                or_(_OPEN, quarantines.c.since > since),
            )
            .order_by(quarantines.c.since, quarantines.c.id)
        )
        return [_quarantine(row) for row in (await self._connection.execute(query)).all()]

    async def open(self, node_ids: Sequence[str] | None = None) -> list[Quarantine]:
        """Those that are open, by node and slot."""
        wanted = None if node_ids is None else list(node_ids)
        return [_quarantine(row) for row in await fetch(self._connection, _OPEN_ON, nodes=wanted)]

    async def save(self, quarantine: Quarantine) -> bool:
        """Store a new one (without an id), or a known one; False where the slot is in another one already."""
        values = {
            "grade": quarantine.grade,
            "cause": quarantine.cause,
            "message": quarantine.message,
            "probe_at": quarantine.probe_at,
            "probes": quarantine.probes,
            "released_at": quarantine.released_at,
            "release_message": quarantine.release_message,
        }
        if quarantine.id is not None:
            statement = update(quarantines).where(quarantines.c.id == quarantine.id).values(**values)
            await self._connection.execute(statement)
            return True
        insertion = (
            upsert(quarantines)
            .values(
                node_id=quarantine.node_id,
                slot=quarantine.slot,
                device=quarantine.device,
                since=quarantine.since,
                **values,
            )
            .on_conflict_do_nothing(index_elements=["node_id", "slot"], index_where=_OPEN)
            .returning(quarantines.c.id)
        )
        return (await self._connection.execute(insertion)).first() is not None


def _quarantine(row: Any) -> Quarantine:
    return Quarantine(
        id=row.id,
        node_id=row.node_id,
        slot=row.slot,
        device=row.device,
        grade=FaultGrade(row.grade),
        cause=FaultCause(row.cause),
        message=row.message,
        since=row.since,
        probe_at=row.probe_at,
        probes=row.probes,
        released_at=row.released_at,
        release_message=row.release_message,
    )
