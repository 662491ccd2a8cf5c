"""`/api/v1/hosts`: hosts and the connections between them."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.views.hosts import HostsView
from headway.contract.views.identity import Role
from service.api.http.access import needs
from service.api.http.context import Context
from service.api.http.render import as_json
from service.usecases.nodes.links import hosts_view

router = APIRouter(prefix="/api/v1/hosts", tags=["nodes"])


@router.get("", operation_id="list_hosts", response_model=HostsView, **needs(Role.VIEWER))
async def list_hosts(context: Context) -> Response:
    """Return all hosts with what decides whether they can train together, and the connections that fail or are slow."""
    async with context.transactions.begin() as tx:
        view = await hosts_view(tx, context.now())
    return as_json(view)
