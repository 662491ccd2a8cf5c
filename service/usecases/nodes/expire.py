"""Expiry of silent nodes, and of changes in place that take too long."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from headway.contract.agents import NodeState
from service.domain.life.changes import end_overdue
from service.domain.life.life import Launch
from service.domain.life.losses import node_ended
from service.domain.nodes.silence import SilenceRule
from service.usecases.jobs.life import apply, go_on_if_gone, load_life
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction, Transactions

API_FRESH_S = 6.0
"""Maximum age of an API process's last beat, in seconds. Beyond it, the process counts as down."""
HEARD_WITHIN_S = 30.0
"""Time after the start of an API process within which all delayed reports of agents have arrived, in seconds.
"""
LATE_SHARE = 1 / 3
"""Threshold for a late report, as a share of the silence after which a node is LOST."""


async def expire_nodes(
    transactions: Transactions, *, silence: SilenceRule, launch: Launch, now: datetime
) -> list[str]:
    """Mark nodes as LOST that were silent for too long while an API process could receive reports. Return their names.

    Silence does not count while no API process is up or one is late with reports, or just after that. Neither
    a restart of the service nor overload may stop training.

    Each node has its own transaction. A node whose row is locked is about to be updated by a report, so it is
    skipped. A node is judged by its row as locked, not as first read.
    """
    async with transactions.begin() as tx:
        horizon = now - timedelta(seconds=silence.silence_of(await tx.nodes.count()))
        await tx.nodes.reset_future_contacts(now, API_FRESH_S)
        since = await tx.nodes.reachable_since(now, API_FRESH_S)
        silent = [] if since is None or since > horizon else await tx.nodes.silent_since(horizon)
    lost = []
    for node_id in silent:
        async with transactions.begin() as tx:
            node = await tx.nodes.lock_silent(node_id, horizon)
            if node is not None:
                await lose_node(tx, node, launch, now)
                lost.append(node.name)
    return lost


async def expire_switches(tx: Transaction, *, launch: Launch, now: datetime) -> list[str]:
    """End changes in place that take too long. Return the names of their jobs.

    Deadlines do not count while no API process could receive reports, or just after that.
    """
    since = await tx.nodes.reachable_since(now, API_FRESH_S)
    if since is None or since > now - timedelta(seconds=HEARD_WITHIN_S):
        return []
    return await end_overdue_switches(tx, launch, now)


async def end_overdue_switches(tx: Transaction, launch: Launch, now: datetime) -> list[str]:
    """End the changes in place whose deadline has passed, and return the names of their jobs."""
    ended = []
    for job in await tx.jobs.switching():
        switch = job.switching
        if switch is not None and switch.deadline <= now:
            ended.append(job.name)
            await apply(tx, job, end_overdue(await load_life(tx, job, launch, now)))
    return ended


async def lose_node(
    tx: Transaction, node: NodeRecord, launch: Launch, now: datetime, message: str | None = None
) -> None:
    """Mark a node as LOST, release its slots, and let its jobs recover.

    A LOST node is not scheduled on. Its slots stay unused until its agent is back and has stopped old ranks.
    """
    silent_s = (now - node.seen_at).total_seconds()
    message = message or f"node {node.name} has not reported for {silent_s:.0f} s"
    await tx.nodes.save(replace(node, state=NodeState.LOST, message=message))
    tx.wake(WakeUp.ROUND)
    holders = await tx.grants.on_node(node.id)
    jobs = await tx.jobs.lock_many(sorted({job_id for job_id, _ in holders}))
    for job in jobs.values():
        life = await load_life(tx, job, launch, now)
        await apply(tx, job, await go_on_if_gone(tx, life, node_ended(life, node.id, message)))
