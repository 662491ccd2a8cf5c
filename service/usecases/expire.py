"""Notice nodes that have gone silent, and let their jobs go on without them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from headway.contract.agents import NodeState
from service.domain.silence import SilenceRule
from service.usecases.ends import node_ended
from service.usecases.live import end_overdue
from service.usecases.orders import Launch
from service.usecases.ports import Transaction, Transactions
from service.usecases.records import Bell, NodeRecord

API_FRESH_S = 6.0
"""An API that has not said for this long that it is up counts as down."""
HEARD_WITHIN_S = 30.0
"""What agents had to say while no API was up has arrived this long after one is."""
LATE_SHARE = 1 / 3
"""Of the silence after which a node is LOST: an API that answers a report later than that is late."""


async def expire_nodes(
    transactions: Transactions, *, silence: SilenceRule, launch: Launch, now: datetime
) -> list[str]:
    """Declare nodes LOST that were silent for too long while an API could hear them. Returns names.

    While no API is up or one is late with its reports, or just after that, silence says nothing about the nodes: neither a
    restart of the service nor too much load must stop training.

    Each node has a transaction of its own. Whoever holds its row is about to say that it is there, so it is passed over; and
    it is judged by what its row says then, not by what it said when the pass began.
    """
    async with transactions.begin() as tx:
        horizon = now - timedelta(seconds=silence.silence_of(await tx.leases.count()))
        await tx.silence.not_before_its_time(now, API_FRESH_S)
        since = await tx.silence.heard_since(now, API_FRESH_S)
        silent = [] if since is None or since > horizon else await tx.silence.silent_since(horizon)
    lost = []
    for node_id in silent:
        async with transactions.begin() as tx:
            node = await tx.silence.lock_silent(node_id, horizon)
            if node is not None:
                await lose_node(tx, node, launch, now)
                lost.append(node.name)
    return lost


async def expire_switches(tx: Transaction, *, now: datetime) -> list[str]:
    """End changes in place that take too long; names of their jobs. As with nodes, silence of the members says nothing while
    nobody could hear them, nor does the time if the clock was set.
    """
    since = await tx.silence.heard_since(now, API_FRESH_S)
    if since is None or since > now - timedelta(seconds=HEARD_WITHIN_S):
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
