"""A provider is going to take a machine away: its jobs leave it in time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from headway.contract.agents import InterruptionKind, InterruptionNotice, NodeState
from headway.contract.jobs import Reason
from service.usecases.ports import Transaction
from service.usecases.records import Bell, NodeRecord
from service.usecases.transition import record


async def take_notice(
    tx: Transaction, node: NodeRecord, notice: InterruptionNotice, now: datetime
) -> NodeRecord:
    """The locked node after the notice, not saved yet; a notice that says nothing new changes nothing.

    The next round moves its jobs. A node that will only probably be taken away keeps them, and gets no new ones.
    """
    if notice.what is InterruptionKind.REBALANCE:
        return _keep_free(tx, node)
    deadline = notice.reclaim_at or notice.at
    if node.reclaim_at == deadline:
        return node
    message = f"its {node.market} machine is taken away at {deadline:%H:%M:%S} UTC"
    await _tell_jobs(tx, node, notice, deadline, now)
    tx.ring(Bell.ROUND)
    empty = node.state is NodeState.DRAINED
    return replace(
        node,
        state=node.state if empty or node.state is NodeState.LOST else NodeState.DRAINING,
        wanted_state=NodeState.DRAINING,
        message=message,
        reclaim_at=deadline,
    )


def _keep_free(tx: Transaction, node: NodeRecord) -> NodeRecord:
    if node.wanted_state is not NodeState.READY:
        return node
    tx.ring(Bell.ROUND)
    return replace(
        node,
        state=NodeState.CORDONED if node.state is NodeState.READY else node.state,
        wanted_state=NodeState.CORDONED,
        message="its provider may take it away soon; takes no new jobs",
    )


async def _tell_jobs(
    tx: Transaction, node: NodeRecord, notice: InterruptionNotice, deadline: datetime, now: datetime
) -> None:
    jobs = await tx.jobs.lock_many(sorted({job_id for job_id, _ in await tx.grants.on_node(node.id)}))
    left_s = (deadline - now).total_seconds()
    when = f"in {left_s:.0f} s" if left_s > 0 else "now"
    for job in jobs.values():
        await record(
            tx,
            job,
            "interruption",
            reason=Reason.SPOT_RECLAIMED,
            message=f"node {node.name} is taken away {when}, at {deadline:%H:%M:%S} UTC",
            now=now,
            data={"node": node.name, "action": notice.action, "reclaim_at": deadline.isoformat()},
        )
