"""`/api/v1/join-tokens`: tokens with which agents join."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from headway.contract.views.identity import JoinTokenRequest, JoinTokenView, NewJoinToken, Role
from headway.contract.views.jobs import Page
from service.api.http.access import Caller, Reach, needs
from service.api.http.context import Context, new_id
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.nodes.join_tokens import create_join_token, revoke_join_token

router = APIRouter(
    prefix="/api/v1/join-tokens",
    tags=["nodes"],
    responses={401: PROBLEM, 403: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
_OPERATOR = needs(Role.OPERATOR, Reach.EVERYWHERE)
_PREFIX = "hwj_"
"""Prefix that makes a leaked join token recognisable, in a log or a repository."""


@router.post("", operation_id="create_join_token", status_code=201, response_model=NewJoinToken, **_OPERATOR)
async def create(context: Context, caller: Caller, wanted: JoinTokenRequest) -> Response:
    """Create a token with which agents join, by default once. Only this answer shows it."""
    now = context.now()
    async with context.transactions.begin() as tx:
        made = await create_join_token(
            tx,
            wanted,
            token_id=new_id("k", now),
            token=f"{_PREFIX}{secrets.token_urlsafe(32)}",
            created_by=caller.name,
            now=now,
        )
    return as_json(made, 201, headers={"Cache-Control": "no-store"})


@router.get("", operation_id="list_join_tokens", response_model=Page[JoinTokenView], **_OPERATOR)
async def list_all(context: Context) -> Response:
    """List valid join tokens, and those that expired within the last 7 days, newest first.

    The tokens themselves are never shown.
    """
    async with context.transactions.begin() as tx:
        return as_json(Page[JoinTokenView](items=await tx.credentials.join_tokens()))


@router.delete("/{token_id}", operation_id="revoke_join_token", status_code=204, **_OPERATOR)
async def revoke(context: Context, token_id: Annotated[str, Path(max_length=64)]) -> Response:
    """Revoke a join token. Agents that have joined with it stay."""
    async with context.transactions.begin() as tx:
        await revoke_join_token(tx, token_id)
    return Response(status_code=204)
