"""Take in an agent's report: its lease, its acknowledgements, and the news of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import structlog

from headway.contract.agents import (
    Holding,
    InterruptionNotice,
    NodeEntry,
    NodeState,
    RankEntry,
    RankExited,
    RankMessage,
    RanksHung,
    RanksStarted,
    Released,
    ReportReply,
    ReportRequest,
    StartFailed,
)
from headway.contract.health import DeviceFault, DeviceProbed
from headway.contract.jobs import JobState, Reason
from headway.contract.runtime import EXIT_NEVER_RETRY, EXIT_RETRY, from_fields
from service.domain.errors import WrongToken
from service.domain.failures import RankExit
from service.domain.jobs import Job
from service.domain.lifecycle import JobEvent
from service.domain.membership import Crew
from service.usecases.ends import rank_ended
from service.usecases.generations import release_node
from service.usecases.hung import ranks_hung, without_outlived
from service.usecases.merging import heard, merged
from service.usecases.notices import take_notices
from service.usecases.orders import Launch, crew_of
from service.usecases.ports import Transaction
from service.usecases.progress import take_in_message
from service.usecases.quarantine import look_after_devices, take_device_news
from service.usecases.records import Bell, NodeRecord
from service.usecases.training import Gathered, speaks
from service.usecases.transition import record, transition

log = structlog.get_logger()


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
    if report.unread:
        log.warning("newer_agent", node=node.name, version=node.agent_version, unread=report.unread)
    for taken in await tx.commands.acknowledge({node.id: report.acknowledged}, now):
        tx.tell(taken)
    fresh = [entry for entry in report.entries if entry.sequence > node.last_sequence]
    news = [entry for entry in fresh if not isinstance(entry, NodeEntry)]
    notices = [entry for entry in fresh if isinstance(entry, InterruptionNotice)]
    if notices:
        node = await take_notices(tx, node, notices, {entry.job_id for entry in news}, now)
    of_devices = [entry for entry in fresh if isinstance(entry, DeviceFault | DeviceProbed)]
    if of_devices:
        await take_device_news(tx, node, of_devices, {entry.job_id for entry in news}, now)
    await _take_in(tx, node, news, launch, now)
    stop = await _not_its_own(tx, node.id, report.holding)
    # Asked for with regular reports alone: a node that has much to say is not held up by it.
    regular = bool(report.slots) or not report.entries
    probe = await look_after_devices(tx, node, report.slots, now) if regular else []
    last_sequence = max([node.last_sequence, *(entry.sequence for entry in fresh)])
    node = replace(node, seen_at=now, last_sequence=last_sequence)
    if node.state is NodeState.LOST and not stop:
        tx.ring(Bell.ROUND)
        node = replace(node, state=node.wanted_state, message="is back")
        await tx.nodes.save(replace(node, slots=tuple(report.slots) or node.slots))
    elif report.slots:
        await tx.nodes.save(replace(node, slots=tuple(report.slots)))
    else:
        await tx.nodes.seen(node)
    return ReportReply(lease_s=lease_s, stop=stop, probe=probe)


async def _not_its_own(tx: Transaction, node_id: str, holding: Sequence[Holding]) -> list[Holding]:
    """What the node runs without holding slots for it: generations that are over."""
    if not holding:
        return []
    granted = await tx.grants.on_node(node_id)
    return [one for one in holding if (one.job_id, one.generation) not in granted]


async def _take_in(
    tx: Transaction, node: NodeRecord, entries: Sequence[RankEntry], launch: Launch, now: datetime
) -> None:
    jobs = await tx.jobs.lock_many(sorted({entry.job_id for entry in entries}))
    crews = {job.id: await crew_of(tx, job) for job in jobs.values()}
    await _note_exits(tx, node.id, entries, crews, now)
    gathered = Gathered()
    for one in merged(heard(without_outlived(entries))):
        entry = one.entry
        job = jobs.get(entry.job_id)
        if job is None:
            continue
        if one.training is not None:
            if speaks(crews[job.id], one, node.id):
                jobs[job.id] = await gathered.take_in(tx, job, one.training, now)
            continue
        await gathered.write(tx, now)
        if isinstance(entry, Released):
            after = await release_node(tx, job, entry.generation, node.id, launch, now, slots=entry.slots)
        else:
            after = await _take_in_entry(tx, node, job, crews[job.id], entry, now)
        if (after.generation, after.switch) != (job.generation, job.switch):
            crews[job.id] = await crew_of(tx, after)
        jobs[job.id] = after
    await gathered.write(tx, now)


async def _note_exits(
    tx: Transaction, node_id: str, entries: Sequence[RankEntry], crews: Mapping[str, Crew], now: datetime
) -> None:
    """Note every exit before any is acted on: of ranks that ended together, none is taken for a survivor."""
    for entry in entries:
        if isinstance(entry, RankExited) and entry.job_id in crews:
            who = (entry.generation, entry.rank)
            if crews[entry.job_id].runs_on(who, node_id):
                await tx.history.exit(entry.job_id, entry.generation, _exit_of(entry), now)


def _exit_of(entry: RankExited) -> RankExit:
    return RankExit(
        rank=entry.rank,
        exit_code=entry.exit_code,
        signal=entry.signal,
        stopped_by_agent=entry.stopped_by_agent,
        completed=entry.completed,
        log_tail=tuple(entry.log_tail),
    )


async def _take_in_entry(
    tx: Transaction, node: NodeRecord, job: Job, crew: Crew, entry: RankEntry, now: datetime
) -> Job:
    match entry:
        case RanksStarted():
            return await _ranks_started(tx, node.id, job, entry, now)
        case RankExited():
            who = (entry.generation, entry.rank)
            if not crew.runs_on(who, node.id):
                return job
            return await rank_ended(tx, job, crew, who, _exit_of(entry), now)
        case StartFailed():
            return await _start_failed(tx, node, job, crew, entry, now)
        case RankMessage():
            return await _rank_message(tx, node.id, job, crew, entry, now)
        case RanksHung():
            return await ranks_hung(tx, node, job, crew, entry, now)
        case Released():
            raise AssertionError("handled by the caller, stale or not")


async def _ranks_started(tx: Transaction, node_id: str, job: Job, entry: RanksStarted, now: datetime) -> Job:
    stale = entry.generation != job.generation or job.state is not JobState.STARTING
    if stale or node_id not in job.allocation:
        return job
    started = await tx.allocations.node_started(job.id, job.generation)
    if started < len(job.allocation):
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


async def _start_failed(
    tx: Transaction, node: NodeRecord, job: Job, crew: Crew, entry: StartFailed, now: datetime
) -> Job:
    who = next((who for who in crew.on_node(node.id) if who[0] == entry.generation), None)
    if who is None:
        return job
    exit_ = RankExit(
        rank=who[1],
        exit_code=EXIT_RETRY if entry.retryable else EXIT_NEVER_RETRY,
        signal=None,
        stopped_by_agent=False,
        completed=False,
        start_error=f"{entry.message} (node {node.name})",
    )
    await tx.history.exit(job.id, entry.generation, exit_, now)
    return await rank_ended(tx, job, crew, who, exit_, now)


async def _rank_message(
    tx: Transaction, node_id: str, job: Job, crew: Crew, entry: RankMessage, now: datetime
) -> Job:
    """What a rank says, if it may speak for the generation that it names.

    A message that makes no sense is noted: its node's other news must not wait for it for ever.
    """
    who = (entry.generation, entry.rank)
    if not crew.runs_on(who, node_id):
        return job
    try:
        message = from_fields(entry.message)
    except ValueError as error:
        await record(tx, job, "message_refused", message=str(error), now=now)
        return job
    if not crew.may_say(who, message.generation, message.rank):
        return job
    return await take_in_message(tx, job, who, message, now)
