"""`/api/v1/nodes`: nodes and their slots."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from headway.contract.agents import NodeState
from headway.contract.health import QuarantineRequest
from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from headway.contract.views.nodes import NodeView
from service.api.http.access import Caller, Reach, needs
from service.api.http.context import ApiContext, Context
from service.api.http.render import as_json, as_page
from service.usecases.nodes.commands import set_schedulable
from service.usecases.nodes.quarantine import quarantine_slot, release_slot
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction

Slot = Annotated[int, Path(ge=0, le=4095)]
router = APIRouter(prefix="/api/v1/nodes", tags=["nodes"])
_CONTROL: Any = {
    "status_code": 202,
    "response_model": NodeView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
}
"""Arguments of the routes that change a node or a slot."""


@router.get("", operation_id="list_nodes", response_model=Page[NodeView], **needs(Role.VIEWER))
async def list_nodes(request: Request, context: Context, caller: Caller) -> Response:
    """List all nodes with the holders of their slots.

    Jobs of projects that the caller does not see are not named.
    """
    async with context.transactions.begin() as tx:
        nodes = await tx.node_queries.list_nodes(context.now(), context.silence, seen=caller.projects())
    return as_page(request, Page(items=nodes))


@router.post("/{node}/drain", operation_id="drain_node", **_CONTROL)
async def drain_node(context: Context, node: str) -> Response:
    """Move the node's jobs away. The node becomes DRAINED when it is empty."""
    return await _set_state(context, node, NodeState.DRAINING)


@router.post("/{node}/cordon", operation_id="cordon_node", **_CONTROL)
async def cordon_node(context: Context, node: str) -> Response:
    """Let the node's jobs continue, and assign it no new ones."""
    return await _set_state(context, node, NodeState.CORDONED)


@router.post("/{node}/uncordon", operation_id="uncordon_node", **_CONTROL)
async def uncordon_node(context: Context, node: str) -> Response:
    """Let the scheduler assign jobs to the node again."""
    return await _set_state(context, node, NodeState.READY)


@router.post("/{node}/slots/{slot}/quarantine", operation_id="quarantine_slot", **_CONTROL)
async def quarantine(
    context: Context, node: str, slot: Slot, wanted: QuarantineRequest | None = None
) -> Response:
    """Put a slot in quarantine until it is released. The job on it moves away."""
    why = wanted.why if wanted is not None else ""
    async with context.transactions.begin() as tx:
        changed = await quarantine_slot(tx, node, slot, why, context.now())
        return await _view(tx, context, changed)


@router.post("/{node}/slots/{slot}/release", operation_id="release_slot", **_CONTROL)
async def release(context: Context, node: str, slot: Slot) -> Response:
    """Release a slot from quarantine, whatever its cause."""
    async with context.transactions.begin() as tx:
        changed = await release_slot(tx, node, slot, context.now())
        return await _view(tx, context, changed)


async def _set_state(context: ApiContext, node: str, wanted: NodeState) -> Response:
    async with context.transactions.begin() as tx:
        changed = await set_schedulable(tx, node, wanted)
        return await _view(tx, context, changed)


async def _view(tx: Transaction, context: ApiContext, changed: NodeRecord) -> Response:
    # Only operators of all projects control nodes.
    views = await tx.node_queries.list_nodes(context.now(), context.silence, seen=None)
    return as_json(next(view for view in views if view.id == changed.id), 202)
