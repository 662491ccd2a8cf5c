"""Changes in place: prepare newcomers, order the switch, complete it, and abandon it.

The running generation does not know of a switch until its order is sent, so abandoning it costs nothing. From
then on, the job consists of the members of the ordered generation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from headway.contract.runtime import Left, Ready, Switched
from headway.contract.values.meshes import MeshShape, mesh_of
from headway.contract.views.jobs import Reason
from service.domain.cluster.pools import slots_of as slots_text
from service.domain.jobs.job import Allocation, Job, Switch, size_of
from service.domain.jobs.kinds import kind_of_members, with_kinds
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.membership import (
    Born,
    Members,
    Store,
    born,
    choose_store,
    newcomer_ranks,
    next_members,
    nodes_of,
    slots_of,
)
from service.domain.jobs.parallelism import mesh_at, mesh_text_at
from service.domain.jobs.records import AllocationRecord, Prediction
from service.domain.jobs.shard_order import ranks_to_keep
from service.domain.jobs.survival import LONGEST_GROWTH_BACKOFF_S, growth_backoff_s
from service.domain.life.commands import choose_ports, next_effect, send_order, send_runs, stop_start
from service.domain.life.life import Life
from service.domain.life.starts import fail_rank

READY_WITHIN_S = 300.0
"""Deadline for newcomers to import, load data and build the model.

A switch whose newcomers are late is abandoned.
"""
SWITCHED_WITHIN_S = 3600.0
"""Deadline for members to carry out an order.

They look for one between two steps, so a rank in a long evaluation is late without being stuck.
"""


_LEAVES_DEVICES = frozenset({Reason.BAD_DEVICE, Reason.NODE_DRAINED, Reason.SPOT_RECLAIMED})
"""Reasons of changes that leave certain slots, rather than a number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInPlace:
    """A change that a round decided on for a job that trains: to other slots, another batch, or both."""

    target: Allocation
    reason: Reason
    message: str
    round_id: str | None
    global_batch: int | None = None
    """The global batch from then on; None leaves it as it is."""
    batch_effect: float | None = None
    """The exponent by which ranks count their progress from then on; None leaves it as it is."""
    predicted: Prediction | None = None


def has_begun_to_end(life: Life) -> bool:
    """Return True if the running generation has lost some of its slots.

    For a job whose members change in place, the end of one of them counts too.
    """
    held: dict[str, set[int]] = {}
    for nodes in life.loaded_footprint.held.values():
        for node, slots in nodes.items():
            held.setdefault(node, set()).update(slots)
    if any(not set(slots) <= held.get(node, set()) for node, slots in life.job.allocation.items()):
        return True
    return life.job.live and any(born(one) in life.loaded_footprint.exits for one in life.crew.running)


def prepare(life: Life, change: ChangeInPlace) -> Life | None:
    """Begin a change in place, whose free slots the next generation must hold.

    Return None if no member of the target has a store for the rendezvous, so that only a restart leads there.
    """
    running = life.running
    assert running is not None, f"{life.job.id} runs without an allocation"
    generation = life.job.newest_generation + 1
    change, meshes = _with_shards(life, running.members, change)
    members = next_members(running.members, change.target, generation, meshes=meshes)
    members = with_kinds(members, life.kind_of, life.job.progress.kind_speeds)
    parts = newcomer_ranks(members, generation)
    stores = choose_ports(life, [part.node_id for part in parts], generation)
    known = {**life.loaded_footprint.stores, **{(node, generation): port for node, port in stores.items()}}
    store = choose_store(members, known)
    if store is None:
        return None
    hosts = life.loaded_footprint.hosts
    record = AllocationRecord(
        job_id=life.job.id,
        generation=generation,
        slots=change.target,
        device_kind=kind_of_members(members, life.kind_of(members[0])),
        first_node=store.node_id,
        master_port=store.port,
        reason=change.reason,
        message=change.message,
        round_id=change.round_id,
        granted_at=life.now,
        members=members,
        stores=stores,
        predicted=change.predicted,
    )
    switch = Switch(
        generation=generation,
        began_at=life.now,
        deadline=life.now + timedelta(seconds=READY_WITHIN_S),
        global_batch=change.global_batch,
        batch_effect=change.batch_effect,
        mesh=mesh_text_at(life.job, len(members)),
    )
    data = {
        "from": size_of(life.job.allocation),
        "to": size_of(change.target),
        "nodes": {hosts[node].name: list(slots) for node, slots in change.target.items()},
        "newcomers": sum(len(part.ranks) for part in parts),
        "round_id": change.round_id,
    }
    life = life.with_job(replace(life.job, newest_generation=generation, switch=switch))
    life = life.with_allocation(record)
    life = life.advanced(JobEvent.PREPARE, reason=change.reason, message=change.message, data=data)
    if parts:
        return send_runs(life, record, parts, store.node_id)
    return order_switch(life, switch, members, store)


def _with_shards(
    life: Life, members: Members, change: ChangeInPlace
) -> tuple[ChangeInPlace, tuple[MeshShape, MeshShape] | None]:
    """Return the change of a sharded job to the slots, of those of its nodes, on which it moves least, and its meshes.

    The slots are those of the decision if some of them must be left for their own sake, or devices of a node differ.
    """
    job, hosts = life.job, life.loaded_footprint.hosts
    if not job.sharded:
        return change, None
    size = size_of(change.target)
    before = mesh_of(job.progress.mesh) if job.progress.mesh else MeshShape(fsdp=len(members))
    after = mesh_at(job, size) or MeshShape(fsdp=size)
    present = {(one.node_id, one.slot) for one in members}
    stays = {(node, slot) for node, slots in change.target.items() for slot in slots}
    alike = all(len(set(hosts[one.node_id].device_kinds.values())) == 1 for one in members)
    if change.reason not in _LEAVES_DEVICES and stays < present and alike:
        room = {node: len(slots) for node, slots in change.target.items()}
        keep = ranks_to_keep({one.rank: one.node_id for one in members}, room, before, after)
        change = replace(change, target=slots_of(tuple(one for one in members if one.rank in keep)))
    return change, (before, after)


def newcomer_ready(life: Life, message: Ready) -> Life:
    """Store that a newcomer is ready to join. When all of them are, order the switch."""
    switch = life.job.switching
    if switch is None or switch.ordered:
        return life
    switch = replace(switch, ready_s={**switch.ready_s, message.rank: message.ready_s})
    life = life.with_job(replace(life.job, switch=switch))
    coming = life.crew.coming
    newcomers = {one.rank for one in coming if one.born_generation == switch.generation}
    if not newcomers <= set(switch.ready_s):
        return life
    store = choose_store(coming, life.loaded_footprint.stores)
    assert store is not None, "a member's store goes with its last process, and all of them run"
    return order_switch(life, switch, coming, store)


def order_switch(life: Life, switch: Switch, members: Members, store: Store) -> Life:
    """Order the members to switch. From then on the switch cannot be abandoned."""
    grace_s = life.job.spec.checkpoint.grace_s if is_whole_move(life.job, members) else 0.0
    deadline = life.now + timedelta(seconds=SWITCHED_WITHIN_S + grace_s)
    prepare_s = (life.now - switch.began_at).total_seconds()
    ordered = replace(switch, ordered=True, prepare_s=prepare_s, deadline=deadline)
    life = life.with_job(replace(life.job, switch=ordered))
    life = send_order(life, switch.generation, members, store, lost=switch.lost)
    count = len(switch.ready_s)
    if not count:
        return life
    ready = "the new rank is ready" if count == 1 else f"the {count} new ranks are ready"
    data = {"generation": switch.generation, "prepare_s": prepare_s}
    return life.noted("order", message=f"{ready}; the switch is ordered", data=data)


def is_whole_move(job: Job, members: Members) -> bool:
    """Return True if no process survives, so that the state goes through a checkpoint."""
    return all(one.born_generation > job.generation for one in members)


def member_left(life: Life, who: Born, message: Left) -> Life:
    """Store that a rank leaves as ordered. The later exit of its process does not count as a loss, whatever
    its cause.
    """
    switch = life.job.switching
    if switch is None or message.joined != switch.generation or who in switch.left:
        return life
    return life.with_job(replace(life.job, switch=replace(switch, left=(*switch.left, who))))


def complete_switch(life: Life, message: Switched) -> Life:
    """Make the ordered generation the job's current one, now that its rank 0 trains."""
    before, switch = life.job, life.job.switch
    if switch is None or not switch.ordered or message.generation != switch.generation:
        return life
    coming = life.generations[switch.generation]
    how = "checkpoint" if not switch.lost and is_whole_move(before, coming.members) else "live"
    progress = before.progress.model_copy(update={"batch_effect": next_effect(before), "mesh": switch.mesh})
    life = life.without_allocation(before.generation).with_job(
        replace(
            before,
            generation=switch.generation,
            allocation=coming.slots,
            progress=progress,
            switch=None,
            samples_at_loss=before.progress.samples if switch.lost else before.samples_at_loss,
        )
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
        return life.noted(str(JobEvent.SWITCH), message=text, data=data)
    return life.advanced(JobEvent.SWITCH, reason=Reason.PROGRESSING, message=text, data=data)


def _what_changed(before: Job, switch: Switch, after: AllocationRecord, message: Switched) -> str:
    old, new = size_of(before.allocation), size_of(after.slots)
    how = "through a checkpoint" if is_whole_move(before, after.members) else "in place"
    paused = f"paused {message.pause_s:.2f} s"
    if switch.lost:
        steps = "1 step" if message.lost_steps == 1 else f"{message.lost_steps} steps"
        if new == old:
            return f"goes on at {slots_text(new, None)}: {paused}, {steps} repeated"
        return f"continues with {new} of {old} slots after a loss: {paused}, {steps} repeated"
    if after.reason is Reason.BETTER_BATCH:
        return f"changed the batch in place: {paused}"
    if switch.global_batch not in {None, before.progress.global_batch}:
        paused = f"batch {switch.global_batch:,}, {paused}"
    if new > old:
        return f"grew from {old} to {slots_text(new, None)} {how}: {paused}"
    if new < old:
        return f"shrank from {old} to {slots_text(new, None)} {how}: {paused}"
    return f"moved {slots_text(new, None)} {how}: {paused}"


def give_up(life: Life, *, reason: Reason, why: str, blame: bool) -> Life:
    """Abandon a switch that was not ordered: stop its newcomers, and let training go on unchanged.

    With `blame`, the newcomers are at fault, and growth is not tried again before a backoff.
    """
    job, switch = life.job, life.job.switching
    assert switch is not None, "nothing to give up"
    assert not switch.ordered, "an ordered switch cannot be given up"
    data: dict[str, object] = {"reason": why, "generation": switch.generation}
    message = f"stays at {slots_text(size_of(job.allocation), None)}: {why}"
    life = stop_start(life, switch.generation).without_allocation(switch.generation)
    if blame:
        life, when = blame_newcomers(life)
        assert life.job.grow_after is not None
        data["grow_after"] = life.job.grow_after.isoformat()
        message += f"; {when}"
    life = life.with_job(replace(life.job, switch=None))
    return life.advanced(JobEvent.ABANDON, reason=reason, message=message, data=data)


def blame_newcomers(life: Life) -> tuple[Life, str]:
    """Return the life in which growth waits for a backoff, and the text of that.

    A growth that was completed does not end the row of failures, because its new ranks may fail at their first step.
    """
    last = life.job.grow_after
    in_a_row = last is not None and life.now <= last + timedelta(seconds=LONGEST_GROWTH_BACKOFF_S)
    failures = life.job.growth_failures + 1 if in_a_row else 1
    wait_s = growth_backoff_s(failures)
    after = life.now + timedelta(seconds=wait_s)
    life = life.with_job(replace(life.job, growth_failures=failures, grow_after=after))
    return life, f"the next attempt follows in {wait_s:.0f} s at the earliest"


def dismiss_newcomers(life: Life) -> Life:
    """Stop newcomers that wait for a switch although training has ended."""
    switch = life.job.switching
    if switch is None:
        return life
    if not switch.ordered:
        return give_up(life, reason=Reason.COMPLETED, why="training has ended", blame=False)
    life = stop_start(life, switch.generation)
    return life.with_job(replace(life.job, switch=replace(switch, stopping=True)))


def halt_switch(life: Life, why: str, *, reason: Reason) -> Life:
    """Cancel a change in place that is only prepared.

    Mark one that is ordered, so that the job stops after it.
    """
    switch = life.job.switching
    if switch is None:
        return life
    if switch.ordered:
        return life.with_job(replace(life.job, switch=replace(switch, stopping=True)))
    return give_up(life, reason=reason, why=why, blame=False)


def end_overdue(life: Life) -> Life:
    """Abandon a switch whose newcomers are late, or restart a job whose members did not switch in time.

    Return the life unchanged if no switch is overdue.
    """
    switch = life.job.switching
    if switch is None or switch.deadline > life.now:
        return life
    if switch.ordered:
        why = f"the members of generation {switch.generation} did not complete the switch in time"
        return fail_rank(life, reason=Reason.HUNG, message=why, dump_stacks=True)
    waiting = [one for one in life.crew.coming if one.born_generation == switch.generation]
    late = tuple(one for one in waiting if one.rank not in switch.ready_s)
    where = ", ".join(sorted(life.loaded_footprint.hosts[node].name for node in nodes_of(late)))
    why = f"new ranks on {where} were not ready within {READY_WITHIN_S:.0f} s"
    return give_up(life, reason=Reason.HUNG, why=why, blame=True)
