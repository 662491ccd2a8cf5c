"""`/api/v1/nodes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from headway.contract.agents import NodeState
from headway.contract.health import QuarantineRequest
from headway.contract.identity import Role
from headway.contract.jobs import Page
from headway.contract.nodes import NodeView
from service.api.access import Caller, Reach, needs
from service.api.context import ApiContext, Context
from service.api.render import as_json, as_page
from service.usecases.nodes import set_schedulable
from service.usecases.ports import Transaction
from service.usecases.quarantine import quarantine_slot, release_slot
from service.usecases.records import NodeRecord

Slot = Annotated[int, Path(ge=0, le=4095)]
router = APIRouter(prefix="/api/v1/nodes", tags=["nodes"])


@router.get("", operation_id="list_nodes", response_model=Page[NodeView], **needs(Role.VIEWER))
async def list_nodes(request: Request, context: Context, caller: Caller) -> Response:
    """Every node and who holds its slots; of jobs of others' projects only that they do."""
    async with context.transactions.begin() as tx:
        nodes = await tx.node_queries.list_nodes(context.now(), context.silence, seen=caller.projects())
    return as_page(request, Page(items=nodes))


@router.post(
    "/{node}/drain",
    operation_id="drain_node",
    status_code=202,
    response_model=NodeView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def drain_node(context: Context, node: str) -> Response:
    """Move the node's jobs away; it is DRAINED when it is empty."""
    return await _set(context, node, NodeState.DRAINING)


@router.post(
    "/{node}/cordon",
    operation_id="cordon_node",
    status_code=202,
    response_model=NodeView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def cordon_node(context: Context, node: str) -> Response:
    """Let the node's jobs go on, and give it no new ones."""
    return await _set(context, node, NodeState.CORDONED)


@router.post(
    "/{node}/uncordon",
    operation_id="uncordon_node",
    status_code=202,
    response_model=NodeView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def uncordon_node(context: Context, node: str) -> Response:
    """Give the node jobs again."""
    return await _set(context, node, NodeState.READY)


@router.post(
    "/{node}/slots/{slot}/quarantine",
    operation_id="quarantine_slot",
    status_code=202,
    response_model=NodeView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def quarantine(
    context: Context, node: str, slot: Slot, wanted: QuarantineRequest | None = None
) -> Response:
    """Keep a slot from jobs until it is released; the job that is on it moves away."""
    why = wanted.why if wanted is not None else ""
    async with context.transactions.begin() as tx:
        changed = await quarantine_slot(tx, node, slot, why, context.now())
        return await _view(tx, context, changed)


@router.post(
    "/{node}/slots/{slot}/release",
    operation_id="release_slot",
    status_code=202,
    response_model=NodeView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def release(context: Context, node: str, slot: Slot) -> Response:
    """Give a slot to jobs again, whatever kept it from them."""
    async with context.transactions.begin() as tx:
        changed = await release_slot(tx, node, slot, context.now())
        return await _view(tx, context, changed)


async def _set(context: ApiContext, node: str, wanted: NodeState) -> Response:
    async with context.transactions.begin() as tx:
        changed = await set_schedulable(tx, node, wanted)
        return await _view(tx, context, changed)


async def _view(tx: Transaction, context: ApiContext, changed: NodeRecord) -> Response:
    # Whoever steers nodes does so everywhere.
    views = await tx.node_queries.list_nodes(context.now(), context.silence, seen=None)
    return as_json(next(view for view in views if view.id == changed.id), 202)
