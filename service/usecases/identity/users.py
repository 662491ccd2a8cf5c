"""Users: add them, change their role everywhere, remove them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from headway.contract.views.identity import (
    EVERYWHERE,
    TOKEN_PATTERN,
    TOKEN_PREFIX,
    Role,
    UserPatch,
    UserRequest,
    UserView,
)
from service.domain.shared.errors import InvalidField, LastAdmin, NameTaken, NotFound
from service.usecases.identity.identify import principal_of
from service.usecases.nodes.join import digest_token
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.identity import TokenRecord, UserRecord
from service.usecases.ports.transactions import Transaction

_TAKEN = "admin"
"""The name of the bearer of HEADWAY_API_TOKEN, which no user may have."""


async def add_user(tx: Transaction, request: UserRequest, *, user_id: str, now: datetime) -> bool:
    """Add a user to the service. Return True if the user is new. A repetition changes nothing.

    Raises:
        NameTaken: a user of that name has another role.
        InvalidField: the name is reserved.
    """
    if request.name == _TAKEN:
        raise InvalidField(
            "name", f"{_TAKEN} is reserved for the bearer of HEADWAY_API_TOKEN; choose another name"
        )
    created = await tx.users.add(UserRecord(id=user_id, name=request.name, created_at=now))
    if created:
        if request.role is not None:
            await tx.users.put_role(user_id, EVERYWHERE, request.role)
        return True
    known = await tx.users.lock(request.name)
    if (await tx.users.roles(known.id)).get(EVERYWHERE) != request.role:
        raise NameTaken(f"a user named {request.name} exists already, with another role; change that user.")
    return False


async def make_admin(
    tx: Transaction, name: str, *, user_id: str, token_id: str, token: str, now: datetime
) -> None:
    """Make a user an admin everywhere with `token` as a token of theirs.

    Create or enable the user if necessary.

    Raises:
        WrongToken: the token is known, and not valid any more.
        InvalidField: it does not have the form of a token, or belongs to another user.
    """
    if re.fullmatch(TOKEN_PATTERN, token) is None:
        raise InvalidField("token", f"a token is {TOKEN_PREFIX} and 43 letters and digits")
    await tx.users.add(UserRecord(id=user_id, name=name, created_at=now))
    user = await tx.users.lock(name)
    if user.disabled_at is not None:
        await tx.users.save(replace(user, disabled_at=None))
    await tx.users.put_role(user.id, EVERYWHERE, Role.ADMIN)
    digest = digest_token(token)
    bearer = await tx.tokens.of_digest(digest)
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
        raise InvalidField("token", "this token belongs to another user")
    tx.wake(WakeUp.ACCESS)


async def user_view(tx: Transaction, name: str) -> UserView:
    """Return a user as the API shows them. Raise NotFound if there is none of that name."""
    page = await tx.users.page(name=name, limit=1, cursor=None)
    if not page.items:
        raise NotFound(f"no user is called {name!r}; `headway user ls` lists them.")
    return page.items[0]


async def change_user(tx: Transaction, name: str, patch: UserPatch, now: datetime) -> None:
    """Change the given fields of a user.

    A disabled user keeps roles and tokens, which do not work until the user is enabled.

    Raises:
        NotFound: there is no user of that name.
        LastAdmin: no admin everywhere would be left.
    """
    loses_role = "role" in patch.model_fields_set and patch.role is not Role.ADMIN
    user = await _lock_one_of_many(tx, name) if loses_role or patch.disabled else await tx.users.lock(name)
    if "role" in patch.model_fields_set:
        if patch.role is None:
            await tx.users.remove_role(user.id, EVERYWHERE)
        else:
            await tx.users.put_role(user.id, EVERYWHERE, patch.role)
    if "disabled" in patch.model_fields_set:
        disabled_at = (user.disabled_at or now) if patch.disabled else None
        await tx.users.save(replace(user, disabled_at=disabled_at))
    tx.wake(WakeUp.ACCESS)


async def delete_user(tx: Transaction, name: str) -> None:
    """Remove a user with their roles and tokens.

    Their jobs go on.

    Raises:
        NotFound, LastAdmin: as `change_user`.
    """
    user = await _lock_one_of_many(tx, name)
    await tx.users.delete(user.id)
    tx.wake(WakeUp.ACCESS)


async def _lock_one_of_many(tx: Transaction, name: str) -> UserRecord:
    """Return a user who may be removed, locked.

    All admins are locked first. Otherwise two admins who remove each other would both see one left.
    """
    admins = await tx.users.lock_admins()
    user = await tx.users.lock(name)
    if admins == {user.id}:
        raise LastAdmin(
            f"{user.name} is the last admin; make another user an admin first: headway user add NAME --role admin"
        )
    return user
