"""Bundle rows."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.adapters.postgres.tables import bundles
from service.usecases.records import BundleRecord


class PostgresBundles:
    """Implements `usecases.ports.Bundles`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self, digest: str) -> BundleRecord | None:
        """A bundle that was uploaded. Its row is there until the transaction ends: retention passes over it."""
        query = select(bundles).where(bundles.c.digest == digest).with_for_update(read=True, key_share=True)
        row = (await self._connection.execute(query)).first()
        return None if row is None else BundleRecord(row.digest, row.size_bytes, tuple(row.files))

    async def add(self, bundle: BundleRecord, now: datetime) -> None:
        """An upload. The same one again is as if it had been made now."""
        statement = upsert(bundles).values(
            digest=bundle.digest, size_bytes=bundle.size_bytes, files=list(bundle.files), created_at=now
        )
        await self._connection.execute(
            statement.on_conflict_do_update(index_elements=["digest"], set_={"created_at": now})
        )
