"""Changes in place: prepare newcomers, order the switch, complete it, give it up, and survive a loss.

Until the order is sent the running generation knows of nothing, so giving up costs nothing. From then on the
members of the ordered generation are who the job consists of.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from headway.contract.jobs import JobState, Reason
from headway.contract.runtime import Left, Ready, Switched
from service.domain.failures import counts_as_failure, decide_survival, growth_backoff_s
from service.domain.jobs import Allocation, Job, Switch, size_of
from service.domain.lifecycle import JobEvent
from service.domain.membership import (
    Born,
    Members,
    Store,
    choose_store,
    newcomer_ranks,
    next_members,
    nodes_of,
    slots_of,
    without,
)
from service.usecases.generations import fail_rank
from service.usecases.orders import Launch, choose_ports, crew_of, send_order, send_runs, stop_start
from service.usecases.ports import Transaction
from service.usecases.records import AllocationRecord, NodeRecord, Prediction
from service.usecases.transition import record, transition

READY_WITHIN_S = 300.0
"""Newcomers that are not ready by then are given up: they import, load data and build their model."""
SWITCHED_WITHIN_S = 3600.0
"""Members look for an order between two steps, so one that evaluates for long is late without being stuck."""


async def prepare(
    tx: Transaction,
    job: Job,
    target: Allocation,
    launch: Launch,
    *,
    reason: Reason,
    message: str,
    now: datetime,
    round_id: str | None,
    global_batch: int | None = None,
    predicted: Prediction | None = None,
) -> bool:
    """Begin a change in place to `target`, whose free slots the next number has been granted, and to `global_batch`.

    False, and nothing done, if no member of it would have a place to meet.
    """
    running = await tx.allocations.get(job.id, job.generation)
    assert running is not None, f"{job.id} runs without an allocation"
    generation = job.newest_generation + 1
    members = next_members(running.members, target, generation)
    parts = newcomer_ranks(members, generation)
    nodes = await tx.nodes.many(tuple(target))
    stores = await choose_ports(tx, job, {part.node_id: nodes[part.node_id] for part in parts}, generation)
    known = await tx.allocations.stores(job.id)
    store = choose_store(members, known | {(node, generation): port for node, port in stores.items()})
    if store is None:
        return False
    record_ = AllocationRecord(
        job_id=job.id,
        generation=generation,
        slots=target,
        device_kind=_device_kind(nodes[members[0].node_id], members[0].slot),
        first_node=store.node_id,
        master_port=store.port,
        reason=reason,
        message=message,
        round_id=round_id,
        granted_at=now,
        members=members,
        stores=stores,
        predicted=predicted,
    )
    await tx.allocations.add(record_)
    deadline = now + timedelta(seconds=READY_WITHIN_S)
    switch = Switch(generation=generation, began_at=now, deadline=deadline, global_batch=global_batch)
    data = {
        "from": size_of(job.allocation),
        "to": size_of(target),
        "nodes": {nodes[node].name: list(slots) for node, slots in target.items()},
        "newcomers": sum(len(part.ranks) for part in parts),
        "round_id": round_id,
    }
    job = replace(job, newest_generation=generation, switch=switch)
    job = await transition(tx, job, JobEvent.PREPARE, reason=reason, message=message, now=now, data=data)
    if parts:
        await send_runs(tx, job, record_, parts, launch, now, address=nodes[store.node_id].address)
    else:
        await _order(tx, job, switch, members, store, now)
    return True


def _device_kind(node: NodeRecord, index: int) -> str:
    return next(slot.device_kind for slot in node.slots if slot.index == index)


async def newcomer_ready(tx: Transaction, job: Job, message: Ready, now: datetime) -> Job:
    """A newcomer waits to join. When all of them do, the switch is ordered."""
    switch = job.switching
    if switch is None or switch.ordered:
        return job
    switch = replace(switch, ready_s={**switch.ready_s, message.rank: message.ready_s})
    job = replace(job, switch=switch)
    coming = (await crew_of(tx, job)).coming
    newcomers = {one.rank for one in coming if one.born_generation == switch.generation}
    if newcomers <= set(switch.ready_s):
        store = choose_store(coming, await tx.allocations.stores(job.id))
        assert store is not None, "a member's store goes with its last process, and all of them run"
        return await _order(tx, job, switch, coming, store, now)
    await tx.jobs.save(job)
    return job


async def _order(
    tx: Transaction, job: Job, switch: Switch, members: Members, store: Store, now: datetime
) -> Job:
    """Send the order, and note that from now on there is no way back."""
    grace_s = job.spec.checkpoint.grace_s if _is_whole_move(job, members) else 0.0
    deadline = now + timedelta(seconds=SWITCHED_WITHIN_S + grace_s)
    prepare_s = (now - switch.began_at).total_seconds()
    job = replace(job, switch=replace(switch, ordered=True, prepare_s=prepare_s, deadline=deadline))
    await tx.jobs.save(job)
    await send_order(tx, job, switch.generation, members, store, lost=switch.lost, now=now)
    if switch.ready_s:
        count = len(switch.ready_s)
        ready = "the new rank is ready" if count == 1 else f"the {count} new ranks are ready"
        await record(
            tx,
            job,
            "order",
            message=f"{ready}; the switch is ordered",
            now=now,
            data={"generation": switch.generation, "prepare_s": prepare_s},
        )
    return job


def _is_whole_move(job: Job, members: Members) -> bool:
    """Whether nobody stays, so that the state goes through a checkpoint."""
    return all(one.born_generation > job.generation for one in members)


async def member_left(tx: Transaction, job: Job, who: Born, message: Left) -> Job:
    """A rank leaves as ordered: whatever its process dies of afterwards is no loss."""
    switch = job.switching
    if switch is None or message.joined != switch.generation or who in switch.left:
        return job
    job = replace(job, switch=replace(switch, left=(*switch.left, who)))
    await tx.jobs.save(job)
    return job


async def complete_switch(tx: Transaction, job: Job, message: Switched, now: datetime) -> Job:
    """Rank 0 of the ordered generation trains: it is the job's generation from now on."""
    switch = job.switch
    if switch is None or not switch.ordered or message.generation != switch.generation:
        return job
    coming = await tx.allocations.get(job.id, switch.generation)
    assert coming is not None, "an ordered generation has an allocation"
    before = job
    how = "checkpoint" if not switch.lost and _is_whole_move(job, coming.members) else "live"
    await tx.allocations.end(job.id, job.generation, now)
    grew = bool(switch.ready_s)
    job = replace(
        job,
        generation=switch.generation,
        allocation=coming.slots,
        switch=None,
        growth_failures=0 if grew else job.growth_failures,
        grow_after=None if grew else job.grow_after,
        samples_at_loss=job.progress.samples if switch.lost else job.samples_at_loss,
    )
    text = _what_changed(before, switch, coming, message)
    data = {
        "from": size_of(before.allocation),
        "to": size_of(coming.slots),
        "how": how,
        "lost": switch.lost,
        "prepare_s": switch.prepare_s,
        "pause_s": message.pause_s,
        "ready_s": max(switch.ready_s.values(), default=0.0),
        "lost_steps": message.lost_steps,
        "sync_bytes": message.sync_bytes,
        "samples": message.samples,
    }
    if switch.stopping:
        await tx.jobs.save(job)
        await record(tx, job, str(JobEvent.SWITCH), message=text, now=now, data=data)
        return job
    return await transition(
        tx, job, JobEvent.SWITCH, reason=Reason.PROGRESSING, message=text, now=now, data=data
    )


def _what_changed(before: Job, switch: Switch, after: AllocationRecord, message: Switched) -> str:
    old, new = size_of(before.allocation), size_of(after.slots)
    count = f"{new} slot" if new == 1 else f"{new} slots"
    how = "through a checkpoint" if _is_whole_move(before, after.members) else "in place"
    paused = f"paused {message.pause_s:.2f} s"
    if switch.lost:
        steps = "1 step" if message.lost_steps == 1 else f"{message.lost_steps} steps"
        return f"goes on with {new} of {old} slots after a loss: {paused}, {steps} done again"
    if new > old:
        return f"grew from {old} to {count} {how}: {paused}"
    if new < old:
        return f"shrank from {old} to {count} {how}: {paused}"
    if switch.global_batch is not None:
        return f"changed the batch in place: {paused}"
    return f"moved {count} {how}: {paused}"


async def give_up(tx: Transaction, job: Job, *, reason: Reason, why: str, blame: bool, now: datetime) -> Job:
    """Drop a switch that was not ordered: its newcomers are stopped, and training goes on as it does.

    With `blame` the newcomers are at fault, and are not tried again for a while.
    """
    switch = job.switching
    assert switch is not None, "nothing to give up"
    assert not switch.ordered, "an ordered switch cannot be given up"
    await _drop_newcomers(tx, job, switch, now)
    data: dict[str, object] = {"reason": why, "generation": switch.generation}
    message = f"stays at {_slots(size_of(job.allocation))}: {why}"
    failures, after = job.growth_failures, job.grow_after
    if blame:
        failures += 1
        wait_s = growth_backoff_s(failures)
        after = now + timedelta(seconds=wait_s)
        data["grow_after"] = after.isoformat()
        message += f"; tried again in {wait_s:.0f} s at the earliest"
    job = replace(job, switch=None, growth_failures=failures, grow_after=after)
    return await transition(tx, job, JobEvent.ABANDON, reason=reason, message=message, now=now, data=data)


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


async def _drop_newcomers(tx: Transaction, job: Job, switch: Switch, now: datetime) -> None:
    held = await tx.grants.held(job.id)
    await stop_start(tx, job, switch.generation, held.get(switch.generation, {}), now)
    await tx.allocations.end(job.id, switch.generation, now)


async def dismiss_newcomers(tx: Transaction, job: Job, now: datetime) -> Job:
    """Training is over while newcomers wait for a switch that never comes: stop them."""
    switch = job.switching
    if switch is None:
        return job
    if not switch.ordered:
        return await give_up(tx, job, reason=Reason.COMPLETED, why="training is over", blame=False, now=now)
    held = await tx.grants.held(job.id)
    await stop_start(tx, job, switch.generation, held.get(switch.generation, {}), now)
    job = replace(job, switch=replace(switch, stopping=True))
    await tx.jobs.save(job)
    return job


async def survive_loss(tx: Transaction, job: Job, *, reason: Reason, message: str, now: datetime) -> Job:
    """Members have ended that should not: order the others to go on without them, or stop it all."""
    crew = await crew_of(tx, job)
    base = crew.lasting()
    oldest = min((one.born_generation for one in base), default=job.generation)
    members = without(base, set(await tx.history.exits(job.id, oldest)))
    counted = job.state is not JobState.RECOVERING and counts_as_failure(
        job.progress.samples, job.samples_at_loss
    )
    survival = decide_survival(
        live=job.live,
        survivors=len(members),
        counted=counted,
        failures=job.infrastructure_failures,
        retry=job.spec.retry,
    )
    store = choose_store(members, await tx.allocations.stores(job.id))
    if not survival.in_place or store is None:
        why_not = survival.why_not or "the others have no store to meet in"
        return await fail_rank(tx, job, reason=reason, message=f"{message}; {why_not}", now=now)
    if job.switching is not None and not job.switching.ordered:
        await _drop_newcomers(tx, job, job.switching, now)
    generation = job.newest_generation + 1
    await _add_survivors(tx, job, members, store, generation, reason=reason, message=message, now=now)
    switch = Switch(
        generation=generation,
        began_at=now,
        deadline=now,
        lost=True,
        global_batch=job.switch.global_batch if job.switch is not None else None,
        left=job.switch.left if job.switch is not None else (),
    )
    job = replace(
        job,
        newest_generation=generation,
        infrastructure_failures=job.infrastructure_failures + counted,
        switch=switch,
    )
    text = f"{message}; {len(members)} of {len(base)} ranks go on in place"
    data = {"from": len(base), "survivors": len(members), "generation": generation, "counted": counted}
    job = await transition(tx, job, JobEvent.LOSE, reason=reason, message=text, now=now, data=data)
    return await _order(tx, job, switch, members, store, now)


async def _add_survivors(
    tx: Transaction,
    job: Job,
    members: Members,
    store: Store,
    generation: int,
    *,
    reason: Reason,
    message: str,
    now: datetime,
) -> None:
    switch = job.switching
    ordered = switch.generation if switch is not None and switch.ordered else job.generation
    base = await tx.allocations.get(job.id, ordered)
    assert base is not None, f"{job.id} runs without an allocation"
    survivors = AllocationRecord(
        job_id=job.id,
        generation=generation,
        slots=slots_of(members),
        device_kind=base.device_kind,
        first_node=store.node_id,
        master_port=store.port,
        reason=reason,
        message=message,
        round_id=None,
        granted_at=now,
        members=members,
    )
    await tx.allocations.add(survivors)


async def end_overdue(tx: Transaction, now: datetime) -> list[str]:
    """Give up switches whose newcomers are too slow; start jobs anew whose members did not switch. Names."""
    ended = []
    for job in await tx.jobs.switching():
        switch = job.switching
        if switch is None or switch.deadline > now:
            continue
        ended.append(job.name)
        if switch.ordered:
            why = f"the members of generation {switch.generation} did not come together in time"
            await fail_rank(tx, job, reason=Reason.HUNG, message=why, now=now, dump_stacks=True)
            continue
        coming = (await crew_of(tx, job)).coming
        waiting = [one for one in coming if one.born_generation == switch.generation]
        late = [one for one in waiting if one.rank not in switch.ready_s]
        names = await tx.nodes.many(nodes_of(tuple(late)))
        where = ", ".join(sorted(node.name for node in names.values()))
        why = f"new ranks on {where} were not ready within {READY_WITHIN_S:.0f} s"
        await give_up(tx, job, reason=Reason.HUNG, why=why, blame=True, now=now)
    return ended
