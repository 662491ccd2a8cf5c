"""`/api/v1/join-tokens`: what agents join with."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from headway.contract.identity import JoinTokenRequest, JoinTokenView, NewJoinToken, Role
from headway.contract.jobs import Page
from service.api.access import Caller, Reach, needs
from service.api.context import Context, new_id
from service.api.problems import PROBLEM
from service.api.render import as_json
from service.usecases.join_tokens import create_join_token, revoke_join_token

router = APIRouter(
    prefix="/api/v1/join-tokens",
    tags=["nodes"],
    responses={401: PROBLEM, 403: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
_PREFIX = "hwj_"
"""So that a token is known for what it is where it should not be: in a log, in a repository."""


@router.post(
    "",
    operation_id="create_join_token",
    status_code=201,
    response_model=NewJoinToken,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def create(context: Context, caller: Caller, wanted: JoinTokenRequest) -> Response:
    """Make a token with which agents join, once by default. It is shown in this answer and never again."""
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


@router.get(
    "",
    operation_id="list_join_tokens",
    response_model=Page[JoinTokenView],
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def list_all(context: Context) -> Response:
    """Join tokens that work, and those that expired within the week; the newest first. Never the tokens themselves."""
    async with context.transactions.begin() as tx:
        return as_json(Page[JoinTokenView](items=await tx.join_tokens.all()))


@router.delete(
    "/{token_id}",
    operation_id="revoke_join_token",
    status_code=204,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def revoke(context: Context, token_id: Annotated[str, Path(max_length=64)]) -> Response:
    """Let nobody join with a token any more. Agents that have joined with it stay."""
    async with context.transactions.begin() as tx:
        await revoke_join_token(tx, token_id)
    return Response(status_code=204)
