"""Loading of the lives of jobs, and application of the effects that the domain decides on.

The row of the job must be locked in the same transaction. A use case loads a life, hands it to a function of
`service.domain.life`, and applies the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.values.topology import placed_labels
from headway.contract.views.jobs import TERMINAL_STATES
from service.domain.cluster.spot_rate import TOGETHER
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.records import AllocationRecord
from service.domain.life.chains import after_end
from service.domain.life.effects import (
    AddAllocation,
    CallRound,
    CountPreemption,
    Effect,
    EndAllocation,
    NoteUnreachable,
    RecordEvent,
    RefreshPages,
    ReleaseSlots,
    SendCommands,
    StoreExit,
    StoreMembers,
)
from service.domain.life.ends import Aftermath, go_on, has_just_gone
from service.domain.life.expected_losses import machine_losses_per_h
from service.domain.life.life import Footprint, HostFacts, Launch, Life
from service.domain.rental.spot.history import NO_HISTORY, SpotHistory
from service.usecases.jobs.events import store_event
from service.usecases.jobs.milestones import scored_forecasts
from service.usecases.jobs.unreachable import note_unreachable
from service.usecases.ports.facts import Preempted, WakeUp
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction


async def load_generations(tx: Transaction, job: Job) -> dict[int, AllocationRecord]:
    """Return the allocations of the running generation and of the one that a switch leads to, by number."""
    numbers = [job.generation, 0 if job.switch is None else job.switch.generation]
    records = [await tx.grants.allocation(job.id, number) for number in numbers if number > 0]
    return {record.generation: record for record in records if record is not None}


async def load_outline(tx: Transaction, job: Job, launch: Launch, now: datetime) -> Life:
    """Return the life of a locked job without its footprint, for steps that do not need it."""
    generations = await load_generations(tx, job)
    return Life(job=job, now=now, launch=launch, generations=generations, footprint=None)


async def with_footprint(tx: Transaction, life: Life, *, target: Allocation | None = None) -> Life:
    """Return the life with its footprint. With `target`, ranks may be started there."""
    if life.footprint is not None:
        return life
    job = life.job
    coming = job.target or target or {}
    members = [one for record in life.generations.values() for one in record.members]
    held = await tx.grants.held(job.id)
    places: Iterable[str] = {
        *job.allocation,
        *coming,
        *(one.node_id for one in members),
        *(node for nodes in held.values() for node in nodes),
    }
    footprint = Footprint(
        held=held,
        # Only orders and new ranks need stores.
        stores=await tx.grants.stores(job.id) if job.follows_orders else {},
        exits=await tx.jobs.exits(
            job.id, min((one.born_generation for one in members), default=job.generation)
        ),
        hosts=await _hosts(tx, sorted(places), life.now),
        ports_in_use=await tx.grants.ports_in_use(tuple(coming)) if coming else {},
    )
    return replace(life, footprint=footprint)


async def load_life(
    tx: Transaction, job: Job, launch: Launch, now: datetime, *, target: Allocation | None = None
) -> Life:
    """Return the life of a locked job. With `target`, ranks may be started there."""
    return await with_footprint(tx, await load_outline(tx, job, launch, now), target=target)


async def load_waiting(
    tx: Transaction, job: Job, launch: Launch, now: datetime, *, granted: Allocation
) -> Life:
    """Return the life of a locked job that holds only the slots just granted to its next generation."""
    footprint = Footprint(
        held={job.newest_generation + 1: granted},
        hosts=await _hosts(tx, tuple(granted), now),
        ports_in_use=await tx.grants.ports_in_use(tuple(granted)),
    )
    return replace(await load_outline(tx, job, launch, now), footprint=footprint)


async def _hosts(tx: Transaction, node_ids: Sequence[str], now: datetime) -> dict[str, HostFacts]:
    nodes = (await tx.nodes.many(node_ids)).values()
    on_spot = [slot.device_kind for node in nodes if node.market is Market.SPOT for slot in node.slots]
    history = await tx.machines.spot_history(set(on_spot), now) if on_spot else NO_HISTORY
    slow = await tx.links.slow() if len(node_ids) > 1 else {}
    return {node.id: host_of(node, history, slow.get(node.id, "")) for node in nodes}


def host_of(node: NodeRecord, history: SpotHistory = NO_HISTORY, slow_link: str = "") -> HostFacts:
    """Return the facts about a node that lives of jobs depend on.

    `history` has the risks of spot machines, if it is on spot. `slow_link` says what was measured of a slow link.
    """
    kinds = {slot.index: slot.device_kind for slot in node.slots}
    risk = history.by_machine.get(node.machine_id or "")
    return HostFacts(
        id=node.id,
        name=node.name,
        address=node.address,
        first_port=node.first_port,
        last_port=node.last_port,
        device_kinds=kinds,
        lost=node.state is NodeState.LOST,
        reclaimed=node.reclaim_at is not None,
        losses_per_h=machine_losses_per_h(
            kinds.values(), node.market, history.by_pool, None if risk is None else risk.per_h
        ),
        together=TOGETHER if risk is None else risk.together,
        labels=placed_labels(node.labels, node.id, slow_link),
    )


async def load_aftermath(tx: Transaction, life: Life) -> Aftermath:
    """Return the facts that matter once the last process of a job has ended."""
    return Aftermath(
        output_lost=await tx.jobs.output_lost(life.job.id),
        forecasts=await scored_forecasts(tx, life.job, life.now),
    )


async def go_on_if_gone(tx: Transaction, before: Life, after: Life) -> Life:
    """Return the life continued if the step from `before` to `after` freed the last slots of the job."""
    return go_on(after, await load_aftermath(tx, after)) if has_just_gone(before, after) else after


async def apply(tx: Transaction, before: Job, life: Life) -> Life:
    """Carry out the effects of a life whose job was stored as `before`. Return the life without them."""
    if life.job.spec is not before.spec:
        await tx.jobs.save_priority(life.job)
    elif life.job != before:
        await tx.jobs.save(life.job)
    for effect in life.effects:
        await _carry_out(tx, life, effect)
    if life.job.state in TERMINAL_STATES and before.state not in TERMINAL_STATES:
        await _tell_waiting(tx, life)
    return life.settled()


async def _tell_waiting(tx: Transaction, ended: Life) -> None:
    """Release or cancel the jobs that wait for the end of this one, and so on along the chain."""
    for job in (await tx.jobs.lock_many(await tx.chains.note_end(ended.job))).values():
        if job.state in TERMINAL_STATES:
            continue
        before = await load_life(tx, job, ended.launch, ended.now)
        after, ready = after_end(before, await tx.chains.of(job.id))
        await apply(tx, job, after)
        if ready:
            tx.wake(WakeUp.AFTER)


async def _carry_out(tx: Transaction, life: Life, effect: Effect) -> None:
    match effect:
        case RecordEvent(job, event):
            await store_event(tx, job, event)
        case AddAllocation(record):
            await tx.grants.add_allocation(record)
        case StoreMembers(generation, members):
            await tx.grants.save_members(life.job.id, generation, members)
        case EndAllocation(generation):
            await tx.grants.end_allocation(life.job.id, generation, life.now)
        case StoreExit(generation, exit_):
            await tx.jobs.add_exit(life.job.id, generation, exit_, life.now)
        case ReleaseSlots():
            await tx.grants.release(
                life.job.id,
                effect.generation,
                effect.node_id,
                effect.carry_over,
                life.now,
                slots=effect.slots,
                next_generation=effect.next_generation,
            )
        case SendCommands(commands):
            await tx.commands.add(commands, life.now)
            tx.wake(WakeUp.COMMANDS)
        case NoteUnreachable():
            await note_unreachable(tx, **asdict(effect), at=life.now)
        case CountPreemption(cause):
            tx.tell(Preempted(cause))
        case CallRound():
            tx.wake(WakeUp.ROUND)
        case RefreshPages():
            tx.wake(WakeUp.EVENTS, life.job.id)
