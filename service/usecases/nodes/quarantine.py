"""Quarantine of slots with bad devices: keep jobs away, probe the devices, and release the slots.

The next round moves jobs off a quarantined slot as off a draining node, in place where possible.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from headway.contract.agents import SlotInfo
from headway.contract.health import DeviceFault, DeviceProbed, FaultCause
from headway.contract.runtime import Progress
from headway.contract.values.devices import is_cpu
from headway.contract.views.jobs import Reason
from service.domain.cluster.snapshot import SlotKey
from service.domain.jobs.job import Job
from service.domain.jobs.records import AllocationRecord
from service.domain.nodes.health import (
    REMEMBERED,
    Fault,
    FaultResponse,
    FaultVerdict,
    Quarantine,
    RankPace,
    after_probe,
    decide,
    is_due,
    is_held_against,
    is_replaced,
    released,
    slow_ranks,
)
from service.domain.shared.errors import NotFound
from service.usecases.jobs.events import record
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction


async def ingest_device_reports(
    tx: Transaction,
    node: NodeRecord,
    reports: Sequence[DeviceFault | DeviceProbed],
    reported_jobs: Collection[str],
    now: datetime,
) -> None:
    """Process an agent's reports about the devices of its locked node.

    The same report locks `reported_jobs` later. All jobs are locked here at once, so that two reports never
    deadlock.
    """
    jobs = await _lock_jobs(tx, node.id, reported_jobs)
    slots = {slot.index: slot for slot in node.slots}
    for entry in reports:
        slot = slots.get(entry.slot)
        if slot is None:
            continue  # a slot that the node no longer has
        if isinstance(entry, DeviceFault):
            fault = Fault(
                cause=entry.cause,
                device_kind=slot.device_kind,
                code=entry.code,
                lasting=entry.lasting,
                message=entry.message,
            )
            await _apply_fault(tx, node, slot, fault, jobs, now)
        else:
            await _apply_probe(tx, SlotKey(node.id, entry.slot), entry, now)


async def slots_to_probe(
    tx: Transaction, node: NodeRecord, slots: Sequence[SlotInfo], now: datetime
) -> list[int]:
    """Return the slots of the locked node to probe now: those whose probe is due and that no job holds.

    Slots whose device was replaced are released at once. `slots` are the node's slots as its agent reports
    them now, or empty if it does not.
    """
    confined = await tx.nodes.open_quarantines([node.id])
    devices = {slot.index: slot.uuid or "" for slot in slots}
    for one in confined:
        if is_replaced(one, devices.get(one.slot, "")):
            await _release(tx, one, now, "its device was replaced")
    due = [one.slot for one in confined if is_due(one, now)]
    if not due:
        return []
    held = {
        slot for job_id, _ in await tx.grants.on_node(node.id) for slot in await _slots_held(tx, job_id, node)
    }
    return [slot for slot in due if slot not in held]


async def quarantine_slot(tx: Transaction, node_id: str, slot: int, why: str, now: datetime) -> NodeRecord:
    """Keep a slot from jobs until an operator releases it. Raise NotFound if there is no such slot."""
    node, info = await _lock_slot(tx, node_id, slot)
    jobs = await _lock_jobs(tx, node.id, ())
    fault = Fault(cause=FaultCause.OPERATOR, device_kind=info.device_kind, message=why)
    await _apply_fault(tx, node, info, fault, jobs, now)
    return node


async def release_slot(tx: Transaction, node_id: str, slot: int, now: datetime) -> NodeRecord:
    """Release a slot from quarantine.

    A slot that is not in quarantine stays as it is.

    Raises:
        NotFound: no such node, or it has no such slot.
    """
    node, _ = await _lock_slot(tx, node_id, slot)
    for one in await tx.nodes.open_quarantines([node.id]):
        if one.slot == slot:
            await _release(tx, one, now, "an operator has released it")
    return node


async def note_slow_ranks(
    tx: Transaction, job: Job, allocation: AllocationRecord, message: Progress, now: datetime
) -> Job:
    """Return the job with its slow ranks updated, saved.

    Devices of ranks that stay slow become suspicious.
    """
    before = job.progress.slow_ranks
    if not before and not message.rank_sample_s:
        return job
    members = {one.rank: one for one in allocation.members}
    paces = [
        RankPace(SlotKey(members[rank].node_id, members[rank].slot), sample_s, members[rank].device_kind)
        for rank, sample_s in enumerate(message.rank_sample_s)
        if rank in members
    ]
    found = list(slow_ranks(before, paces, now))
    nodes = await tx.nodes.many(sorted({one.node_id for one in found if is_held_against(one, now)}))
    for at, slow in enumerate(found):
        if not is_held_against(slow, now):
            continue
        found[at] = slow.model_copy(update={"told": True})
        node = nodes[slow.node_id]
        info = next((one for one in node.slots if one.index == slow.slot), None)
        if info is not None:
            fault = Fault(
                cause=FaultCause.SLOW,
                device_kind=info.device_kind,
                message=f"it takes {slow.times:.1f} times as long per sample as its peers, for "
                f"{(now - slow.since).total_seconds():.0f} s",
            )
            await _apply_fault(tx, node, info, fault, {job.id: job}, now)
    if found == before:
        return job
    job = replace(job, progress=job.progress.model_copy(update={"slow_ranks": found}))
    await tx.jobs.save(job)
    return job


async def _lock_slot(tx: Transaction, node_id: str, slot: int) -> tuple[NodeRecord, SlotInfo]:
    node = await tx.nodes.lock(node_id)
    info = next((one for one in node.slots if one.index == slot), None)
    if info is None:
        slots = ", ".join(str(one.index) for one in node.slots)
        raise NotFound(f"node {node.name} has no slot {slot}; it has {slots}.")
    return node, info


async def _lock_jobs(tx: Transaction, node_id: str, reported_jobs: Collection[str]) -> dict[str, Job]:
    here = {job_id for job_id, _ in await tx.grants.on_node(node_id)}
    return await tx.jobs.lock_many(sorted(here | set(reported_jobs)))


async def _slots_held(tx: Transaction, job_id: str, node: NodeRecord) -> set[int]:
    """Return the slots of the node that the job holds, for any generation."""
    return {slot for held in (await tx.grants.held(job_id)).values() for slot in held.get(node.id, ())}


async def _apply_fault(
    tx: Transaction, node: NodeRecord, info: SlotInfo, fault: Fault, jobs: dict[str, Job], now: datetime
) -> None:
    """Apply the consequences of a fault, and record an event for the locked jobs that hold the slot."""
    slot, device = SlotKey(node.id, info.index), info.uuid or ""
    history = await tx.nodes.quarantines_of(slot, now - REMEMBERED)
    verdict = decide(fault, slot, device, history, now)
    if verdict.quarantine is not None and verdict.step is not FaultResponse.STAY:
        if fault.cause is FaultCause.SLOW and verdict.step is not FaultResponse.CONFINE:
            return  # the node is not locked here, and its agent may be reporting a worse fault at the same time
        if not await tx.nodes.save_quarantine(verdict.quarantine):
            return
    if verdict.step is FaultResponse.STAY:
        return
    if verdict.step in {FaultResponse.CONFINE, FaultResponse.WORSEN}:
        tx.wake(WakeUp.ROUND)
    for job in jobs.values():
        if info.index in await _slots_held(tx, job.id, node):
            await _record_fault(tx, job, node, info, verdict, now)


async def _record_fault(
    tx: Transaction, job: Job, node: NodeRecord, info: SlotInfo, verdict: FaultVerdict, now: datetime
) -> None:
    where = f"slot {info.index} of {node.name}"
    confined = verdict.quarantine
    what = "core" if is_cpu(info.device_kind) else "device"
    await record(
        tx,
        job,
        "device_fault" if confined is None else "quarantine",
        reason=None if confined is None else Reason.BAD_DEVICE,
        message=f"{where}: {verdict.reason}; the {what} stays in use"
        if confined is None
        else f"{where} is in quarantine: {verdict.reason}",
        now=now,
        data={
            "node": node.name,
            "slot": info.index,
            **({} if confined is None else {"grade": confined.grade, "cause": confined.cause}),
        },
    )


async def _apply_probe(tx: Transaction, slot: SlotKey, entry: DeviceProbed, now: datetime) -> None:
    for one in await tx.nodes.open_quarantines([slot.node_id]):
        if one.slot != slot.slot:
            continue
        after = after_probe(one, now, healthy=entry.healthy, message=entry.message)
        if after != one:
            await tx.nodes.save_quarantine(after)
            if not after.is_open:
                tx.wake(WakeUp.ROUND)


async def _release(tx: Transaction, one: Quarantine, now: datetime, why: str) -> None:
    await tx.nodes.save_quarantine(released(one, now, why))
    tx.wake(WakeUp.ROUND)
