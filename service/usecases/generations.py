"""Start a generation, ask it to stop, and go on once it is gone: the heart of every change.

Invariant: ranks of generation g + 1 are started only after every process of generation g is gone,
and a slot passes from one to the other without ever being free in between.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from headway.contract.agents import RunCommand, StopCommand
from headway.contract.jobs import JobState, Reason
from headway.contract.runtime import EXIT_STOPPED
from service.domain.failures import Ending, Verdict, decide_retry, judge, left_unasked
from service.domain.jobs import Allocation, Job, size_of
from service.domain.lifecycle import JobEvent, allows
from service.domain.ranks import NodeRanks, choose_port, layout
from service.usecases.ports import Transaction
from service.usecases.records import AllocationRecord, Bell, NodeRecord
from service.usecases.transition import record, transition


@dataclass(frozen=True, slots=True)
class Launch:
    """What a rank needs to know of this deployment."""

    checkpoint_root: str
    """URI under which every job has a folder for its checkpoints."""


async def start_generation(
    tx: Transaction,
    job: Job,
    allocation: Allocation,
    launch: Launch,
    *,
    reason: Reason,
    message: str,
    now: datetime,
    round_id: str | None = None,
) -> Job:
    """Start generation + 1 on slots that it has been granted."""
    nodes = await tx.nodes.many(tuple(allocation))
    previous = await tx.allocations.get(job.id, job.generation)
    ranks = layout(allocation, previous_first=previous.first_node if previous else None)
    first = nodes[ranks[0].node_id]
    generation = job.generation + 1
    port = choose_port(
        first.first_port,
        first.last_port,
        await tx.allocations.ports_in_use(first.id),
        seed=zlib.crc32(job.id.encode()) + generation,
    )
    kind = next(slot.device_kind for slot in first.slots if slot.index == ranks[0].ranks[0].slot)
    started = replace(
        job,
        generation=generation,
        attempt=job.attempt + 1,
        allocation=allocation,
        target=None,
        retry_at=None,
    )
    record_ = AllocationRecord(
        job_id=job.id,
        generation=generation,
        slots=allocation,
        device_kind=kind,
        first_node=first.id,
        master_port=port,
        reason=reason,
        message=message,
        round_id=round_id,
        granted_at=now,
    )
    started = await transition(
        tx,
        started,
        JobEvent.ALLOCATE,
        reason=reason,
        message=message,
        now=now,
        data={"slots": size_of(allocation), "nodes": {nodes[n].name: list(s) for n, s in allocation.items()}},
    )
    await tx.allocations.add(record_)
    for part in ranks:
        command = _run_command(started, part, ranks, first, port, launch)
        await tx.commands.add(part.node_id, command, now)
    tx.ring(Bell.COMMANDS)
    return started


def _run_command(
    job: Job, part: NodeRanks, ranks: tuple[NodeRanks, ...], first: NodeRecord, port: int, launch: Launch
) -> RunCommand:
    spec = job.spec
    return RunCommand(
        command_id=f"{job.id}.{job.generation}.run.{part.node_id}",
        job_id=job.id,
        job_name=job.name,
        generation=job.generation,
        attempt=job.attempt,
        restart_count=job.attempt - 1,
        run=spec.run,
        bundle=spec.bundle,
        env=spec.env,
        ranks=list(part.ranks),
        world_size=sum(len(one.ranks) for one in ranks),
        node_rank=part.node_rank,
        node_count=len(ranks),
        master_addr=first.address,
        master_port=port,
        hosts_store=part.node_rank == 0,
        global_batch=spec.batch.global_,
        checkpoint_uri=f"{launch.checkpoint_root}/{job.id}",
        checkpoint_every_s=None if spec.checkpoint.every == "auto" else spec.checkpoint.every,
        checkpoint_keep=spec.checkpoint.keep,
        grace_s=spec.checkpoint.grace_s,
    )


async def stop_generation(
    tx: Transaction, job: Job, mode: Literal["checkpoint", "kill"], now: datetime
) -> None:
    """Ask every node that holds the running generation to stop it."""
    held = await tx.grants.held(job.id)
    for node_id in held.get(job.generation, {}):
        command = StopCommand(
            command_id=f"{job.id}.{job.generation}.stop-{mode}.{node_id}",
            job_id=job.id,
            generation=job.generation,
            mode=mode,
            grace_s=job.spec.checkpoint.grace_s,
        )
        await tx.commands.add(node_id, command, now)
    tx.ring(Bell.COMMANDS)


async def vacate(
    tx: Transaction, job: Job, target: Allocation | None, *, reason: Reason, message: str, now: datetime
) -> Job:
    """Ask the running generation to checkpoint and stop; go on at `target`, or wait, or pause."""
    asked = replace(job, target=target)
    data: Mapping[str, int] = {"from": size_of(job.allocation), "to": size_of(target or {})}
    asked = await transition(tx, asked, JobEvent.VACATE, reason=reason, message=message, now=now, data=data)
    await stop_generation(tx, asked, "checkpoint", now)
    return asked


async def fail_rank(tx: Transaction, job: Job, *, reason: Reason, message: str, now: datetime) -> Job:
    """Something of the running generation failed: stop the rest of it."""
    if not allows(job.state, JobEvent.FAIL_RANK):
        return job
    failed = await transition(
        tx, replace(job, target=None), JobEvent.FAIL_RANK, reason=reason, message=message, now=now
    )
    await stop_generation(tx, failed, "kill", now)
    return failed


async def release_node(
    tx: Transaction, job: Job, generation: int, node_id: str, launch: Launch, now: datetime
) -> Job:
    """The node has no process of `generation` any more: free its slots, and go on when all are gone."""
    carry_over = {}
    if job.target is not None and node_id in job.target and generation == job.generation:
        carry_over = {node_id: job.target[node_id]}
    freed = await tx.grants.release(job.id, generation, node_id, carry_over, now)
    tx.ring(Bell.ROUND)
    # An agent says so again for every stop that reaches it late, and after its node was LOST: the job has
    # gone on since, and must not go on twice.
    if not freed or generation < job.generation:
        return job
    still_held = await tx.grants.held(job.id)
    if any(held_for <= job.generation for held_for in still_held):
        return job
    return await go_on(tx, job, launch, now)


async def go_on(tx: Transaction, job: Job, launch: Launch, now: datetime) -> Job:
    """Every process of the running generation is gone: decide what comes next."""
    await tx.allocations.end(job.id, job.generation, now)
    exits = await tx.history.exits(job.id, job.generation)
    verdict = judge(exits)
    moving = job.state is JobState.RESIZING and not job.pause_requested
    if moving and job.target is not None and verdict.ending is not Ending.DONE:
        return await start_generation(
            tx, job, job.target, launch, reason=job.reason, message=job.message, now=now
        )
    await tx.grants.release(job.id, job.generation + 1, None, {}, now)
    job = replace(job, target=None, allocation={})
    if job.state is JobState.CANCELLING:
        return await transition(
            tx, job, JobEvent.VANISH, reason=Reason.USER_REQUEST, message="cancelled", now=now
        )
    if verdict.ending is Ending.DONE and allows(job.state, JobEvent.SUCCEED):
        return await transition(
            tx, job, JobEvent.SUCCEED, reason=verdict.reason, message=verdict.message, now=now
        )
    if job.state is JobState.RESIZING:
        return await _wait_again(tx, job, now)
    if verdict.ending is Ending.STOPPED and left_unasked(exits):
        # Not counted, it would be started again at once for as long as it does so.
        message = f"it exited with code {EXIT_STOPPED}, but nobody had asked it to stop"
        verdict = Verdict(Ending.INFRASTRUCTURE, Reason.RETRY_REQUESTED, message)
    return await _recover(tx, job, verdict, now)


async def _wait_again(tx: Transaction, job: Job, now: datetime) -> Job:
    if job.pause_requested:
        return await pause_now(tx, job, now)
    again = replace(job, preemptions=job.preemptions + 1)
    return await transition(tx, again, JobEvent.REQUEUE, reason=job.reason, message=job.message, now=now)


async def pause_now(tx: Transaction, job: Job, now: datetime) -> Job:
    """A job that holds nothing becomes PAUSED."""
    paused = replace(job, pause_requested=False, allocation={})
    where = f" at {job.progress.samples:,} samples" if job.progress.samples else ""
    return await transition(
        tx, paused, JobEvent.PAUSE, reason=Reason.USER_REQUEST, message=f"paused{where}", now=now
    )


async def _recover(tx: Transaction, job: Job, verdict: Verdict, now: datetime) -> Job:
    """Start a failed generation again, or give up, by the retry budget of the kind of failure."""
    if job.state is not JobState.RECOVERING:
        job = await transition(
            tx, job, JobEvent.FAIL_RANK, reason=verdict.reason, message=verdict.message, now=now
        )
    node_lost = job.reason is Reason.NODE_LOST
    reason, message = (job.reason, job.message) if node_lost else (verdict.reason, verdict.message)
    job = replace(
        job,
        infrastructure_failures=job.infrastructure_failures + (verdict.ending is Ending.INFRASTRUCTURE),
        user_errors=job.user_errors + (verdict.ending is Ending.USER_ERROR),
        preemptions=job.preemptions + (verdict.ending is Ending.STOPPED),
    )
    if verdict.ending in {Ending.INFRASTRUCTURE, Ending.USER_ERROR, Ending.HOPELESS}:
        retry = decide_retry(
            verdict.ending,
            job.spec.retry,
            infrastructure_failures=job.infrastructure_failures,
            user_errors=job.user_errors,
            now=now,
        )
        if not retry.again:
            return await transition(tx, job, JobEvent.GIVE_UP, reason=reason, message=message, now=now)
        job = replace(job, retry_at=retry.not_before)
        message = f"{message.splitlines()[0].rstrip(';:')}; retry {retry.spent} of {retry.budget}"
    if job.pause_requested:
        return await pause_now(tx, job, now)
    job = replace(job, reason=reason, message=f"{message}; {_resume_point(job)}")
    await tx.jobs.save(job)
    await record(tx, job, "recover", reason=reason, message=job.message, now=now)
    tx.ring(Bell.ROUND)
    return job


async def ranks_on_node(tx: Transaction, job: Job, node_id: str) -> tuple[int, ...]:
    """Ranks of the running generation on a node."""
    allocation = await tx.allocations.get(job.id, job.generation)
    parts = layout(allocation.slots, previous_first=allocation.first_node) if allocation else ()
    return tuple(one.rank for part in parts if part.node_id == node_id for one in part.ranks)


def _resume_point(job: Job) -> str:
    samples = job.progress.checkpoint_samples
    return (
        f"goes on from the checkpoint at {samples:,} samples"
        if samples
        else "begins again: no checkpoint yet"
    )
