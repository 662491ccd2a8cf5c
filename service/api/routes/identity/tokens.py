"""`/api/v1/whoami` and `/api/v1/tokens`: the caller, and tokens."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from headway.contract.views.identity import NewToken, TokenRequest, TokenView, WhoAmI
from headway.contract.views.jobs import Page
from service.api.http.access import SIGNED_IN, Caller
from service.api.http.context import Context, Cursor, IdempotencyKey, Limit, new_id
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json, as_page
from service.usecases.identity.tokens import make_token, new_token, revoke_token, token_id_of, tokens_seen_by

log = structlog.get_logger()

router = APIRouter(
    prefix="/api/v1",
    tags=["access"],
    responses={401: PROBLEM, 403: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
TokenId = Annotated[str, Path(pattern=r"^[A-Za-z0-9]{1,64}$")]


@router.get("/whoami", operation_id="whoami", response_model=WhoAmI, **SIGNED_IN)
async def who_am_i(caller: Caller) -> Response:
    """Return the bearer of the token, and the bearer's role in each project."""
    return as_json(
        WhoAmI(
            name=caller.name,
            user_id=caller.user_id,
            token_id=caller.token_id,
            roles=dict(sorted(caller.roles.items())),
            expires_at=caller.expires_at,
        )
    )


@router.get("/tokens", operation_id="list_tokens", response_model=Page[TokenView], **SIGNED_IN)
async def list_tokens(
    request: Request, context: Context, caller: Caller, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List valid tokens, newest first: your own, and robots' tokens of projects whose admin you are.

    Admins of the whole service see all.
    """
    async with context.transactions.begin() as tx:
        page = await tx.tokens.page(tokens_seen_by(caller), now=context.now(), limit=limit, cursor=cursor)
    return as_page(request, page)


@router.post("/tokens", operation_id="create_token", status_code=201, response_model=NewToken, **SIGNED_IN)
async def create_token(
    context: Context, caller: Caller, wanted: TokenRequest, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a token, which only this answer shows.

    A repeated request with the same `Idempotency-Key` replaces the first token by a new one, unless the first
    was used.
    """
    now = context.now()
    token_id = token_id_of(caller, idempotency_key) if idempotency_key else new_id("t", now)
    async with context.transactions.begin() as tx:
        made = await make_token(tx, caller, wanted, token_id=token_id, token=new_token(), now=now)
    log.info("token_made", token_id=made.id, by=caller.name, user=made.user, project=made.project)
    return as_json(made, 201, {"Location": f"/api/v1/tokens/{made.id}"})


@router.delete("/tokens/{token_id}", operation_id="revoke_token", status_code=204, **SIGNED_IN)
async def delete_token(context: Context, caller: Caller, token_id: TokenId) -> Response:
    """Revoke a token: your own, a robot's as project admin, or any token as admin of the whole service.

    Tokens that were created with it are revoked too, unless the request itself uses the revoked token.
    """
    async with context.transactions.begin() as tx:
        await revoke_token(tx, caller, token_id, context.now())
    log.info("token_revoked", token_id=token_id, by=caller.name)
    return Response(status_code=204)
