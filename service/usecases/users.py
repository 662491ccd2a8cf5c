"""Add people, change what they may everywhere, and let them go."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from headway.contract.identity import (
    EVERYWHERE,
    TOKEN_PATTERN,
    TOKEN_PREFIX,
    Role,
    UserPatch,
    UserRequest,
    UserView,
)
from service.domain.errors import InvalidField, LastAdmin, NameTaken, NotFound
from service.usecases.identify import principal_of
from service.usecases.identity_ports import TokenRecord, UserRecord
from service.usecases.join import digest_token
from service.usecases.ports import Transaction
from service.usecases.records import Bell

_TAKEN = "admin"
"""Who bears HEADWAY_API_TOKEN is called so."""


async def add_user(tx: Transaction, request: UserRequest, *, user_id: str, now: datetime) -> bool:
    """Add a person; whether they are new. The same once more changes nothing.

    Raises:
        NameTaken: there is one of that name who may otherwise.
        InvalidField: the name means somebody else.
    """
    if request.name == _TAKEN:
        raise InvalidField("name", f"{_TAKEN} is who bears HEADWAY_API_TOKEN; choose another name")
    created = await tx.users.add(UserRecord(id=user_id, name=request.name, created_at=now))
    if created:
        if request.role is not None:
            await tx.members.put(user_id, EVERYWHERE, request.role)
        return True
    known = await tx.users.lock(request.name)
    if (await tx.members.roles(known.id)).get(EVERYWHERE) != request.role:
        raise NameTaken(f"a user is called {request.name} already, with another role; change that one.")
    return False


async def make_admin(
    tx: Transaction, name: str, *, user_id: str, token_id: str, token: str, now: datetime
) -> None:
    """Make somebody an admin everywhere and `token` theirs, be they new, disabled, or both already.

    Raises:
        WrongToken: the token is known, and works no more.
        InvalidField: it is no token of Headway's form, or somebody else's.
    """
    if re.fullmatch(TOKEN_PATTERN, token) is None:
        raise InvalidField("token", f"a token is {TOKEN_PREFIX} and 43 letters and digits")
    await tx.users.add(UserRecord(id=user_id, name=name, created_at=now))
    user = await tx.users.lock(name)
    if user.disabled_at is not None:
        await tx.users.save(replace(user, disabled_at=None))
    await tx.members.put(user.id, EVERYWHERE, Role.ADMIN)
    digest = digest_token(token)
    bearer = await tx.bearers.of_digest(digest)
    if bearer is None:
        record = TokenRecord(
            id=token_id,
            name="create-admin",
            user_id=user.id,
            role=None,
            created_by="create-admin",
            created_at=now,
            expires_at=None,
        )
        await tx.tokens.add(record, digest)
    elif principal_of(bearer, now).user_id != user.id:
        raise InvalidField("token", "this token is somebody else's")
    tx.ring(Bell.ACCESS)


async def user_view(tx: Transaction, name: str) -> UserView:
    """Somebody, as the API shows them. Raises NotFound."""
    page = await tx.access_queries.users(name=name, limit=1, cursor=None)
    if not page.items:
        raise NotFound(f"no user is called {name!r}; `headway user ls` lists them.")
    return page.items[0]


async def change_user(tx: Transaction, name: str, patch: UserPatch, now: datetime) -> None:
    """Change what is given. A user who is disabled keeps roles and tokens; none of these works until they are enabled.

    Raises:
        NotFound: there is none of that name.
        LastAdmin: nobody would be left who is an admin everywhere.
    """
    loses_role = "role" in patch.model_fields_set and patch.role is not Role.ADMIN
    user = await _lock_one_of_many(tx, name) if loses_role or patch.disabled else await tx.users.lock(name)
    if "role" in patch.model_fields_set:
        if patch.role is None:
            await tx.members.remove(user.id, EVERYWHERE)
        else:
            await tx.members.put(user.id, EVERYWHERE, patch.role)
    if "disabled" in patch.model_fields_set:
        disabled_at = (user.disabled_at or now) if patch.disabled else None
        await tx.users.save(replace(user, disabled_at=disabled_at))
    tx.ring(Bell.ACCESS)


async def delete_user(tx: Transaction, name: str) -> None:
    """Remove somebody with their roles and tokens. Their jobs go on.

    Raises:
        NotFound, LastAdmin: as `change_user`.
    """
    user = await _lock_one_of_many(tx, name)
    await tx.users.delete(user.id)
    tx.ring(Bell.ACCESS)


async def _lock_one_of_many(tx: Transaction, name: str) -> UserRecord:
    """Somebody who may go, locked. Admins are locked first and all: two who remove each other would both see one left."""
    admins = await tx.members.lock_admins()
    user = await tx.users.lock(name)
    if admins == {user.id}:
        raise LastAdmin(
            f"{user.name} is the last admin; make somebody else one first: headway user add NAME --role admin"
        )
    return user
