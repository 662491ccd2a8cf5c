"""Orders for the members that remain: after a loss, and after a meeting with new ranks that failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headway.contract.runtime import CannotMeet
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.copies import keeps_every_part
from service.domain.jobs.job import Switch
from service.domain.jobs.kinds import kind_of_members
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.membership import Born, born, choose_store, ranks_left, slots_of, without
from service.domain.jobs.parallelism import fits_survivors, mesh_text_at
from service.domain.jobs.records import AllocationRecord
from service.domain.jobs.survival import counts_as_failure, decide_survival
from service.domain.life.changes import blame_newcomers, is_whole_move, order_switch
from service.domain.life.commands import stop_start
from service.domain.life.life import Life
from service.domain.life.starts import fail_rank
from service.domain.life.unreached import note_unreached


def survive_loss(life: Life, *, reason: Reason, message: str, apart: Collection[Born] = ()) -> Life:
    """Order the remaining members to go on without those that have ended or are `apart`, or stop the job."""
    job, base, running = life.job, life.crew.lasting(), life.crew.running
    members = without(base, {*life.loaded_footprint.exits, *apart})
    counted = (
        not apart
        and job.state is not JobState.RECOVERING
        and counts_as_failure(job.progress.samples, job.samples_at_loss)
    )
    survival = decide_survival(
        live=job.survives_losses,
        survivors=len(members),
        complete=keeps_every_part(job, job.progress.mesh, ranks_left(running, members), len(running)),
        fits=fits_survivors(job, len(members)),
        counted=counted,
        failures=job.infrastructure_failures,
        retry=job.spec.retry,
    )
    store = choose_store(members, life.loaded_footprint.stores)
    if not survival.in_place or store is None:
        why_not = survival.why_not or "the remaining ranks have no store for the rendezvous"
        return fail_rank(life, reason=reason, message=f"{message}; {why_not}")
    ordered_before = job.switching is not None and job.switching.ordered
    if job.switching is not None:
        replaced = job.switching.generation
        life = (life if ordered_before else stop_start(life, replaced)).without_allocation(replaced)
    lasting = job.switching.generation if job.switching is not None and ordered_before else job.generation
    generation = job.newest_generation + 1
    record = AllocationRecord(
        job_id=job.id,
        generation=generation,
        slots=slots_of(members),
        device_kind=kind_of_members(members, life.generations[lasting].device_kind),
        first_node=store.node_id,
        master_port=store.port,
        reason=reason,
        message=message,
        round_id=None,
        granted_at=life.now,
        members=members,
    )
    switch = _switch_of_survivors(life, generation, len(members), never_met=bool(apart))
    life = life.with_allocation(record).with_job(
        replace(
            job,
            newest_generation=generation,
            infrastructure_failures=job.infrastructure_failures + counted,
            switch=switch,
        )
    )
    text = f"{message}; {len(members)} of {len(base)} ranks go on in place"
    data = {"from": len(base), "survivors": len(members), "generation": generation, "counted": counted}
    life = life.advanced(JobEvent.LOSE, reason=reason, message=text, data=data)
    return order_switch(life, switch, members, store)


def _switch_of_survivors(life: Life, generation: int, size: int, *, never_met: bool) -> Switch:
    job = life.job
    # Before the order, or if members did not meet, the batch belongs to slots that the job does not get.
    follows = job.switch is not None and job.switch.ordered and not never_met
    ordered = job.switch if follows else None
    return Switch(
        generation=generation,
        began_at=life.now,
        deadline=life.now,
        lost=True,
        global_batch=ordered.global_batch if ordered is not None else None,
        batch_effect=ordered.batch_effect if ordered is not None else None,
        mesh=mesh_text_at(job, size),
        left=job.switch.left if job.switch is not None else (),
    )


def newcomers_beside(life: Life, who: Born) -> list[Born]:
    """Return the processes that were started with `who`, if the ranks that trained before them still have the state.

    They joined with the change in progress, or with the last one. The list is empty for other processes.
    """
    members = life.crew.lasting()
    beside = [born(one) for one in members if one.born_generation == who[0]]
    newest = max((one.born_generation for one in members), default=None)
    alone = len(beside) == len(members) or is_whole_move(life.job, members)
    return [] if alone or who[0] != newest else beside


def survive_newcomers(life: Life, who: Born, *, reason: Reason, why: str) -> Life:
    """Let the members go on without the new ranks of a growth, one of which has failed, however late; try again after a backoff."""
    apart = newcomers_beside(life, who)
    assert apart, f"{who} has not joined others"
    life, when = blame_newcomers(stop_start(life, who[0]))
    return survive_loss(life, reason=reason, message=f"{why}; {when}", apart=apart)


def meeting_failed(life: Life, node_id: str, message: CannotMeet) -> Life:
    """Let the members go on without the new ranks of a change that did not all connect to them, says a rank on the node.

    Nothing happens if the change was not ordered, is over, or has no members from before.
    """
    switch = life.job.switching
    if switch is None or not switch.ordered or switch.lost or message.meeting != switch.generation:
        return life
    apart = [born(one) for one in life.crew.coming if one.born_generation == switch.generation]
    if not apart or is_whole_move(life.job, life.crew.coming):
        return life
    life, when = blame_newcomers(stop_start(life, switch.generation))
    life, why = note_unreached(life, node_id, message.why)
    text = f"the new ranks could not join: {why}; {when}"
    return survive_loss(life, reason=Reason.UNREACHABLE, message=text, apart=apart)
