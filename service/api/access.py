"""Who is asking, and what they may do: what every route says of itself with `needs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials
from structlog.contextvars import bind_contextvars

from headway.contract.identity import Role
from headway.contract.spec import NAME_PATTERN
from service.api.auditing import PRINCIPAL
from service.api.context import Context, Credentials, digest_of
from service.api.sessions import check_same_origin, session_of
from service.domain.access import Principal
from service.domain.errors import Forbidden, NotFound, WrongToken
from service.usecases.identify import Identities
from service.usecases.node_credentials import node_of_token


class Reach(StrEnum):
    """Where the role is needed: in the project that the request is about, or everywhere."""

    PROJECT = "project"
    EVERYWHERE = "everywhere"


async def identities_of(request: Request) -> Identities:
    """What knows tokens in this process."""
    identities: Identities = request.app.state.identities
    return identities


async def caller_of(
    request: Request, identities: Annotated[Identities, Depends(identities_of)], credentials: Credentials
) -> Principal:
    """Whoever sent the request: the bearer of the token in it, else the session of the browser that it comes from.

    Raises:
        WrongToken: nobody that is known.
        Forbidden: a browser was made to send it.
    """
    request.scope[PRINCIPAL] = principal = await _identify(request, identities, credentials)
    return principal


async def _identify(
    request: Request, identities: Identities, credentials: HTTPAuthorizationCredentials | None
) -> Principal:
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
    identities: Annotated[Identities, Depends(identities_of)],
    credentials: Credentials,
) -> Principal | None:
    """Whoever asks for a bundle: a user; None for the agent of a node on which a job starts from it."""
    try:
        return await caller_of(request, identities, credentials)
    except WrongToken:
        async with context.transactions.begin() as tx:
            node_id = await node_of_token(tx, digest_of(credentials), context.now())
            if node_id is None:
                raise
            if not await tx.held_runs.needs_bundle(node_id, digest):
                raise NotFound(f"no job on this node starts from a bundle {digest}.") from None
        return None


BundleReader: TypeAlias = Annotated[Principal | None, Depends(bundle_reader)]


def needs(role: Role, reach: Reach = Reach.PROJECT) -> dict[str, Any]:
    """Of a route: the role that it needs, checked and said in the API's description (`x-headway-role`).

    With `Reach.PROJECT` the caller must have the role in some project; which one it must be is known where the request is
    understood: `SeenJob`, `OwnJob`, or `Caller.require` with the project's name.
    """

    async def check(caller: Caller) -> None:
        if reach is Reach.EVERYWHERE:
            caller.require(role)
        elif caller.projects(role) == frozenset():
            raise Forbidden(f"this needs the role {role} in a project, and {caller.name} has it in none.")

    return {
        "dependencies": [Depends(check)],
        "openapi_extra": {"x-headway-role": role.value, "x-headway-reach": reach.value},
    }


SIGNED_IN: dict[str, Any] = {
    "dependencies": [Depends(caller_of)],
    "openapi_extra": {"x-headway-role": "any", "x-headway-reach": Reach.EVERYWHERE.value},
}
"""Of a route: whoever has a token that works may ask, be it that they have no role anywhere."""

ProjectName = Annotated[
    str | None, Query(pattern=NAME_PATTERN, description="Where jobs of several projects have the same name")
]


def _job_for(role: Role) -> Callable[..., Awaitable[str]]:
    async def found(
        context: Context,
        caller: Caller,
        job: Annotated[str, Path(description="Name of a job (its live one, else its newest), or its id")],
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
"""The id of the job in the path, which the caller may look at. Raises NotFound for every other one."""
OwnJob: TypeAlias = Annotated[str, Depends(_job_for(Role.USER))]
"""The id of the job in the path, which the caller may steer. Raises NotFound where they may not even look at it, else Forbidden."""
