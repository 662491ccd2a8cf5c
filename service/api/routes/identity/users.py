"""`/api/v1/users`: users, for admins of the whole service."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from headway.contract.views.identity import USER_NAME_PATTERN, Role, UserPatch, UserRequest, UserView
from headway.contract.views.jobs import Page
from service.api.http.access import Caller, Reach, needs
from service.api.http.context import Context, Cursor, Limit, new_id
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json, as_page
from service.usecases.identity.users import add_user, change_user, delete_user, user_view

log = structlog.get_logger()

router = APIRouter(
    prefix="/api/v1/users",
    tags=["access"],
    responses={401: PROBLEM, 403: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
UserName = Annotated[str, Path(pattern=USER_NAME_PATTERN)]
_ADMIN = needs(Role.ADMIN, Reach.EVERYWHERE)


@router.get("", operation_id="list_users", response_model=Page[UserView], **_ADMIN)
async def list_users(
    request: Request, context: Context, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List all users with their roles, by name."""
    async with context.transactions.begin() as tx:
        page = await tx.users.page(name=None, limit=limit, cursor=cursor)
    return as_page(request, page)


@router.post("", operation_id="add_user", status_code=201, response_model=UserView, **_ADMIN)
async def post_user(context: Context, caller: Caller, wanted: UserRequest) -> Response:
    """Add a user, who may then sign in. A repeated request changes nothing."""
    now = context.now()
    async with context.transactions.begin() as tx:
        created = await add_user(tx, wanted, user_id=new_id("u", now), now=now)
        view = await user_view(tx, wanted.name)
    log.info("user_added", user=view.name, by=caller.name, role=wanted.role)
    return as_json(view, 201 if created else 200)


@router.patch("/{user}", operation_id="change_user", response_model=UserView, **_ADMIN)
async def patch_user(context: Context, caller: Caller, user: UserName, patch: UserPatch) -> Response:
    """Disable or enable a user, or set the user's role in all projects, with immediate effect."""
    async with context.transactions.begin() as tx:
        await change_user(tx, user, patch, context.now())
        view = await user_view(tx, user)
    log.info("user_changed", user=user, by=caller.name, **patch.model_dump(mode="json", exclude_unset=True))
    return as_json(view)


@router.delete("/{user}", operation_id="delete_user", status_code=204, **_ADMIN)
async def remove_user(context: Context, caller: Caller, user: UserName) -> Response:
    """Delete a user with all roles and tokens. The user's jobs continue."""
    async with context.transactions.begin() as tx:
        await delete_user(tx, user)
    log.info("user_removed", user=user, by=caller.name)
    return Response(status_code=204)
