"""Rows of quarantines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession, Statement, columns_of
from service.adapters.postgres.tables.reliability import quarantines
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.health import Quarantine

_OPEN = quarantines.c.released_at.is_(None)
_OPEN_ON = Statement(
    f"""
    SELECT {columns_of(quarantines)} FROM quarantines
    WHERE released_at IS NULL AND (CAST(:nodes AS text[]) IS NULL OR node_id = ANY(:nodes)) ORDER BY node_id, slot
    """  # noqa: S608 - constants
)


class NodeQuarantines(OnSession):
    """Mixin for quarantines of slots."""

    async def quarantines_of(self, slot: SlotKey, since: datetime) -> list[Quarantine]:
        query = (
            select(quarantines)
            .where(
                quarantines.c.node_id == slot.node_id,
                quarantines.c.slot == slot.slot,
                or_(_OPEN, quarantines.c.since > since),
            )
            .order_by(quarantines.c.since, quarantines.c.id)
        )
        return [record_of(Quarantine, row) for row in await self._session.rows(query)]

    async def open_quarantines(self, node_ids: Sequence[str] | None = None) -> list[Quarantine]:
        wanted = None if node_ids is None else list(node_ids)
        return [record_of(Quarantine, row) for row in await self._session.fetch(_OPEN_ON, nodes=wanted)]

    async def save_quarantine(self, quarantine: Quarantine) -> bool:
        values = values_of(quarantine, without={"id"})
        if quarantine.id is not None:
            statement = update(quarantines).where(quarantines.c.id == quarantine.id).values(values)
            await self._session.execute(statement)
            return True
        insertion = (
            upsert(quarantines)
            .values(values)
            .on_conflict_do_nothing(index_elements=["node_id", "slot"], index_where=_OPEN)
            .returning(quarantines.c.id)
        )
        return await self._session.first(insertion) is not None
