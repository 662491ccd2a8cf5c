"""Sign-ins that are under way, and who comes in by them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import case, delete, insert, or_, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.identity import Role
from service.adapters.postgres.identity_tables import logins, members, users
from service.domain.sign_in import Account, Claims
from service.usecases.sign_in_ports import Login

_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtext('headway sign-ins'))")


class PostgresSignIns:
    """Implements `usecases.sign_in_ports.SignIns`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def begin(self, login: Login) -> None:
        """Keep a login until it comes back."""
        await self._connection.execute(
            insert(logins).values(
                state_sha256=login.state_sha256,
                verifier=login.verifier,
                nonce=login.nonce,
                return_to=login.return_to,
                expires_at=login.expires_at,
            )
        )

    async def take(self, state_sha256: str) -> Login | None:
        """The login of this state; it is gone with that."""
        statement = delete(logins).where(logins.c.state_sha256 == state_sha256).returning(logins)
        row = (await self._connection.execute(statement)).first()
        if row is None:
            return None
        return Login(
            state_sha256=row.state_sha256,
            verifier=row.verifier,
            nonce=row.nonce,
            return_to=row.return_to,
            expires_at=row.expires_at,
        )

    async def account(self, claims: Claims) -> Account | None:
        """The user who is bound to the subject, else the one of the name; locked. One at a time is let in: two browsers in
        which somebody signs in for the first time would both find nobody.
        """
        await self._connection.execute(_ONE_AT_A_TIME)
        bound = (users.c.issuer == claims.issuer) & (users.c.subject == claims.subject)
        query = (
            select(users)
            .where(bound if claims.name is None else or_(bound, users.c.name == claims.name))
            .order_by(case((bound, 0), else_=1))
            .limit(1)
            .with_for_update()
        )
        row = (await self._connection.execute(query)).first()
        if row is None:
            return None
        return Account(
            id=row.id,
            name=row.name,
            issuer=row.issuer,
            subject=row.subject,
            disabled=row.disabled_at is not None,
        )

    async def admit(self, account: Account, roles: Mapping[str, Role], now: datetime) -> None:
        """Store an account: a new one, or bound to its subject by now; with further roles where it has none."""
        bound = {"issuer": account.issuer, "subject": account.subject}
        statement = upsert(users).values(id=account.id, name=account.name, created_at=now, **bound)
        await self._connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=bound))
        for project, role in roles.items():
            row = upsert(members).values(user_id=account.id, project=project, role=role)
            await self._connection.execute(row.on_conflict_do_nothing())
