"""`/api/v1/projects`: projects and their members."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Path, Request
from fastapi.responses import Response

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.identity import MemberRequest, ProjectRequest, ProjectView, Role
from headway.contract.views.jobs import Page
from service.api.http.access import Caller, Reach, needs
from service.api.http.context import Context, Cursor, Limit
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json, as_page
from service.api.routes.identity.users import UserName
from service.domain.shared.errors import InvalidField
from service.usecases.identity.projects import (
    delete_project,
    project_view,
    put_member,
    put_project,
    remove_member,
    version_of,
)

log = structlog.get_logger()

router = APIRouter(
    prefix="/api/v1/projects",
    tags=["access"],
    responses={
        401: PROBLEM,
        403: PROBLEM,
        404: PROBLEM,
        409: PROBLEM,
        412: PROBLEM,
        422: PROBLEM,
        503: PROBLEM,
    },
)
Name = Annotated[str, Path(pattern=NAME_PATTERN)]
IfMatch = Annotated[str | None, Header(description="ETag of the project version to change")]
IfNoneMatch = Annotated[str | None, Header(description="`*`: only if the project does not exist")]


@router.get("", operation_id="list_projects", response_model=Page[ProjectView], **needs(Role.VIEWER))
async def list_projects(
    request: Request, context: Context, caller: Caller, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List the caller's projects, by name."""
    async with context.transactions.begin() as tx:
        page = await tx.projects.page(caller.projects(), context.now(), limit=limit, cursor=cursor)
    return as_page(request, page)


@router.get("/{name}", operation_id="get_project", response_model=ProjectView, **needs(Role.VIEWER))
async def get_project(context: Context, caller: Caller, name: Name) -> Response:
    """Return a project with its members and its present slots, with an ETag."""
    caller.require(Role.VIEWER, name)
    async with context.transactions.begin() as tx:
        return _tagged(await project_view(tx, name, context.now()))


@router.put(
    "/{name}",
    operation_id="set_project",
    response_model=ProjectView,
    responses={201: {"model": ProjectView, "description": "The project was created"}},
    **needs(Role.ADMIN),
)
async def set_project(
    context: Context,
    caller: Caller,
    name: Name,
    wanted: ProjectRequest,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Create a project, or set its description and quota.

    Only admins of the whole service create projects and set quotas. With `If-Match`, the request fails if the
    project has changed since.
    """
    now = context.now()
    async with context.transactions.begin() as tx:
        created = await put_project(
            tx,
            caller,
            name,
            wanted,
            if_version=_version(if_match),
            only_new=_only_new(if_none_match),
            now=now,
        )
        view = await project_view(tx, name, now)
    log.info("project_set", project=name, by=caller.name, **wanted.quota.model_dump())
    return _tagged(view, 201 if created else 200)


@router.delete(
    "/{name}", operation_id="delete_project", status_code=204, **needs(Role.ADMIN, Reach.EVERYWHERE)
)
async def remove_project(context: Context, caller: Caller, name: Name) -> Response:
    """Delete a project with its members, secrets and robots' tokens.

    Refused while it has live jobs or budgets.
    """
    async with context.transactions.begin() as tx:
        await delete_project(tx, name)
    log.info("project_removed", project=name, by=caller.name)
    return Response(status_code=204)


@router.put(
    "/{name}/members/{user}", operation_id="set_member", response_model=ProjectView, **needs(Role.ADMIN)
)
async def set_member(
    context: Context, caller: Caller, name: Name, user: UserName, wanted: MemberRequest
) -> Response:
    """Give a user a role in the project, with immediate effect."""
    caller.require(Role.ADMIN, name)
    async with context.transactions.begin() as tx:
        await put_member(tx, name, user, wanted.role)
        view = await project_view(tx, name, context.now())
    log.info("member_set", project=name, user=user, role=wanted.role, by=caller.name)
    return _tagged(view)


@router.delete("/{name}/members/{user}", operation_id="remove_member", status_code=204, **needs(Role.ADMIN))
async def delete_member(context: Context, caller: Caller, name: Name, user: UserName) -> Response:
    """Remove a user's role in the project."""
    caller.require(Role.ADMIN, name)
    async with context.transactions.begin() as tx:
        await remove_member(tx, name, user)
    log.info("member_removed", project=name, user=user, by=caller.name)
    return Response(status_code=204)


def _tagged(view: ProjectView, status: int = 200) -> Response:
    return as_json(view, status, {"ETag": f'"{version_of(view)}"'})


def _version(if_match: str | None) -> str | None:
    """Return the version in an ETag (`*` for any), or None."""
    return None if if_match is None else if_match.strip().removeprefix("W/").strip('"')


def _only_new(if_none_match: str | None) -> bool:
    if if_none_match is not None and if_none_match.strip() != "*":
        raise InvalidField("If-None-Match", "only * is supported: create the project if it does not exist")
    return if_none_match is not None
