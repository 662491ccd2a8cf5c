"""Commands of operators about nodes: cordon, uncordon, drain."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.agents import NodeState
from service.domain.shared.errors import IllegalTransition
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction


async def set_schedulable(tx: Transaction, node_id: str, wanted: NodeState) -> NodeRecord:
    """Make a node READY (uncordon), CORDONED or DRAINING.

    The next round moves jobs as needed.

    Raises:
        NotFound: no such node.
        IllegalTransition: the node is LOST.
    """
    node = await tx.nodes.lock(node_id)
    if node.state is NodeState.LOST:
        raise IllegalTransition(f"node {node.name} is LOST: {node.message}. Start its agent again first.")
    if node.state is NodeState.DRAINED and wanted is NodeState.DRAINING:
        return node
    message = {
        NodeState.CORDONED: "takes no new jobs",
        NodeState.DRAINING: "its jobs move to other nodes; those with resize: never stay to their end",
    }.get(wanted, "")
    # Uncordoning a node overrides an earlier interruption notice.
    reclaim_at = None if wanted is NodeState.READY else node.reclaim_at
    node = replace(node, state=wanted, wanted_state=wanted, message=message, reclaim_at=reclaim_at)
    await tx.nodes.save(node)
    tx.wake(WakeUp.ROUND)
    return node


async def finish_drain(tx: Transaction, node_id: str) -> bool:
    """Make a DRAINING node DRAINED if it holds nothing. Return True if it did so."""
    node = await tx.nodes.lock(node_id)
    if node.state is not NodeState.DRAINING or await tx.grants.on_node(node.id):
        return False
    await tx.nodes.save(replace(node, state=NodeState.DRAINED, message="empty; safe to switch off"))
    return True
