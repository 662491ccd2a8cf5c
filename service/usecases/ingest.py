"""Take in an agent's report: its lease, its acknowledgements, and the news of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from headway.contract.agents import (
    Holding,
    NodeState,
    RankExited,
    RankMessage,
    RanksStarted,
    Released,
    ReportEntry,
    ReportReply,
    ReportRequest,
    StartFailed,
)
from headway.contract.jobs import JobState, Reason
from headway.contract.runtime import EXIT_NEVER_RETRY, EXIT_RETRY, from_fields
from service.domain.errors import WrongToken
from service.domain.failures import Ending, RankExit, ending_of, judge
from service.domain.jobs import Job
from service.domain.lifecycle import JobEvent, allows
from service.usecases.generations import Launch, fail_rank, ranks_on_node, release_node
from service.usecases.ports import Transaction
from service.usecases.progress import take_in_message
from service.usecases.records import Bell, NodeRecord
from service.usecases.transition import record, transition


async def ingest(
    tx: Transaction,
    node_id: str,
    report: ReportRequest,
    *,
    launch: Launch,
    lease_s: float,
    now: datetime,
) -> ReportReply:
    """What the agent must stop, after its news were taken in. A repeated batch is counted once.

    Raises:
        NotFound: the node is unknown; the agent must join.
        WrongToken: another agent has joined under this node's name since.
    """
    node = await tx.nodes.lock(node_id)
    if node.instance != report.instance:
        raise WrongToken(f"node {node.name} now belongs to another agent; stop this one or rename it.")
    await tx.commands.acknowledge(node.id, report.acknowledged, now)
    fresh = [entry for entry in report.entries if entry.sequence > node.last_sequence]
    await _take_in(tx, node, fresh, launch, now)
    stop = await _not_its_own(tx, node.id, report.holding)
    back = node.state is NodeState.LOST and not stop
    if back:
        tx.ring(Bell.ROUND)
    await tx.nodes.save(
        replace(
            node,
            state=node.wanted_state if back else node.state,
            message="is back" if back else node.message,
            slots=tuple(report.slots) or node.slots,
            seen_at=now,
            last_sequence=max([node.last_sequence, *(entry.sequence for entry in fresh)]),
        )
    )
    return ReportReply(lease_s=lease_s, stop=stop)


async def _not_its_own(tx: Transaction, node_id: str, holding: Sequence[Holding]) -> list[Holding]:
    """What the node runs without holding slots for it: generations that are over."""
    if not holding:
        return []
    granted = await tx.grants.on_node(node_id)
    return [one for one in holding if (one.job_id, one.generation) not in granted]


async def _take_in(
    tx: Transaction, node: NodeRecord, entries: Sequence[ReportEntry], launch: Launch, now: datetime
) -> None:
    jobs = await tx.jobs.lock_many(sorted({entry.job_id for entry in entries}))
    for entry in entries:
        job = jobs.get(entry.job_id)
        if job is None:
            continue
        stale = entry.generation != job.generation
        if isinstance(entry, Released):
            jobs[job.id] = await release_node(tx, job, entry.generation, node.id, launch, now)
        elif not stale:
            jobs[job.id] = await _take_in_entry(tx, node, job, entry, now)


async def _take_in_entry(
    tx: Transaction, node: NodeRecord, job: Job, entry: ReportEntry, now: datetime
) -> Job:
    match entry:
        case RanksStarted():
            return await _ranks_started(tx, job, entry, now)
        case RankExited():
            exit_ = RankExit(
                rank=entry.rank,
                exit_code=entry.exit_code,
                signal=entry.signal,
                stopped_by_agent=entry.stopped_by_agent,
                completed=entry.completed,
                log_tail=tuple(entry.log_tail),
            )
            return await _rank_ended(tx, job, exit_, now)
        case StartFailed():
            exit_ = RankExit(
                rank=(await ranks_on_node(tx, job, node.id))[0],
                exit_code=EXIT_RETRY if entry.retryable else EXIT_NEVER_RETRY,
                signal=None,
                stopped_by_agent=False,
                completed=False,
                start_error=f"{entry.message} (node {node.name})",
            )
            return await _rank_ended(tx, job, exit_, now)
        case RankMessage():
            return await _rank_message(tx, job, entry, now)
        case Released():
            raise AssertionError("handled by the caller, stale or not")


async def _ranks_started(tx: Transaction, job: Job, entry: RanksStarted, now: datetime) -> Job:
    started = await tx.allocations.node_started(job.id, job.generation)
    if started < len(job.allocation) or job.state is not JobState.STARTING:
        return job
    return await transition(
        tx,
        replace(job, started_at=job.started_at or now),
        JobEvent.START,
        reason=Reason.PROGRESSING,
        message=job.message,
        now=now,
        data={"how": entry.how},
    )


async def _rank_message(tx: Transaction, job: Job, entry: RankMessage, now: datetime) -> Job:
    """A message that makes no sense is noted: its node's other news must not wait for it for ever."""
    try:
        message = from_fields(entry.message)
    except ValueError as error:
        await record(tx, job, "message_refused", message=str(error), now=now)
        return job
    return await take_in_message(tx, job, message, now)


async def _rank_ended(tx: Transaction, job: Job, exit_: RankExit, now: datetime) -> Job:
    """Note the exit. A failure stops the rest of the generation; so does an end that nobody asked for."""
    await tx.history.exit(job.id, job.generation, exit_, now)
    ending = ending_of(exit_)
    unasked_stop = ending is Ending.STOPPED and job.state in {JobState.STARTING, JobState.RUNNING}
    failed = ending in {Ending.INFRASTRUCTURE, Ending.USER_ERROR, Ending.HOPELESS}
    if ending is Ending.USER_ERROR and job.state is JobState.RESIZING:
        # The stop reaches one node before another: a plain script's ranks there lose their peers first.
        return job
    if not (failed or unasked_stop) or not allows(job.state, JobEvent.FAIL_RANK):
        return job
    verdict = judge([exit_])
    return await fail_rank(tx, job, reason=verdict.reason, message=verdict.message, now=now)
