"""What an operator asks of a node: cordon, uncordon, drain."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.agents import NodeState
from service.domain.errors import IllegalTransition
from service.usecases.ports import Transaction
from service.usecases.records import Bell, NodeRecord


async def set_schedulable(tx: Transaction, node_id: str, wanted: NodeState) -> NodeRecord:
    """Make a node READY (uncordon), CORDONED or DRAINING. The next round moves jobs as needed.

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
    # Whoever has a node take jobs again knows better than an old notice.
    reclaim_at = None if wanted is NodeState.READY else node.reclaim_at
    node = replace(node, state=wanted, wanted_state=wanted, message=message, reclaim_at=reclaim_at)
    await tx.nodes.save(node)
    tx.ring(Bell.ROUND)
    return node


async def finish_drain(tx: Transaction, node_id: str) -> bool:
    """A DRAINING node that holds nothing is DRAINED. Whether it is so now."""
    node = await tx.nodes.lock(node_id)
    if node.state is not NodeState.DRAINING or await tx.grants.on_node(node.id):
        return False
    await tx.nodes.save(replace(node, state=NodeState.DRAINED, message="empty; safe to switch off"))
    return True
