"""Authentication of callers, and the role that every route declares with `needs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials
from structlog.contextvars import bind_contextvars

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.identity import Role
from service.api.http.auditing import PRINCIPAL
from service.api.http.context import Context, Credentials, digest_of, may_monitor
from service.api.http.sessions import check_same_origin, session_of
from service.domain.identity.access import Principal
from service.domain.shared.errors import Forbidden, NotFound, WrongToken
from service.usecases.identity.identify import Identities
from service.usecases.nodes.credentials import node_of_token


class Reach(StrEnum):
    """Place where a role is needed: in the project of the request, or everywhere."""

    PROJECT = "project"
    EVERYWHERE = "everywhere"


async def identities_of(request: Request) -> Identities:
    """Return the token registry of this process."""
    identities: Identities = request.app.state.identities
    return identities


async def caller_of(request: Request, credentials: Credentials) -> Principal:
    """Return the caller: the bearer of the request's token, else the user of the browser's session.

    Raises:
        WrongToken: the token or session is unknown.
        Forbidden: another site made the browser send the request.
    """
    request.scope[PRINCIPAL] = principal = await _identify(request, credentials)
    return principal


async def _identify(request: Request, credentials: HTTPAuthorizationCredentials | None) -> Principal:
    identities = await identities_of(request)  # not a dependency, because each costs a request about 20 µs
    if credentials is not None:
        return await identities.identify(credentials.credentials)
    session = session_of(request)
    if session is None:
        return await identities.identify("")
    await check_same_origin(request, session)
    return await identities.identify(session)


Caller: TypeAlias = Annotated[Principal, Depends(caller_of)]


async def bundle_reader(
    digest: str,
    request: Request,
    context: Context,
    credentials: Credentials,
) -> Principal | None:
    """Return the user who requests a bundle, or None if an agent requests it for a job on its node.

    Raises:
        WrongToken: the token is neither a user's nor a node's.
        NotFound: no job on the node starts from the bundle.
    """
    try:
        return await caller_of(request, credentials)
    except WrongToken:
        async with context.transactions.begin() as tx:
            node_id = await node_of_token(tx, digest_of(credentials), context.now())
            if node_id is None:
                raise
            if not await tx.credentials.needs_bundle(node_id, digest):
                raise NotFound(f"no job on this node starts from a bundle {digest}.") from None
        return None


BundleReader: TypeAlias = Annotated[Principal | None, Depends(bundle_reader)]


async def require_monitor(request: Request, context: Context, credentials: Credentials) -> None:
    """Let monitoring pass, and viewers of all projects.

    Raises:
        WrongToken: the token is neither that of monitoring nor a caller's.
        Forbidden: the caller may not see all projects.
    """
    if not may_monitor(context, credentials):
        (await _identify(request, credentials)).require(Role.VIEWER)


def require_somewhere(caller: Principal, role: Role) -> None:
    """Raise Forbidden if the caller has the role in no project."""
    if caller.projects(role) == frozenset():
        raise Forbidden(
            f"this needs the role {role} in a project, and {caller.name} has it in none; ask an admin for the role."
        )


def needs(role: Role, reach: Reach = Reach.PROJECT) -> dict[str, Any]:
    """Return the arguments of a route that needs a role.

    The role is checked and appears in the API's description (`x-headway-role`). With `Reach.PROJECT` the
    caller must have the role in some project. The handler checks the right project, by `SeenJob`, `OwnJob` or
    `Caller.require`.
    """

    async def check(caller: Caller) -> None:
        if reach is Reach.EVERYWHERE:
            caller.require(role)
        else:
            require_somewhere(caller, role)

    return {
        "dependencies": [Depends(check)],
        "openapi_extra": {"x-headway-role": role.value, "x-headway-reach": reach.value},
    }


SIGNED_IN: dict[str, Any] = {
    "dependencies": [Depends(caller_of)],
    "openapi_extra": {"x-headway-role": "any", "x-headway-reach": Reach.EVERYWHERE.value},
}
"""Arguments of a route that every valid token may use, even without a role."""

ProjectName = Annotated[
    str | None,
    Query(
        pattern=NAME_PATTERN, description="Project of the job, if jobs of several projects have the same name"
    ),
]


def _job_for(role: Role) -> Callable[..., Awaitable[str]]:
    async def found(
        context: Context,
        caller: Caller,
        job: Annotated[
            str, Path(description="Id of a job, or its name (the live job of that name, else the newest)")
        ],
        project: ProjectName = None,
    ) -> str:
        if project is None and caller.may(role):
            bind_contextvars(job=job)
            return job
        seen = caller.projects() if project is None else frozenset({project})
        if project is not None:
            caller.require(Role.VIEWER, project)
        async with context.transactions.begin() as tx:
            known = await tx.job_queries.find(job, seen)
        caller.require(role, known.project)
        bind_contextvars(job=known.id)
        return known.id

    return found


SeenJob: TypeAlias = Annotated[str, Depends(_job_for(Role.VIEWER))]
"""Id of the job in the path, which the caller may view. Raises NotFound for every other job."""
OperatedJob: TypeAlias = Annotated[str, Depends(_job_for(Role.OPERATOR))]
"""Id of the job in the path, in a project that the caller operates. Raises like `OwnJob`."""
OwnJob: TypeAlias = Annotated[str, Depends(_job_for(Role.USER))]
"""Id of the job in the path, which the caller may control.

Raises NotFound if the caller may not view the job, else Forbidden.
"""
