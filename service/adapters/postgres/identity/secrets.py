"""Rows of sealed secrets."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import delete, select, text, update

from headway.contract.views.identity import SecretView
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.identity import secrets
from service.domain.shared.errors import NotFound
from service.usecases.ports.secrets import Sealed, Secrets

_PUT = text(
    """
    INSERT INTO secrets (project, name, key_id, sealed, created_by, created_at, updated_at)
    SELECT name, :name, :key_id, :sealed, :by, :now, :now FROM projects WHERE name = :project
    ON CONFLICT (project, name) DO UPDATE
    SET key_id = excluded.key_id, sealed = excluded.sealed, created_by = excluded.created_by,
        updated_at = excluded.updated_at
    RETURNING (xmax = 0) AS created
    """
)


class PostgresSecrets(OnSession, Secrets):
    """Secrets in PostgreSQL."""

    async def put(self, project: str, name: str, sealed: Sealed, *, by: str, now: datetime) -> bool:
        values = {
            "project": project,
            "name": name,
            "key_id": sealed.key_id,
            "sealed": sealed.data,
            "by": by,
            "now": now,
        }
        row = await self._session.first(_PUT, values)
        if row is None:
            raise NotFound(f"no project is called {project!r}; `headway project ls` lists them.")
        created: bool = row.created
        return created

    async def of_project(self, project: str) -> list[SecretView]:
        query = select(secrets).where(secrets.c.project == project).order_by(secrets.c.name)
        rows = await self._session.rows(query)
        return [record_of(SecretView, row) for row in rows]

    async def delete(self, project: str, name: str) -> None:
        gone = await self._session.execute(
            delete(secrets).where(secrets.c.project == project, secrets.c.name == name)
        )
        if not gone.rowcount:
            raise NotFound(f"project {project} has no secret named {name}; `headway secret ls` lists them.")

    async def get(self, project: str, names: Collection[str]) -> dict[str, Sealed]:
        query = select(secrets).where(secrets.c.project == project, secrets.c.name.in_(names))
        rows = await self._session.rows(query)
        return {row.name: Sealed(row.key_id, row.sealed) for row in rows}

    async def names(self) -> list[tuple[str, str]]:
        query = select(secrets.c.project, secrets.c.name).order_by(secrets.c.project, secrets.c.name)
        return [(row.project, row.name) for row in await self._session.rows(query)]

    async def replace(self, project: str, name: str, old: Sealed, new: Sealed) -> bool:
        done = await self._session.execute(
            update(secrets)
            .where(secrets.c.project == project, secrets.c.name == name, secrets.c.sealed == old.data)
            .values(key_id=new.key_id, sealed=new.data)
        )
        return bool(done.rowcount)
