"""Creation and revocation of tokens."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict
from datetime import datetime, timedelta

from headway.contract.views.identity import EVERYWHERE, TOKEN_PREFIX, NewToken, Role, TokenRequest
from service.domain.identity.access import Principal, may_manage_token, own_token_bounds
from service.domain.shared.errors import IdempotencyConflict, InvalidField, NotFound
from service.usecases.identity.projects import require_project
from service.usecases.nodes.join import digest_token
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.identity import TokenRecord, TokensSeen
from service.usecases.ports.transactions import Transaction


def new_token() -> str:
    """Return a new token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_id_of(maker: Principal, idempotency_key: str) -> str:
    """Return the id of a token requested under an idempotency key, equal for every repetition."""
    key = "\n".join((maker.user_id or maker.token_id or maker.name, idempotency_key))
    return f"t{hashlib.sha256(key.encode()).hexdigest()[:25]}"


async def make_token(
    tx: Transaction, maker: Principal, request: TokenRequest, *, token_id: str, token: str, now: datetime
) -> NewToken:
    """Create a token, and return it. It does not outlive the token of its maker.

    A repetition with the same id, after a lost answer, replaces the first token, which its requester never
    received.

    Raises:
        InvalidField: a robot's token without a role, or a personal token for a caller who is not a user.
        NotFound: no such project.
        Forbidden: only an admin of the project creates robots' tokens.
        IdempotencyConflict: the id belongs to another token, or to one that was used.
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
                "robot",
                f"{maker.name} is not a user and cannot have personal tokens; ask for a robot's token",
            )
        user_id = maker.user_id
        role, project = own_token_bounds(maker, request.role, request.project)
    if project != EVERYWHERE:
        await require_project(tx, project)
    end = now + timedelta(seconds=request.expires_in_s)
    record = TokenRecord(
        id=token_id,
        name=request.name,
        user_id=user_id,
        role=role,
        project=project,
        parent_id=maker.token_id,
        created_by=maker.name,
        created_at=now,
        expires_at=end if maker.expires_at is None else min(end, maker.expires_at),
    )
    if not await tx.tokens.add(record, digest_token(token)):
        raise IdempotencyConflict(
            "this Idempotency-Key was used for a different token, or for one that is in use; use a new key."
        )
    return token_made(record, token, user=None if user_id is None else maker.name)


def token_made(record: TokenRecord, token: str, *, user: str | None) -> NewToken:
    """Return the answer about a new token, the only one that contains the token."""
    return NewToken(**asdict(record), token=token, user=user, made_with=record.parent_id)


def tokens_seen_by(caller: Principal) -> TokensSeen:
    """Return the tokens that the caller may list, which are those that the caller may revoke."""
    return TokensSeen(user_id=caller.user_id, token_id=caller.token_id, projects=caller.projects(Role.ADMIN))


async def revoke_token(tx: Transaction, caller: Principal, token_id: str, now: datetime) -> None:
    """Revoke a token and every token created with it, since a thief may have created some.

    Revoking the token in use keeps the tokens created from it. A revoked token stays revoked.

    Raises:
        NotFound: no token has that id, or the caller may not manage it.
    """
    token = await tx.tokens.lock(token_id)
    if not may_manage_token(caller, token_id=token.id, user_id=token.user_id, project=token.project):
        raise NotFound(f"no token has the id {token_id!r}; `headway token ls` lists them.")
    await tx.tokens.revoke(token_id, now, family=token_id != caller.token_id)
    tx.wake(WakeUp.ACCESS)
