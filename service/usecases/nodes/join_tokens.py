"""Join tokens that operators create for agents."""

from __future__ import annotations

from datetime import datetime, timedelta

from headway.contract.views.identity import JoinTokenRequest, JoinTokenView, NewJoinToken
from service.domain.shared.errors import NotFound
from service.usecases.nodes.join import digest_token
from service.usecases.ports.transactions import Transaction


async def create_join_token(
    tx: Transaction, wanted: JoinTokenRequest, *, token_id: str, token: str, created_by: str, now: datetime
) -> NewJoinToken:
    """Create a join token. Its digest is stored, and its bearer presents `token`."""
    view = JoinTokenView(
        id=token_id,
        name=wanted.name,
        uses_left=wanted.uses,
        created_by=created_by,
        created_at=now,
        expires_at=now + timedelta(seconds=wanted.expires_in_s),
    )
    await tx.credentials.add_join_token(view, digest_token(token))
    return NewJoinToken(**view.model_dump(), token=token)


async def revoke_join_token(tx: Transaction, token_id: str) -> None:
    """Revoke a join token. Nodes that joined with it stay. Raise NotFound if there is none."""
    if not await tx.credentials.remove_join_token(token_id):
        raise NotFound(f"there is no join token {token_id}; `headway join-token ls` lists them.")
