"""What the end of processes means for their job, as it happens: nothing, a loss that the others survive, or a stop."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from headway.contract.jobs import JobState, Reason
from service.domain.failures import (
    Ending,
    RankExit,
    ending_of,
    how_it_ended,
    is_loss,
    judge,
    reason_of_loss,
)
from service.domain.jobs import Job
from service.domain.lifecycle import JobEvent, allows
from service.domain.membership import Born, Crew, has_finished
from service.usecases.generations import fail_rank, go_on_if_gone
from service.usecases.live import dismiss_newcomers, give_up, survive_loss
from service.usecases.orders import Launch, crew_of
from service.usecases.ports import Transaction
from service.usecases.records import NodeRecord


async def rank_ended(tx: Transaction, job: Job, crew: Crew, who: Born, exit_: RankExit, now: datetime) -> Job:
    """A process has ended, and its exit is noted. One that nobody asked for, and that was not the end of training,
    is a loss to survive, or stops the rest of the job.
    """
    member = crew.member(who)
    assert member is not None, f"{who} is none of {job.id}"
    exit_ = replace(exit_, rank=member.rank)
    verdict = judge([exit_])
    switch = job.switching
    if switch is not None and not switch.ordered and crew.is_newcomer(who):
        why = f"a new rank failed: {verdict.message}"
        return await give_up(tx, job, reason=verdict.reason, why=why, blame=True, now=now)
    if _went_as_ordered(job, crew, who):
        return job
    if verdict.ending is Ending.DONE:
        return await _one_is_done(tx, job, crew, now)
    if is_loss(exit_) and _survives(job):
        message = f"rank {exit_.rank} {how_it_ended(exit_)}"
        return await survive_loss(tx, job, reason=reason_of_loss(exit_), message=message, now=now)
    if not _is_failure(job, verdict.ending) or not allows(job.state, JobEvent.FAIL_RANK):
        return job
    return await fail_rank(tx, job, reason=verdict.reason, message=verdict.message, now=now)


def _survives(job: Job) -> bool:
    """Whether the job goes on in place after a loss, if somebody is left: not when it is being stopped."""
    return job.live and (job.state is JobState.RUNNING or job.switching is not None)


def _went_as_ordered(job: Job, crew: Crew, who: Born) -> bool:
    """Whether the process had left, or was counted as lost already: its end says nothing new."""
    switch = job.switching
    return switch is not None and crew.is_leaver(who) and (switch.lost or who in switch.left)


def _is_failure(job: Job, ending: Ending) -> bool:
    asked_to_stop = job.state not in {JobState.STARTING, JobState.RUNNING} and job.switching is None
    if ending is Ending.STOPPED:
        return not asked_to_stop
    # A stop reaches one node before another: a plain script's ranks there lose their peers first.
    peers_were_stopped = ending is Ending.USER_ERROR and job.state is JobState.RESIZING and asked_to_stop
    return not peers_were_stopped


async def _one_is_done(tx: Transaction, job: Job, crew: Crew, now: datetime) -> Job:
    if job.switching is None:
        return job
    oldest = min((one.born_generation for one in crew.running), default=job.generation)
    if not has_finished(crew, await tx.history.exits(job.id, oldest)):
        return job
    return await dismiss_newcomers(tx, job, now)


async def node_ended(
    tx: Transaction, job: Job, node: NodeRecord, message: str, launch: Launch, now: datetime
) -> Job:
    """A node is lost: its processes ended unseen, and its slots are free of them as far as the job is concerned."""
    crew = await crew_of(tx, job)
    oldest = min((one.born_generation for one in crew.running), default=job.generation)
    exits = await tx.history.exits(job.id, oldest)
    here = crew.on_node(node.id)
    gone = [who for who in here if who not in exits or ending_of(exits[who]) is not Ending.DONE]
    for generation, rank in gone:
        unseen = RankExit(rank=rank, exit_code=None, signal=None, stopped_by_agent=False, completed=False)
        await tx.history.exit(job.id, generation, unseen, now)
    freed = False
    for generation, nodes in (await tx.grants.held(job.id)).items():
        if node.id in nodes and generation <= job.newest_generation:
            freed |= await tx.grants.release(job.id, generation, node.id, {}, now)
    job = await _go_on_without(tx, job, crew, gone, node.id, message, now)
    return await go_on_if_gone(tx, job, launch, now) if freed else job


async def _go_on_without(
    tx: Transaction, job: Job, crew: Crew, gone: list[Born], node_id: str, message: str, now: datetime
) -> Job:
    targeted = job.target is not None and node_id in job.target
    lost = [who for who in gone if not _went_as_ordered(job, crew, who)]
    if not lost and not targeted:
        return job
    switch = job.switching
    if switch is not None and not switch.ordered and all(crew.is_newcomer(who) for who in lost):
        return await give_up(tx, job, reason=Reason.NODE_LOST, why=message, blame=False, now=now)
    if _survives(job):
        return await survive_loss(tx, job, reason=Reason.NODE_LOST, message=message, now=now)
    return await fail_rank(tx, job, reason=Reason.NODE_LOST, message=message, now=now)
