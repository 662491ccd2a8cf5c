"""Start a generation, ask it to stop, and go on once it is gone: the heart of every change by a restart.

Invariant: ranks of a new generation are started anew only after every process of the job is gone, and a slot passes
from one generation to the next without ever being free in between. Changes in place are in `live.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.jobs import JobState, Reason
from headway.contract.runtime import EXIT_STOPPED
from service.domain.failures import Ending, Verdict, decide_retry, judge, left_unasked, was_hung
from service.domain.jobs import Allocation, Job, size_of
from service.domain.lifecycle import JobEvent, allows
from service.domain.membership import exits_to_judge, first_members
from service.domain.ranks import layout
from service.domain.retries import Failure, gist, has_got_on, poison, with_failure
from service.usecases.facts import Preempted
from service.usecases.marks import score_forecasts
from service.usecases.orders import Launch, choose_ports, crew_of, send_runs, stop_generation
from service.usecases.ports import Transaction
from service.usecases.records import AllocationRecord, Bell, NodeRecord, Prediction
from service.usecases.transition import record, transition


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
    predicted: Prediction | None = None,
) -> Job:
    """Start a new generation on slots that the next number has been granted."""
    nodes = await tx.nodes.many(tuple(allocation))
    previous = await tx.allocations.get(job.id, job.generation) if job.generation else None
    ranks = layout(allocation, previous_first=previous.first_node if previous else None)
    first = nodes[ranks[0].node_id]
    generation = job.newest_generation + 1
    hosts = nodes if job.follows_orders else {first.id: first}
    stores = await choose_ports(tx, job, hosts, generation)
    kind = next(slot.device_kind for slot in first.slots if slot.index == ranks[0].ranks[0].slot)
    started = replace(
        job,
        generation=generation,
        newest_generation=generation,
        attempt=job.attempt + 1,
        allocation=allocation,
        target=None,
        live=False,
        switch=None,
        samples_at_loss=None,
        retry_at=None,
    )
    record_ = AllocationRecord(
        job_id=job.id,
        generation=generation,
        slots=allocation,
        device_kind=kind,
        first_node=first.id,
        master_port=stores[first.id],
        reason=reason,
        message=message,
        round_id=round_id,
        granted_at=now,
        members=first_members(ranks, generation),
        stores=stores,
        predicted=predicted,
    )
    started = await transition(
        tx,
        started,
        JobEvent.ALLOCATE,
        reason=reason,
        message=message,
        now=now,
        data={"round_id": round_id, **_placed(job, allocation, nodes, now)},
    )
    await tx.allocations.add(record_)
    await send_runs(tx, started, record_, ranks, launch, now, address=first.address)
    return started


def _placed(
    job: Job, allocation: Allocation, nodes: Mapping[str, NodeRecord], now: datetime
) -> dict[str, object]:
    """What the event of a start says: what the job got, and how long it has waited for it."""
    waited_s = max(0.0, (now - job.state_since).total_seconds())
    return {
        "slots": size_of(allocation),
        "nodes": {nodes[node].name: list(slots) for node, slots in allocation.items()},
        **({"waited_s": waited_s} if job.state is JobState.PENDING else {}),
    }


async def vacate(
    tx: Transaction, job: Job, target: Allocation | None, *, reason: Reason, message: str, now: datetime
) -> Job:
    """Ask whatever runs of the job to checkpoint and stop; go on at `target`, or wait, or pause."""
    asked = replace(job, target=target)
    data: Mapping[str, int] = {"from": size_of(job.allocation), "to": size_of(target or {})}
    asked = await transition(tx, asked, JobEvent.VACATE, reason=reason, message=message, now=now, data=data)
    await stop_generation(tx, asked, "checkpoint", now)
    return asked


async def fail_rank(
    tx: Transaction,
    job: Job,
    *,
    reason: Reason,
    message: str,
    now: datetime,
    dump_stacks: bool = False,
) -> Job:
    """Something of the job failed, and nobody goes on without it: stop the rest. With `dump_stacks`, the logs will say where
    each of its threads was.
    """
    if not allows(job.state, JobEvent.FAIL_RANK) or (job.state is JobState.RECOVERING and not job.switching):
        return job
    switch = None if job.switch is None else replace(job.switch, stopping=True)
    failed = replace(job, target=None, switch=switch)
    failed = await transition(tx, failed, JobEvent.FAIL_RANK, reason=reason, message=message, now=now)
    await stop_generation(tx, failed, "kill", now, dump_stacks=dump_stacks)
    return failed


async def release_node(
    tx: Transaction,
    job: Job,
    generation: int,
    node_id: str,
    launch: Launch,
    now: datetime,
    *,
    slots: Collection[int] | None = None,
) -> Job:
    """The node has no process any more that was started for `generation` (with `slots`: on these): free the slots,
    and go on when nothing of the job is left.
    """
    carry_over = {}
    if job.target is not None and node_id in job.target and generation == job.generation:
        carry_over = {node_id: job.target[node_id]}
    next_generation = job.newest_generation + 1
    freed = await tx.grants.release(
        job.id, generation, node_id, carry_over, now, slots=slots, next_generation=next_generation
    )
    tx.ring(Bell.ROUND)
    # An agent says so again for every stop that reaches it late, and after its node was LOST: the job has
    # gone on since, and must not go on twice.
    return await go_on_if_gone(tx, job, launch, now) if freed else job


async def go_on_if_gone(tx: Transaction, job: Job, launch: Launch, now: datetime) -> Job:
    """Go on if every process of the job is gone. To be asked only when the last slots have just been freed."""
    still_held = await tx.grants.held(job.id)
    if any(held_for <= job.newest_generation for held_for in still_held):
        return job
    return await go_on(tx, job, launch, now)


async def go_on(tx: Transaction, job: Job, launch: Launch, now: datetime) -> Job:
    """Every process of the job is gone: decide what comes next."""
    crew = await crew_of(tx, job)
    for generation in {job.generation, crew.next_generation or job.generation}:
        await tx.allocations.end(job.id, generation, now)
    oldest = min((one.born_generation for one in crew.running), default=job.generation)
    exits = exits_to_judge(crew, await tx.history.exits(job.id, oldest))
    job = replace(job, switch=None)
    verdict = await _reclaimed(tx, job, judge(exits))
    if job.state is JobState.RECOVERING and job.reason is Reason.HUNG:
        verdict = was_hung(verdict, job.message)
    held = tuple(job.allocation)
    moving = job.state is JobState.RESIZING and not job.pause_requested
    if moving and job.target is not None and verdict.ending is not Ending.DONE:
        return await start_generation(
            tx, job, job.target, launch, reason=job.reason, message=job.message, now=now
        )
    await tx.grants.release(job.id, job.newest_generation + 1, None, {}, now)
    job = replace(job, target=None, allocation={})
    if job.state is JobState.CANCELLING:
        return await transition(
            tx, job, JobEvent.VANISH, reason=job.reason, message=_why_cancelled(job), now=now
        )
    if verdict.ending is Ending.DONE and allows(job.state, JobEvent.SUCCEED):
        job = await score_forecasts(tx, job, now)
        return await transition(
            tx, job, JobEvent.SUCCEED, reason=verdict.reason, message=verdict.message, now=now
        )
    if job.state is JobState.RESIZING:
        return await _wait_again(tx, job, now)
    if verdict.ending is Ending.STOPPED and left_unasked(exits):
        # Not counted, it would be started again at once for as long as it does so.
        message = f"it exited with code {EXIT_STOPPED}, but nobody had asked it to stop"
        verdict = Verdict(Ending.INFRASTRUCTURE, Reason.RETRY_REQUESTED, message)
    return await _recover(tx, job, verdict, held, now)


async def _reclaimed(tx: Transaction, job: Job, verdict: Verdict) -> Verdict:
    """The verdict, with the reason of the agent that stopped its ranks by itself before its machine was taken away."""
    if verdict.ending is not Ending.STOPPED:
        return verdict
    nodes = (await tx.nodes.many(tuple(job.allocation))).values()
    taken = [node for node in nodes if node.reclaim_at is not None]
    if not taken:
        return verdict
    return replace(verdict, reason=Reason.SPOT_RECLAIMED, message=f"node {taken[0].name} is taken away")


def _why_cancelled(job: Job) -> str:
    return "cancelled" if job.reason is Reason.USER_REQUEST else job.message


async def _wait_again(tx: Transaction, job: Job, now: datetime) -> Job:
    if job.pause_requested:
        reason = Reason.BUDGET if job.reason is Reason.BUDGET else Reason.USER_REQUEST
        return await pause_now(tx, job, now, reason=reason)
    again = replace(job, preemptions=job.preemptions + 1)
    tx.tell(Preempted(job.reason))
    return await transition(tx, again, JobEvent.REQUEUE, reason=job.reason, message=job.message, now=now)


async def pause_now(tx: Transaction, job: Job, now: datetime, *, reason: Reason = Reason.USER_REQUEST) -> Job:
    """A job that holds nothing becomes PAUSED."""
    paused = replace(job, pause_requested=False, allocation={})
    where = f" at {job.progress.samples:,} samples" if job.progress.samples else ""
    spent = ": its money is spent; `headway resume` lets it go on" if reason is Reason.BUDGET else ""
    return await transition(
        tx, paused, JobEvent.PAUSE, reason=reason, message=f"paused{where}{spent}", now=now
    )


async def _recover(tx: Transaction, job: Job, verdict: Verdict, held: tuple[str, ...], now: datetime) -> Job:
    """Start a failed generation again, or give up, by the retry budget of the kind of failure. `held`: its nodes."""
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
    if verdict.ending is Ending.STOPPED:
        tx.tell(Preempted(reason))
    if verdict.ending in {Ending.INFRASTRUCTURE, Ending.USER_ERROR, Ending.HOPELESS}:
        failure = await _failure(tx, job, reason, message, held)
        if has_got_on(job.failures, failure):
            anew = int(verdict.ending is Ending.INFRASTRUCTURE)
            job = replace(job, failures=(), infrastructure_failures=anew)
        job = replace(job, failures=with_failure(job.failures, failure))
        retry = decide_retry(
            verdict.ending,
            job.spec.retry,
            infrastructure_failures=job.infrastructure_failures,
            user_errors=job.user_errors,
            now=now,
        )
        why_not = poison(job.failures)
        if why_not is not None:
            message = f"{_first_line(message)}; {why_not}" + message[len(message.splitlines()[0]) :]
        if not retry.again or why_not is not None:
            return await transition(tx, job, JobEvent.GIVE_UP, reason=reason, message=message, now=now)
        job = replace(job, retry_at=retry.not_before)
        message = f"{_first_line(message)}; retry {retry.spent} of {retry.budget}"
    if job.pause_requested:
        return await pause_now(tx, job, now)
    job = replace(job, reason=reason, message=f"{message}; {_resume_point(job)}")
    await tx.jobs.save(job)
    await record(tx, job, "recover", reason=reason, message=job.message, now=now)
    tx.ring(Bell.ROUND)
    return job


async def _failure(tx: Transaction, job: Job, reason: Reason, message: str, held: tuple[str, ...]) -> Failure:
    """What is remembered of a failure of a job that held something on these nodes."""
    ran = await tx.allocations.get(job.id, job.generation)
    lost: list[str] = []
    if reason is Reason.NODE_LOST:
        nodes = (await tx.nodes.many(held)).values()
        lost = sorted(node.name for node in nodes if node.state is NodeState.LOST)
    return Failure(
        reason=reason,
        said=gist(message),
        ran_s=(job.state_since - ran.granted_at).total_seconds() if ran is not None else 0.0,
        samples=job.progress.samples,
        checkpoint_samples=job.progress.checkpoint_samples,
        nodes=tuple(lost),
    )


def _first_line(message: str) -> str:
    return message.splitlines()[0].rstrip(";:")


def _resume_point(job: Job) -> str:
    samples = job.progress.checkpoint_samples
    return (
        f"goes on from the checkpoint at {samples:,} samples"
        if samples
        else "begins again: no checkpoint yet"
    )
