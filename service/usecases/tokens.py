"""Make tokens, and revoke them."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from headway.contract.identity import EVERYWHERE, TOKEN_PREFIX, NewToken, Role, TokenRequest
from service.domain.access import Principal, bounds_of_own, may_manage_token
from service.domain.errors import IdempotencyConflict, InvalidField, NotFound
from service.usecases.identity_ports import TokenRecord, TokensSeen
from service.usecases.join import digest_token
from service.usecases.ports import Transaction
from service.usecases.projects import require_project
from service.usecases.records import Bell


def new_token() -> str:
    """A token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_id_of(maker: Principal, idempotency_key: str) -> str:
    """The id of a token that is asked for under a key: the same one, however often."""
    said = "\n".join((maker.user_id or maker.token_id or maker.name, idempotency_key))
    return f"t{hashlib.sha256(said.encode()).hexdigest()[:25]}"


async def make_token(
    tx: Transaction, maker: Principal, request: TokenRequest, *, token_id: str, token: str, now: datetime
) -> NewToken:
    """A new token. Asked for again with the same id, since the answer was lost, it is a new one in place of the first,
    which nobody got.

    Raises:
        InvalidField: a robot without a role, or a token of one's own for who is nobody.
        NotFound: no such project.
        Forbidden: only an admin of the project makes robots' tokens.
        IdempotencyConflict: the id is that of another token, or of one that is used by now.
    """
    role: Role | None
    if request.robot:
        if request.role is None:
            raise InvalidField("role", "a robot's token needs a role: viewer, user, operator or admin")
        maker.require(Role.ADMIN, request.project)
        user_id, role, project = None, request.role, request.project
    else:
        if maker.user_id is None:
            raise InvalidField(
                "robot", f"{maker.name} is no user and has no tokens of its own; ask for a robot's"
            )
        user_id = maker.user_id
        role, project = bounds_of_own(maker, request.role, request.project)
    if project != EVERYWHERE:
        await require_project(tx, project)
    record = TokenRecord(
        id=token_id,
        name=request.name,
        user_id=user_id,
        role=role,
        project=project,
        parent_id=maker.token_id,
        created_by=maker.name,
        created_at=now,
        expires_at=now + timedelta(seconds=request.expires_in_s),
    )
    if not await tx.tokens.add(record, digest_token(token)):
        raise IdempotencyConflict(
            "this Idempotency-Key was used for a different token, or for one that is in use; use a new key."
        )
    return NewToken(
        id=record.id,
        name=record.name,
        user=None if user_id is None else maker.name,
        role=role,
        project=project,
        created_by=record.created_by,
        created_at=now,
        expires_at=record.expires_at,
        made_with=record.parent_id,
        token=token,
    )


def tokens_seen_by(caller: Principal) -> TokensSeen:
    """Whose tokens somebody may list: those that they may revoke."""
    return TokensSeen(user_id=caller.user_id, token_id=caller.token_id, projects=caller.projects(Role.ADMIN))


async def revoke_token(tx: Transaction, caller: Principal, token_id: str, now: datetime) -> None:
    """Have a token work no more, nor any that was made with it: whoever had stolen it may have made some. Only who revokes the
    very token that they show, to be done with it, leaves those that they made. One that was revoked stays so.

    Raises:
        NotFound: there is none of that id, or it is none of theirs.
    """
    token = await tx.tokens.lock(token_id)
    if not may_manage_token(caller, token_id=token.id, user_id=token.user_id, project=token.project):
        raise NotFound(f"no token has the id {token_id!r}; `headway token ls` lists them.")
    await tx.tokens.revoke(token_id, now, family=token_id != caller.token_id)
    tx.ring(Bell.ACCESS)
