"""`/api/v1/projects/{project}/webhooks`: messages about a project's jobs to other systems."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from headway.contract.views.webhooks import (
    DeliveryView,
    WebhookChange,
    WebhookRequest,
    WebhookSecret,
    WebhookView,
)
from service.api.http.access import Caller, needs
from service.api.http.context import Context, new_id
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.domain.notifications.signature import SECRET_BYTES
from service.usecases.notifications.webhooks import (
    DELIVERIES_SHOWN,
    change_webhook,
    create_webhook,
    rotate_secret,
    test_webhook,
)

router = APIRouter(
    prefix="/api/v1/projects/{project}/webhooks",
    tags=["access"],
    responses={401: PROBLEM, 403: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
Project = Annotated[str, Path(pattern=NAME_PATTERN)]
Name = Annotated[str, Path(pattern=NAME_PATTERN)]


@router.get("", operation_id="list_webhooks", response_model=Page[WebhookView], **needs(Role.USER))
async def list_webhooks(context: Context, caller: Caller, project: Project) -> Response:
    """List the webhooks of a project. Secrets, paths and queries are never shown."""
    caller.require(Role.USER, project)
    async with context.transactions.begin() as tx:
        return as_json(Page[WebhookView](items=await tx.webhooks.of_project(project)))


@router.post(
    "", operation_id="create_webhook", status_code=201, response_model=WebhookSecret, **needs(Role.ADMIN)
)
async def add_webhook(context: Context, caller: Caller, project: Project, wanted: WebhookRequest) -> Response:
    """Create a webhook. Only this answer contains the secret with which receivers check signatures."""
    caller.require(Role.ADMIN, project)
    now = context.now()
    made = await create_webhook(
        context.transactions,
        context.keys,
        project,
        wanted,
        webhook_id=new_id("w", now),
        secret=secrets.token_bytes(SECRET_BYTES),
        by=caller.name,
        now=now,
    )
    return as_json(made, 201)


@router.patch("/{name}", operation_id="change_webhook", response_model=WebhookView, **needs(Role.ADMIN))
async def patch_webhook(
    context: Context, caller: Caller, project: Project, name: Name, change: WebhookChange
) -> Response:
    """Change, disable or enable a webhook. Enabling it sends the messages that wait."""
    caller.require(Role.ADMIN, project)
    view = await change_webhook(context.transactions, context.keys, project, name, change, context.now())
    return as_json(view)


@router.delete("/{name}", operation_id="delete_webhook", status_code=204, **needs(Role.ADMIN))
async def delete_webhook(context: Context, caller: Caller, project: Project, name: Name) -> Response:
    """Delete a webhook with its messages, also those that wait."""
    caller.require(Role.ADMIN, project)
    async with context.transactions.begin() as tx:
        await tx.webhooks.delete((await tx.webhooks.lock(project, name)).id)
    return Response(status_code=204)


@router.post(
    "/{name}/rotate",
    operation_id="rotate_webhook_secret",
    response_model=WebhookSecret,
    **needs(Role.ADMIN),
)
async def rotate_webhook_secret(context: Context, caller: Caller, project: Project, name: Name) -> Response:
    """Replace the secret, and return the new one. For a day, messages are signed with both."""
    caller.require(Role.ADMIN, project)
    made = await rotate_secret(
        context.transactions,
        context.keys,
        project,
        name,
        secret=secrets.token_bytes(SECRET_BYTES),
        now=context.now(),
    )
    return as_json(made)


@router.post(
    "/{name}/test",
    operation_id="test_webhook",
    status_code=202,
    response_model=DeliveryView,
    **needs(Role.ADMIN),
)
async def send_test(context: Context, caller: Caller, project: Project, name: Name) -> Response:
    """Send a test message. Its delivery is listed like every other one."""
    caller.require(Role.ADMIN, project)
    async with context.transactions.begin() as tx:
        view = await test_webhook(tx, project, name, by=caller.name, now=context.now())
    return as_json(view, 202)


@router.get(
    "/{name}/deliveries",
    operation_id="list_deliveries",
    response_model=Page[DeliveryView],
    **needs(Role.USER),
)
async def list_deliveries(context: Context, caller: Caller, project: Project, name: Name) -> Response:
    """List the latest 100 deliveries of a webhook, newest first, with the last answer to each."""
    caller.require(Role.USER, project)
    async with context.transactions.begin() as tx:
        found = await tx.outbox.of_webhook(project, name, DELIVERIES_SHOWN)
    return as_json(Page[DeliveryView](items=found))
