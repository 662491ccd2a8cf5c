"""Tokens that operators make for agents to join with."""

from __future__ import annotations

from datetime import datetime, timedelta

from headway.contract.identity import JoinTokenRequest, JoinTokenView, NewJoinToken
from service.domain.errors import NotFound
from service.usecases.join import digest_token
from service.usecases.ports import Transaction


async def create_join_token(
    tx: Transaction, wanted: JoinTokenRequest, *, token_id: str, token: str, created_by: str, now: datetime
) -> NewJoinToken:
    """Store a join token, as its digest. `token` is what its bearer shows."""
    made = JoinTokenView(
        id=token_id,
        name=wanted.name,
        uses_left=wanted.uses,
        created_by=created_by,
        created_at=now,
        expires_at=now + timedelta(seconds=wanted.expires_in_s),
    )
    await tx.join_tokens.add(made, digest_token(token))
    return NewJoinToken(**made.model_dump(), token=token)


async def revoke_join_token(tx: Transaction, token_id: str) -> None:
    """Nobody joins with it any more; those who did stay. Raises NotFound."""
    if not await tx.join_tokens.remove(token_id):
        raise NotFound(f"there is no join token {token_id}; `headway join-token ls` lists them.")
