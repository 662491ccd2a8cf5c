"""Rows of tokens, users, their roles, and projects."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import and_, bindparam, delete, func, literal, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.types import DateTime, Text

from headway.contract.views.identity import EVERYWHERE, ProjectQuota, Role
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.identity.sign_ins import SignIns
from service.adapters.postgres.tables.core import TERMINAL_SQL
from service.adapters.postgres.tables.identity import members, projects, secrets, tokens, users
from service.domain.shared.errors import NotFound
from service.usecases.ports.identity import (
    Bearer,
    ProjectRecord,
    Projects,
    TokenRecord,
    Tokens,
    UserRecord,
    Users,
    session_of_token,
)

_BEARERS = text(
    """
    SELECT sha256, tokens.id, tokens.name, user_id, role, project, session, parent_id, created_by, tokens.created_at, expires_at,
           revoked_at, last_used_at, users.name AS user_name, disabled_at,
           (SELECT jsonb_object_agg(members.project, members.role) FROM members
            WHERE members.user_id = tokens.user_id) AS roles
    FROM tokens LEFT JOIN users ON users.id = tokens.user_id WHERE sha256 = ANY(:digests)
    """
).bindparams(bindparam("digests", type_=ARRAY(Text)))
_END_FAMILY = text(
    """
    WITH RECURSIVE family (id) AS (
        SELECT CAST(:id AS text)
        UNION SELECT tokens.id FROM tokens JOIN family
              ON tokens.parent_id = family.id OR tokens.session = CAST(:session AS text) || family.id
    )
    UPDATE tokens SET revoked_at = :now WHERE id IN (SELECT id FROM family) AND revoked_at IS NULL
    """
).bindparams(bindparam("now", type_=DateTime(timezone=True)))
_USED = text(
    """
    WITH used AS (SELECT * FROM unnest(:ids, :moments) AS used (id, at)), marked AS (
        UPDATE tokens SET last_used_at = used.at FROM used
        WHERE tokens.id = used.id
          AND (last_used_at IS NULL OR last_used_at < used.at - make_interval(secs => :every_s))
        RETURNING user_id, last_used_at
    )
    UPDATE users SET last_seen_at = seen.at
    FROM (SELECT user_id, max(last_used_at) AS at FROM marked GROUP BY user_id) AS seen
    WHERE users.id = seen.user_id AND (last_seen_at IS NULL OR last_seen_at < seen.at)
    """
).bindparams(bindparam("ids", type_=ARRAY(Text)), bindparam("moments", type_=ARRAY(DateTime(timezone=True))))
_NEEDED_BY = text(
    f"""
    SELECT 'job ' || name FROM jobs WHERE project = :name AND NOT ({TERMINAL_SQL})
    UNION ALL SELECT 'budget ' || name FROM budgets WHERE project = :name
    ORDER BY 1 LIMIT 10
    """  # noqa: S608 - constants of this file
)


class PostgresTokens(OnSession, Tokens):
    """Tokens in PostgreSQL."""

    async def of_digest(self, token_sha256: str) -> Bearer | None:
        return (await self.of_digests([token_sha256])).get(token_sha256)

    async def of_digests(self, tokens_sha256: Collection[str]) -> dict[str, Bearer]:
        return {
            row.sha256: record_of(Bearer, row, token=record_of(TokenRecord, row), roles=row.roles or {})
            for row in await self._session.rows(_BEARERS, {"digests": list(tokens_sha256)})
        }

    async def used(self, at: Mapping[str, datetime], at_most_every_s: float) -> None:
        # The rows are locked in the order of their ids, so that two API processes cannot deadlock.
        ids = sorted(at)
        if ids:
            moments = [at[one] for one in ids]
            await self._session.execute(
                select(tokens.c.id)
                .where(one_of(tokens.c.id, ids))
                .order_by(tokens.c.id)
                .with_for_update(key_share=True)
            )
            await self._session.execute(_USED, {"ids": ids, "moments": moments, "every_s": at_most_every_s})

    async def add(self, token: TokenRecord, token_sha256: str) -> bool:
        fields = values_of(token)
        equal = [
            tokens.c[name].is_not_distinct_from(fields[name])
            for name in ("name", "user_id", "role", "project", "session", "parent_id", "created_by")
        ]
        statement = upsert(tokens).values(sha256=token_sha256, **fields)
        statement = statement.on_conflict_do_update(
            index_elements=["id"],
            set_={"sha256": token_sha256, "expires_at": token.expires_at},
            where=and_(tokens.c.last_used_at.is_(None), tokens.c.revoked_at.is_(None), *equal),
        )
        return await self._session.first(statement.returning(tokens.c.id)) is not None

    async def lock(self, token_id: str) -> TokenRecord:
        query = select(tokens).where(tokens.c.id == token_id).with_for_update()
        row = await self._session.first(query)
        if row is None:
            raise NotFound(f"no token has the id {token_id!r}; `headway token ls` lists them.")
        return record_of(TokenRecord, row)

    async def renew(
        self, old_sha256: str, new_sha256: str, *, now: datetime, until: datetime
    ) -> TokenRecord | None:
        shown = tokens.alias("shown")
        shown_until = (
            select(shown.c.expires_at)
            .where(tokens.c.session == literal(session_of_token("")) + shown.c.id)
            .scalar_subquery()
        )
        works = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at > now)
        statement = (
            update(tokens)
            .where(tokens.c.sha256 == old_sha256, works)
            .values(sha256=new_sha256, expires_at=func.least(until, shown_until))
            .returning(tokens)
        )
        row = await self._session.first(statement)
        return None if row is None else record_of(TokenRecord, row)

    async def revoke(self, token_id: str, now: datetime, *, family: bool = False) -> None:
        if family:
            session = session_of_token("")
            await self._session.execute(_END_FAMILY, {"id": token_id, "now": now, "session": session})
            return
        of_it = (tokens.c.id == token_id) | (tokens.c.session == session_of_token(token_id))
        await self._session.execute(
            update(tokens).where(of_it, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
        )


class PostgresUsers(SignIns, Users):
    """Users and their roles in PostgreSQL."""

    async def add(self, user: UserRecord) -> bool:
        statement = upsert(users).values(values_of(user))
        statement = statement.on_conflict_do_nothing(index_elements=["name"])
        return await self._session.first(statement.returning(users.c.id)) is not None

    async def lock(self, name: str) -> UserRecord:
        row = await self._session.first(select(users).where(users.c.name == name).with_for_update())
        if row is None:
            raise NotFound(f"no user is called {name!r}; an admin adds them with `headway user add {name}`.")
        return record_of(UserRecord, row)

    async def save(self, user: UserRecord) -> None:
        await self._session.execute(
            update(users).where(users.c.id == user.id).values(values_of(user, without={"id"}))
        )

    async def delete(self, user_id: str) -> None:
        await self._session.execute(delete(users).where(users.c.id == user_id))

    async def roles(self, user_id: str) -> dict[str, Role]:
        query = select(members.c.project, members.c.role).where(members.c.user_id == user_id)
        return {row.project: Role(row.role) for row in await self._session.rows(query)}

    async def put_role(self, user_id: str, project: str, role: Role) -> None:
        statement = upsert(members).values(user_id=user_id, project=project, role=role)
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=["user_id", "project"], set_={"role": role})
        )

    async def remove_role(self, user_id: str, project: str) -> bool:
        statement = delete(members).where(members.c.user_id == user_id, members.c.project == project)
        return await self._session.first(statement.returning(members.c.user_id)) is not None

    async def lock_admins(self) -> frozenset[str]:
        # The rows of `users` are locked too, because an admin can lose the role or be disabled.
        query = (
            select(members.c.user_id, users.c.disabled_at)
            .join(users, users.c.id == members.c.user_id)
            .where(members.c.project == EVERYWHERE, members.c.role == Role.ADMIN)
            .order_by(members.c.user_id)
            .with_for_update()
        )
        rows = await self._session.rows(query)
        return frozenset(row.user_id for row in rows if row.disabled_at is None)


class PostgresProjects(OnSession, Projects):
    """Projects in PostgreSQL."""

    async def lock(self, name: str) -> ProjectRecord | None:
        # A submit holds FOR KEY SHARE, so no job can be added between the check for live jobs and the
        # deletion.
        query = select(projects).where(projects.c.name == name).with_for_update()
        row = await self._session.first(query)
        return None if row is None else record_of(ProjectRecord, row, quota=record_of(ProjectQuota, row))

    async def exists(self, name: str) -> bool:
        query = (
            select(projects.c.name).where(projects.c.name == name).with_for_update(read=True, key_share=True)
        )
        return await self._session.first(query) is not None

    async def save(self, project: ProjectRecord) -> None:
        values = {"description": project.description, **project.quota.model_dump()}
        statement = upsert(projects).values(name=project.name, created_at=project.created_at, **values)
        await self._session.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))

    async def delete(self, name: str) -> list[str]:
        # The rows go along because a later project of the same name is a different project.
        needed_by = await self._session.scalars(_NEEDED_BY, {"name": name})
        if needed_by:
            return needed_by
        for table in (members, tokens, secrets):
            await self._session.execute(delete(table).where(table.c.project == name))
        await self._session.execute(delete(projects).where(projects.c.name == name))
        return []
