"""Processing of an agent's report: its lease, its acknowledgements, and the entries of its ranks."""

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
    OutputReport,
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
from headway.contract.links import LinksProbed
from headway.contract.merging import merged, parsed
from headway.contract.rank_lines import from_fields
from headway.contract.runtime import CannotMeet, FirstStep, Lingers, Progress, Ready, StandsStill
from service.domain.jobs.failures import RankExit
from service.domain.life.ends import release_node
from service.domain.life.life import Launch, Life
from service.domain.life.lingering import script_ended
from service.domain.life.losses import rank_ended, ranks_hung, start_failed
from service.domain.life.messages import awaits_start, message_refused, message_taken, ranks_started
from service.domain.life.standstill import stands_still
from service.domain.shared.errors import WrongToken
from service.usecases.jobs.life import apply, go_on_if_gone, host_of, load_outline, with_footprint
from service.usecases.nodes.links import ingest_probes
from service.usecases.nodes.notices import apply_notices
from service.usecases.nodes.quarantine import ingest_device_reports, slots_to_probe
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction
from service.usecases.reports.outputs import record_output
from service.usecases.reports.training import PendingWrites, end_at_target, may_report

log = structlog.get_logger()


async def ingest(
    tx: Transaction, node_id: str, report: ReportRequest, *, launch: Launch, lease_s: float, now: datetime
) -> ReportReply:
    """Process the report of an agent.

    Return the lease, the runs that the agent must stop, and the slots that it must probe.

    A repeated batch of entries is counted once.

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
    of_ranks = [entry for entry in fresh if not isinstance(entry, NodeEntry)]
    notices = [entry for entry in fresh if isinstance(entry, InterruptionNotice)]
    if notices:
        node = await apply_notices(tx, node, notices, {entry.job_id for entry in of_ranks}, now)
    of_devices = [entry for entry in fresh if isinstance(entry, DeviceFault | DeviceProbed)]
    if of_devices:
        await ingest_device_reports(tx, node, of_devices, {entry.job_id for entry in of_ranks}, now)
    of_links = [entry for entry in fresh if isinstance(entry, LinksProbed)]
    if of_links:
        await ingest_probes(tx, node, of_links, now)
    await _apply_entries(tx, node, of_ranks, launch, now)
    stop = await _runs_without_slots(tx, node.id, report.holding)
    # Probes are requested only with regular reports, so that urgent reports are not delayed.
    regular = bool(report.slots) or not report.entries
    probe = await slots_to_probe(tx, node, report.slots, now) if regular else []
    last_sequence = max([node.last_sequence, *(entry.sequence for entry in fresh)])
    node = replace(node, seen_at=now, last_sequence=last_sequence)
    if node.state is NodeState.LOST and not stop:
        tx.wake(WakeUp.ROUND)
        node = replace(node, state=node.wanted_state, message="is back")
        await tx.nodes.save(replace(node, slots=tuple(report.slots) or node.slots))
    elif report.slots:
        await tx.nodes.save(replace(node, slots=tuple(report.slots)))
    else:
        await tx.nodes.seen(node)
    return ReportReply(lease_s=lease_s, stop=stop, probe=probe)


async def _runs_without_slots(tx: Transaction, node_id: str, holding: Sequence[Holding]) -> list[Holding]:
    """Return the runs for which the node holds no slots: their generations are over."""
    if not holding:
        return []
    granted = await tx.grants.on_node(node_id)
    stop = [one for one in holding if (one.job_id, one.generation) not in granted]
    if stop:
        await _log_never_assigned(tx, node_id, stop)
    return stop


async def _log_never_assigned(tx: Transaction, node_id: str, stop: Sequence[Holding]) -> None:
    """Log generations that the database has never assigned: it may have lost them.

    One agent's word is no proof, so nothing is restarted; see `service.usecases.upkeep.lost_tail` for the proof.
    """
    runs = await tx.jobs.never_assigned([(one.job_id, one.generation) for one in stop])
    for job_id, generation in runs:
        log.error(
            "generation_never_assigned",
            node=node_id,
            job=job_id,
            generation=generation,
            what_next="if PostgreSQL failed over or was restored: stop the schedulers, run `python -m service restored`",
        )


async def _apply_entries(
    tx: Transaction, node: NodeRecord, entries: Sequence[RankEntry], launch: Launch, now: datetime
) -> None:
    jobs = await tx.jobs.lock_many(sorted({entry.job_id for entry in entries}))
    lives = {job.id: await load_outline(tx, job, launch, now) for job in jobs.values()}
    await _store_exits(tx, node.id, entries, lives, now)
    pending = PendingWrites()
    for one in merged(parsed(_without_recovered(entries))):
        life = lives.get(one.entry.job_id)
        if life is None:
            continue
        if one.training is None:
            await pending.write(tx, now)
            life = await _apply_entry(tx, node, life, one.entry)
        elif may_report(life.crew, one, node.id):
            life = life.with_job(await pending.add(tx, life.job, one.training, now))
        lives[life.job.id] = life
    await pending.write(tx, now)
    for job_id in pending.at_target:
        await end_at_target(tx, lives[job_id].job, launch, now)


def _without_recovered(entries: Sequence[RankEntry]) -> list[RankEntry]:
    """Drop reports of hung ranks that train again according to a later entry of the same report.

    Such ranks hung while the agent could not reach the service.
    """
    kept: list[RankEntry] = []
    train: set[tuple[str, int]] = set()
    for entry in reversed(entries):
        start = entry.job_id, entry.generation
        if isinstance(entry, RankMessage) and entry.message.get("type") == Progress.TYPE:
            train.add(start)
        if not (isinstance(entry, RanksHung) and start in train):
            kept.append(entry)
    return kept[::-1]


async def _store_exits(
    tx: Transaction, node_id: str, entries: Sequence[RankEntry], lives: Mapping[str, Life], now: datetime
) -> None:
    """Store every exit before any is processed.

    Otherwise ranks that ended together would count as survivors.
    """
    for entry in entries:
        if isinstance(entry, RankExited) and entry.job_id in lives:
            who = (entry.generation, entry.rank)
            if lives[entry.job_id].crew.runs_on(who, node_id):
                await tx.jobs.add_exit(entry.job_id, entry.generation, _rank_exit(entry), now)


def _rank_exit(entry: RankExited) -> RankExit:
    return RankExit(
        rank=entry.rank,
        exit_code=entry.exit_code,
        signal=entry.signal,
        stopped_by_agent=entry.stopped_by_agent,
        completed=entry.completed,
        log_tail=tuple(entry.log_tail),
    )


async def _apply_entry(tx: Transaction, node: NodeRecord, life: Life, entry: RankEntry) -> Life:
    """Store the life of a job after an entry about it, and return it."""
    match entry:
        case OutputReport():
            return life.with_job(await record_output(tx, node, life.job, entry, life.now))
        case RanksStarted():
            after = life.with_pids(node.id, entry.generation, entry.pids)  # newcomers' as well
            if awaits_start(life, node.id, entry.generation):
                started = await tx.grants.node_started(life.job.id, entry.generation)
                after = ranks_started(after, entry.how, started)
        case RankMessage():
            after = await _after_message(tx, node.id, life, entry)
        case RankExited():
            who = (entry.generation, entry.rank)
            if not life.crew.runs_on(who, node.id):
                return life
            after = rank_ended(await with_footprint(tx, life), who, _rank_exit(entry))
        case StartFailed():
            after = start_failed(await with_footprint(tx, life), host_of(node), entry)
        case RanksHung():
            after = ranks_hung(await with_footprint(tx, life), host_of(node), entry)
        case Released():
            before = await with_footprint(tx, life)
            released = release_node(before, entry.generation, node.id, slots=entry.slots)
            after = await go_on_if_gone(tx, before, released)
    return await apply(tx, life.job, after)


async def _after_message(tx: Transaction, node_id: str, life: Life, entry: RankMessage) -> Life:
    """Return the life after a message of a rank, if the rank may report for the generation that it names."""
    who = (entry.generation, entry.rank)
    if not life.crew.runs_on(who, node_id):
        return life
    try:
        message = from_fields(entry.message)
    except ValueError as error:
        return message_refused(life, str(error))
    if isinstance(message, Lingers):  # about the process, whatever rank it has now
        return script_ended(life, who, message)
    if not life.crew.may_report(who, message.generation, message.rank):
        return life
    if isinstance(message, StandsStill):
        return stands_still(await with_footprint(tx, life), node_id, message)
    if isinstance(message, Ready | CannotMeet):
        return message_taken(await with_footprint(tx, life), who, message)
    first = isinstance(message, FirstStep) and message.rank == 0 and not message.plain
    vacated_at = await tx.jobs.vacated_at(life.job.id) if first else None
    return message_taken(life, who, message, vacated_at=vacated_at)
