"""Marks of slots whose ranks stay slower than the others of their job."""

from __future__ import annotations

from datetime import datetime

from headway.contract.runtime import Progress
from service.domain.cluster.snapshot import SlotKey
from service.domain.jobs.job import Job
from service.domain.jobs.records import AllocationRecord
from service.domain.nodes.stragglers import LEAST_TIMES, StragglerMark
from service.usecases.jobs.events import record
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.transactions import Transaction


async def note_stragglers(
    tx: Transaction, job: Job, allocation: AllocationRecord, message: Progress, now: datetime
) -> None:
    """Mark the slots of ranks that stay slower, with an event for each new mark, and unmark those of the other ranks."""
    if not message.straggler_times:
        return
    slow, well = [], []
    for member in allocation.members:
        key = SlotKey(member.node_id, member.slot)
        times = message.straggler_times[member.rank] if member.rank < len(message.straggler_times) else 0.0
        if times >= LEAST_TIMES:
            mark = StragglerMark(
                node_id=key.node_id, slot=key.slot, job=job.spec.name, times=times, marked_at=now
            )
            slow.append(mark)
        else:
            well.append(key)
    await tx.nodes.unmark_stragglers(well)
    nodes = await tx.nodes.many(sorted({mark.node_id for mark in slow}))
    known = {(mark.key, mark.job) for mark in await tx.nodes.stragglers(now)}
    for mark in slow:
        await tx.nodes.mark_straggler(mark)
        if (mark.key, mark.job) in known:
            continue
        await record(
            tx,
            job,
            "straggler",
            message=f"{nodes[mark.node_id].name}, slot {mark.slot}: {mark.sentence}",
            now=now,
            data={"node": nodes[mark.node_id].name, "slot": mark.slot, "times": mark.times},
        )
    if slow:
        tx.wake(WakeUp.ROUND)
