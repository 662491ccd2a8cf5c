"""`/api/v1/projects`, and who belongs to them."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Path, Request
from fastapi.responses import Response

from headway.contract.identity import MemberRequest, ProjectRequest, ProjectView, Role
from headway.contract.jobs import Page
from headway.contract.spec import NAME_PATTERN
from service.api.access import Caller, Reach, needs
from service.api.context import Context, Cursor, Limit
from service.api.problems import PROBLEM
from service.api.render import as_json, as_page
from service.api.users import UserName
from service.domain.errors import InvalidField
from service.usecases.projects import (
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
IfMatch = Annotated[str | None, Header(description="The ETag of the project that is to be changed")]
IfNoneMatch = Annotated[str | None, Header(description="`*`: only if there is no such project")]


@router.get("", operation_id="list_projects", response_model=Page[ProjectView], **needs(Role.VIEWER))
async def list_projects(
    request: Request, context: Context, caller: Caller, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """The caller's projects, by name."""
    async with context.transactions.begin() as tx:
        page = await tx.access_queries.projects(caller.projects(), context.now(), limit=limit, cursor=cursor)
    return as_page(request, page)


@router.get("/{name}", operation_id="get_project", response_model=ProjectView, **needs(Role.VIEWER))
async def get_project(context: Context, caller: Caller, name: Name) -> Response:
    """One project, its members, and what it holds now, with its ETag."""
    caller.require(Role.VIEWER, name)
    async with context.transactions.begin() as tx:
        return _tagged(await project_view(tx, name, context.now()))


@router.put(
    "/{name}",
    operation_id="set_project",
    response_model=ProjectView,
    responses={201: {"model": ProjectView, "description": "It is new"}},
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
    """Make a project, or set its description and quota. Only admins everywhere make projects and set quotas. With `If-Match`
    only if nobody has changed it meanwhile.
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
    """Remove a project with its members, secrets and robots' tokens; refused while jobs of it are live."""
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
    """Give a user a role in the project. It holds at once."""
    caller.require(Role.ADMIN, name)
    async with context.transactions.begin() as tx:
        await put_member(tx, name, user, wanted.role)
        view = await project_view(tx, name, context.now())
    log.info("member_set", project=name, user=user, role=wanted.role, by=caller.name)
    return _tagged(view)


@router.delete("/{name}/members/{user}", operation_id="remove_member", status_code=204, **needs(Role.ADMIN))
async def delete_member(context: Context, caller: Caller, name: Name, user: UserName) -> Response:
    """Take a user's role in the project away."""
    caller.require(Role.ADMIN, name)
    async with context.transactions.begin() as tx:
        await remove_member(tx, name, user)
    log.info("member_removed", project=name, user=user, by=caller.name)
    return Response(status_code=204)


def _tagged(view: ProjectView, status: int = 200) -> Response:
    return as_json(view, status, {"ETag": f'"{version_of(view)}"'})


def _version(if_match: str | None) -> str | None:
    """The version in an ETag; `*` for any."""
    return None if if_match is None else if_match.strip().removeprefix("W/").strip('"')


def _only_new(if_none_match: str | None) -> bool:
    if if_none_match is not None and if_none_match.strip() != "*":
        raise InvalidField("If-None-Match", "only * has a meaning here: make it if there is none")
    return if_none_match is not None
