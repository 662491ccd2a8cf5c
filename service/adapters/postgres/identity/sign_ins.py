"""Rows of pending sign-ins, and the accounts of those who sign in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import case, delete, insert, or_, select, text
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.identity import Role
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.identity import logins, members, users
from service.domain.identity.sign_in import Account, Claims
from service.usecases.ports.identity import Login

_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtext('headway sign-ins'))")


class SignIns(OnSession):
    """Mixin for sign-ins, and the accounts that they lead to."""

    async def begin_login(self, login: Login) -> None:
        await self._session.execute(insert(logins).values(values_of(login)))

    async def take_login(self, state_sha256: str) -> Login | None:
        statement = delete(logins).where(logins.c.state_sha256 == state_sha256).returning(logins)
        row = await self._session.first(statement)
        return None if row is None else record_of(Login, row)

    async def account(self, claims: Claims) -> Account | None:
        # Two browsers in which one person signs in for the first time would both find no user.
        await self._session.execute(_ONE_AT_A_TIME)
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
