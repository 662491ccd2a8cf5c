"""Routes that give agents new credentials, and access to the storage of their jobs."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from headway.contract.credentials import NodeCredentials, StorageAccess, StorageRequest
from headway.contract.values.text import GivenText
from service.api.http.context import Context, Credentials, digest_of, require_node
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.nodes.credentials import renew
from service.usecases.nodes.join import digest_token
from service.usecases.storage.access import storage_access

router = APIRouter(
    prefix="/api/v1/agents",
    tags=["agents"],
    responses={401: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
_NOT_KEPT = {"Cache-Control": "no-store"}


@router.post("/{node_id}/credentials", operation_id="renew_credentials", response_model=NodeCredentials)
async def renew_credentials(context: Context, credentials: Credentials, node_id: GivenText) -> Response:
    """Return new credentials of a node in exchange for its old ones.

    The old ones work until the new token is used.
    """
    token = secrets.token_urlsafe(32)
    async with context.transactions.begin() as tx:
        await renew(
            tx,
            node_id,
            presented_sha256=digest_of(credentials),
            new_sha256=digest_token(token),
            now=context.now(),
        )
    url = await context.access.queue.grant(node_id)
    return as_json(NodeCredentials(node_token=token, redis_url=url), headers=_NOT_KEPT)


@router.post("/{node_id}/storage", operation_id="storage_access", response_model=StorageAccess)
async def get_storage_access(
    context: Context, node_id: Annotated[str, Depends(require_node)], wanted: StorageRequest
) -> Response:
    """Return short-lived keys for the checkpoints of a job on the node, or a ticket for signed requests."""
    access = await storage_access(context.transactions, context.access, node_id, wanted, context.now())
    return as_json(access, headers=_NOT_KEPT)
