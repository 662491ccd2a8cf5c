"""`/api/v1/capacity`: device kinds with free slots."""

from fastapi import APIRouter
from fastapi.responses import Response
from service.usecases.nodes.capacity import free_kinds

from headway.contract.views.decisions import KindView
from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from service.api.http.access import needs
from service.api.http.context import Context
from service.api.http.render import as_json

router = APIRouter(prefix="/api/v1/capacity", tags=["nodes"])


@router.get("", operation_id="list_capacity", response_model=Page[KindView], **needs(Role.VIEWER))
async def list_capacity(context: Context) -> Response:
    """List the device kinds that have free slots, the cheapest first."""
    async with context.transactions.begin() as tx:
        kinds = await free_kinds(tx, context.usd_per_slot_h)
    return as_json(Page(items=kinds))
