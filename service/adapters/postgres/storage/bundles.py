"""Rows of bundles."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import exists, or_, select
from sqlalchemy.dialects.postgresql import insert as upsert

from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.core import bundle_uploads, bundles, jobs
from service.domain.identity.access import Principal
from service.usecases.ports.storage import BundleRecord, Bundles


class PostgresBundles(OnSession, Bundles):
    """Bundles in PostgreSQL."""

    async def get(self, digest: str, reader: Principal | None = None) -> BundleRecord | None:
        # The row is locked, so that retention skips it.
        query = select(bundles).where(bundles.c.digest == digest).with_for_update(read=True, key_share=True)
        projects = None if reader is None else reader.projects()
        if reader is not None and projects is not None:
            uploaded = exists().where(
                bundle_uploads.c.digest == digest, bundle_uploads.c.uploader == reader.key
            )
            runs = exists().where(jobs.c.spec["bundle"].astext == digest, jobs.c.project.in_(projects))
            query = query.where(or_(uploaded, runs))
        row = await self._session.first(query)
        return None if row is None else BundleRecord(row.digest, row.size_bytes, tuple(row.files))

    async def add(self, bundle: BundleRecord, now: datetime) -> None:
        statement = upsert(bundles).values(
            digest=bundle.digest, size_bytes=bundle.size_bytes, files=list(bundle.files), created_at=now
        )
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=["digest"], set_={"created_at": now})
        )

    async def uploaded(self, digest: str, uploader: Principal) -> None:
        statement = upsert(bundle_uploads).values(digest=digest, uploader=uploader.key)
        await self._session.execute(statement.on_conflict_do_nothing())
