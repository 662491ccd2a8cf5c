"""Notice nodes that have gone silent, and let their jobs go on without them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from headway.contract.agents import NodeState
from service.usecases.ends import node_ended
from service.usecases.live import end_overdue
from service.usecases.orders import Launch
from service.usecases.ports import Transaction
from service.usecases.records import Bell, NodeRecord

API_FRESH_S = 6.0
"""An API that has not said for this long that it is up counts as down."""
HEARD_WITHIN_S = 30.0
"""What agents had to say while no API was up has arrived this long after one is."""


async def expire_nodes(tx: Transaction, *, silence_s: float, launch: Launch, now: datetime) -> list[str]:
    """Declare nodes LOST that were silent for `silence_s` while an API could hear them. Returns names.

    While no API is up, or just after one came back, silence says nothing about the nodes: a restart
    of the service must not stop training.
    """
    await tx.silence.not_before_its_time(now, API_FRESH_S)
    up_since = await tx.silence.api_up_since(now, API_FRESH_S)
    horizon = now - timedelta(seconds=silence_s)
    if up_since is None or up_since > horizon:
        return []
    lost = await tx.silence.silent_since(horizon)
    for node in lost:
        await lose_node(tx, node, launch, now)
    return [node.name for node in lost]


async def expire_switches(tx: Transaction, *, now: datetime) -> list[str]:
    """End changes in place that take too long; names of their jobs. As with nodes, silence of the members says nothing while
    nobody could hear them, nor does the time if the clock was set.
    """
    up_since = await tx.silence.api_up_since(now, API_FRESH_S)
    if up_since is None or up_since > now - timedelta(seconds=HEARD_WITHIN_S):
        return []
    return await end_overdue(tx, now)


async def lose_node(
    tx: Transaction, node: NodeRecord, launch: Launch, now: datetime, message: str | None = None
) -> None:
    """The node is gone: its ranks ended unseen, its slots are released, its jobs recover.

    Nobody else gets the slots until the node is back and has stopped what it still ran: a node is
    LOST, and so not scheduled on, until then.
    """
    silent_s = (now - node.seen_at).total_seconds()
    message = message or f"node {node.name} has not reported for {silent_s:.0f} s"
    await tx.nodes.save(replace(node, state=NodeState.LOST, message=message))
    tx.ring(Bell.ROUND)
    holders = await tx.grants.on_node(node.id)
    jobs = await tx.jobs.lock_many(sorted({job_id for job_id, _ in holders}))
    for job in jobs.values():
        await node_ended(tx, job, node, message, launch, now)
