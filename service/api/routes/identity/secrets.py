"""`/api/v1/projects/{project}/secrets`: names of secrets. Values can be set but never read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from headway.contract.spec import NAME_PATTERN
from headway.contract.spec_env import SECRET_NAME_PATTERN
from headway.contract.views.identity import Role, SecretRequest, SecretView
from headway.contract.views.jobs import Page
from service.api.http.access import Caller, needs
from service.api.http.context import Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.identity.secrets import set_secret

router = APIRouter(
    prefix="/api/v1/projects/{project}/secrets",
    tags=["access"],
    responses={401: PROBLEM, 403: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
Project = Annotated[str, Path(pattern=NAME_PATTERN)]
Name = Annotated[str, Path(pattern=SECRET_NAME_PATTERN)]


@router.get("", operation_id="list_secrets", response_model=Page[SecretView], **needs(Role.USER))
async def list_secrets(context: Context, caller: Caller, project: Project) -> Response:
    """List the names of a project's secrets. Values are never shown."""
    caller.require(Role.USER, project)
    async with context.transactions.begin() as tx:
        return as_json(Page[SecretView](items=await tx.secrets.of_project(project)))


@router.put("/{name}", operation_id="set_secret", response_model=SecretView, **needs(Role.ADMIN))
async def put_secret(
    context: Context, caller: Caller, project: Project, name: Name, wanted: SecretRequest
) -> Response:
    """Set a secret, encrypted at rest. Jobs that start later get the new value; running jobs keep theirs."""
    caller.require(Role.ADMIN, project)
    view, created = await set_secret(
        context.transactions,
        context.keys,
        project,
        name,
        wanted.value.get_secret_value(),
        by=caller.name,
        now=context.now(),
    )
    return as_json(view, 201 if created else 200)


@router.delete("/{name}", operation_id="delete_secret", status_code=204, **needs(Role.ADMIN))
async def delete_secret(context: Context, caller: Caller, project: Project, name: Name) -> Response:
    """Delete a secret. Jobs that name it can no longer start."""
    caller.require(Role.ADMIN, project)
    async with context.transactions.begin() as tx:
        await tx.secrets.delete(project, name)
    return Response(status_code=204)
