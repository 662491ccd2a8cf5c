"""Rows of users, their roles, and their pending sign-ins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import case, delete, insert, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.identity import EVERYWHERE, Role, UserView
from headway.contract.views.jobs import Page
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.identity import logins, members, users
from service.domain.identity.sign_in import Account, Claims
from service.domain.shared.errors import NotFound
from service.usecases.ports.identity import Login, UserRecord, Users

_USERS = text(
    """
    SELECT id, name, created_at, last_seen_at, disabled_at,
           (SELECT jsonb_object_agg(project, role) FROM members WHERE user_id = users.id) AS roles
    FROM users WHERE (CAST(:name AS text) IS NULL OR name = :name) AND name > :after
    ORDER BY name LIMIT :limit
    """
)
_ONE_SIGN_IN = text("SELECT pg_advisory_xact_lock(hashtext('headway sign-ins'))")


class PostgresUsers(OnSession, Users):
    """Users, their roles and their sign-ins in PostgreSQL."""

    async def add(self, user: UserRecord) -> bool:
        statement = upsert(users).values(values_of(user))
        statement = statement.on_conflict_do_nothing(index_elements=["name"])
        return await self._session.first(statement.returning(users.c.id)) is not None

    async def page(self, *, name: str | None, limit: int, cursor: str | None) -> Page[UserView]:
        rows = await self._session.rows(_USERS, {"name": name, "after": cursor or "", "limit": limit + 1})
        more = rows[limit - 1].name if len(rows) > limit else None
        items = [
            record_of(UserView, row, roles=dict(sorted((row.roles or {}).items()))) for row in rows[:limit]
        ]
        return Page(items=items, next_cursor=more)

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

    async def begin_login(self, login: Login) -> None:
        await self._session.execute(insert(logins).values(values_of(login)))

    async def take_login(self, state_sha256: str) -> Login | None:
        statement = delete(logins).where(logins.c.state_sha256 == state_sha256).returning(logins)
        row = await self._session.first(statement)
        return None if row is None else record_of(Login, row)

    async def account(self, claims: Claims) -> Account | None:
        # Two browsers in which one person signs in for the first time would both find no user.
        await self._session.execute(_ONE_SIGN_IN)
        bound = (users.c.issuer == claims.issuer) & (users.c.subject == claims.subject)
        query = (
            select(users)
            .where(bound if claims.name is None else or_(bound, users.c.name == claims.name))
            .order_by(case((bound, 0), else_=1))
            .limit(1)
            .with_for_update()
        )
        row = await self._session.first(query)
        return None if row is None else record_of(Account, row, disabled=row.disabled_at is not None)

    async def admit(self, account: Account, roles: Mapping[str, Role], now: datetime) -> None:
        bound = {"issuer": account.issuer, "subject": account.subject}
        statement = upsert(users).values(id=account.id, name=account.name, created_at=now, **bound)
        await self._session.execute(statement.on_conflict_do_update(index_elements=["id"], set_=bound))
        for project, role in roles.items():
            row = upsert(members).values(user_id=account.id, project=project, role=role)
            await self._session.execute(row.on_conflict_do_nothing())
