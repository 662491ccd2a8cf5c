"""Interruption notices of providers: jobs leave the machine in time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from headway.contract.agents import InterruptionKind, InterruptionNotice, NodeState
from headway.contract.views.jobs import Reason
from service.domain.jobs.job import Job
from service.usecases.jobs.events import record
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction


async def apply_notices(
    tx: Transaction,
    node: NodeRecord,
    notices: Sequence[InterruptionNotice],
    reported_jobs: Collection[str],
    now: datetime,
) -> NodeRecord:
    """Apply interruption notices to the locked node, save it, and return it.

    The next round moves its jobs. A rebalance recommendation only keeps new jobs away. A repeated notice
    changes nothing. The same report locks `reported_jobs` later. All jobs are locked here at once, so that
    two reports never deadlock.
    """
    here = {job_id for job_id, _ in await tx.grants.on_node(node.id)}
    jobs = await tx.jobs.lock_many(sorted(here | set(reported_jobs)))
    for notice in notices:
        if notice.what is InterruptionKind.REBALANCE:
            node = _without_new_jobs(node)
        elif node.reclaim_at != (notice.reclaim_at or notice.at):
            node = _draining(node, notice)
            await _record_interruption(
                tx, [job for job in jobs.values() if job.id in here], node, notice, now
            )
    await tx.nodes.save(node)
    tx.wake(WakeUp.ROUND)
    return node


def _draining(node: NodeRecord, notice: InterruptionNotice) -> NodeRecord:
    deadline = notice.reclaim_at or notice.at
    stays = node.state in {NodeState.DRAINED, NodeState.LOST}
    return replace(
        node,
        state=node.state if stays else NodeState.DRAINING,
        wanted_state=NodeState.DRAINING,
        message=f"its provider takes it away at {deadline:%H:%M:%S} UTC",
        reclaim_at=deadline,
    )


def _without_new_jobs(node: NodeRecord) -> NodeRecord:
    if node.wanted_state is not NodeState.READY:
        return node
    return replace(
        node,
        state=NodeState.CORDONED if node.state is NodeState.READY else node.state,
        wanted_state=NodeState.CORDONED,
        message="its provider may take it away soon; takes no new jobs",
    )


async def _record_interruption(
    tx: Transaction, jobs: Iterable[Job], node: NodeRecord, notice: InterruptionNotice, now: datetime
) -> None:
    deadline = notice.reclaim_at or notice.at
    left_s = (deadline - now).total_seconds()
    when = f"in {left_s:.0f} s" if left_s > 0 else "now"
    for job in jobs:
        await record(
            tx,
            job,
            "interruption",
            reason=Reason.SPOT_RECLAIMED,
            message=f"the provider takes node {node.name} away {when}, at {deadline:%H:%M:%S} UTC",
            now=now,
            data={"node": node.name, "action": notice.action, "reclaim_at": deadline.isoformat()},
        )
