"""Batched processing of progress reports, which ranks send many times a second across the cluster.

These reports change only a job's progress and its statistics. They are collected, and written in a few
statements for many nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headway.contract.agents import RankMessage, ReportRequest
from headway.contract.merging import ReportedEntry, merged, parsed
from headway.contract.runtime import Metrics, Progress
from service.domain.jobs.job import Job
from service.domain.jobs.membership import Crew
from service.domain.jobs.progress import after_message, within_names
from service.domain.life.life import Launch, Life, crew_of
from service.domain.life.targets import finish_at_target
from service.domain.perf.convergence import after_loss
from service.domain.perf.goal_target import after_report, has_reached
from service.domain.perf.milestones import reached_milestone
from service.usecases.jobs.halving import note_values
from service.usecases.jobs.life import apply, load_generations, load_life
from service.usecases.jobs.search import awaits_measurement
from service.usecases.nodes.links import note_slower_sync
from service.usecases.nodes.quarantine import note_slow_ranks
from service.usecases.nodes.stragglers import note_stragglers
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.jobs import Measured, Reported
from service.usecases.ports.nodes import Heartbeat
from service.usecases.ports.transactions import Transaction


@dataclass(frozen=True, slots=True)
class RoutineReport:
    """A report that contains at most acknowledgements and training messages."""

    heartbeat: Heartbeat
    acknowledged: tuple[str, ...] = ()
    training: tuple[ReportedEntry, ...] = ()

    @property
    def is_silent(self) -> bool:
        """Return True if the report contains neither acknowledgements nor training messages."""
        return not self.acknowledged and not self.training


def routine_report_of(report: ReportRequest, node_id: str, token_sha256: str) -> RoutineReport | None:
    """Return the report as `RoutineReport`, or None if it contains anything else."""
    training = parsed(entry for entry in report.entries if isinstance(entry, RankMessage))
    complete = len(training) == len(report.entries) and all(one.training is not None for one in training)
    if not complete or report.unread:
        return None
    heartbeat = Heartbeat(
        node_id=node_id,
        token_sha256=token_sha256,
        instance=report.instance,
        holding=frozenset((one.job_id, one.generation) for one in report.holding),
        slots=tuple(report.slots),
    )
    return RoutineReport(heartbeat, tuple(report.acknowledged), tuple(training))


class PendingWrites:
    """Pending writes from training messages. They must be written before the jobs are used in another way."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._measured: list[Measured] = []
        self._reported: list[Reported] = []
        self._of_trials: list[tuple[Job, Metrics]] = []
        self.at_target: list[str] = []
        """Jobs that reached their target by these messages. The caller ends them after `write`."""

    async def add(self, tx: Transaction, job: Job, message: Progress | Metrics, now: datetime) -> Job:
        """Return the locked job with the message applied to its progress."""
        if isinstance(message, Metrics):
            message = within_names(job.progress, message)
        before = job.progress
        progress = after_loss(before, after_report(before, after_message(before, message), message), message)
        if progress != before:
            job = replace(job, progress=progress)
            self._jobs[job.id] = job
            tx.wake(WakeUp.EVENTS, job.id)
        if isinstance(message, Metrics):
            # A node's clock may be wrong. Values with a time in the future would never be thinned.
            at = min(now, datetime.fromtimestamp(message.at_s, UTC))
            self._reported.append(Reported(job.id, message, at))
            if job.spec.parameters:  # only trials of sweeps are compared, and they have parameters
                self._of_trials.append((job, message))
            if has_reached(progress) and not has_reached(before):
                self.at_target.append(job.id)
            return job
        allocation = await tx.grants.allocation(job.id, message.generation)
        if allocation is not None:
            self._measured.append(Measured(job.id, allocation, message))
            paced = await note_slow_ranks(tx, job, allocation, message, now)
            if paced is not job:
                self._jobs[job.id] = job = paced
            await note_stragglers(tx, job, allocation, message, now)
            await note_slower_sync(tx, allocation, message, now)
        reaches_milestone = (
            reached_milestone(before, starts=False) is None
            and reached_milestone(progress, starts=False) is not None
        )
        if awaits_measurement(job) or reaches_milestone:
            tx.wake(WakeUp.ROUND)
        return job

    async def write(self, tx: Transaction, now: datetime) -> None:
        """Write everything that is pending, and clear it."""
        if self._jobs:
            await tx.jobs.save_progress(list(self._jobs.values()))
        if self._measured:
            await tx.jobs.add_measured(self._measured, now)
        if self._reported:
            await tx.jobs.add_reported(self._reported)
        if self._of_trials:
            await note_values(tx, self._of_trials)
        self._jobs, self._measured, self._reported, self._of_trials = {}, [], [], []


def may_report(crew: Crew, one: ReportedEntry, node_id: str) -> bool:
    """Return True if the rank is on the node and may report this about the job's training."""
    assert isinstance(one.entry, RankMessage), "only messages of ranks are about training"
    assert one.training is not None
    who = (one.entry.generation, one.entry.rank)
    return crew.runs_on(who, node_id) and crew.may_report(who, one.training.generation, one.training.rank)


@dataclass(frozen=True, slots=True)
class Ingested:
    """Ids of nodes whose reports were processed, and of nodes whose jobs were locked by another transaction."""

    nodes: frozenset[str]
    busy: frozenset[str] = frozenset()


async def end_at_target(tx: Transaction, job: Job, launch: Launch, now: datetime) -> Life:
    """Have a locked job that has reached its target save a checkpoint and end. Return its life."""
    life = await load_life(tx, job, launch, now)
    return await apply(tx, life.job, finish_at_target(life))


async def ingest_together(
    tx: Transaction, reports: Sequence[RoutineReport], launch: Launch, now: datetime
) -> Ingested:
    """Process the reports of several nodes, at most one of each.

    Locked nodes and jobs are skipped without waiting. Reports about a locked job may be processed a moment
    later. All others that were skipped require another action, so they are left to `ingest`, which waits.
    """
    sent = {one.heartbeat.node_id: one for one in reports}
    last = await tx.nodes.lock_renewable([one.heartbeat for one in reports])
    fresh = {
        node_id: merged([one for one in sent[node_id].training if one.entry.sequence > sequence])
        for node_id, sequence in last.items()
    }
    job_ids = {message.entry.job_id for messages in fresh.values() for message in messages}
    jobs = await tx.jobs.lock_many(sorted(job_ids), wait=False)
    ready = {
        node_id: messages
        for node_id, messages in fresh.items()
        if all(message.entry.job_id in jobs for message in messages)
    }
    await _apply_all(tx, jobs, ready, launch, now)
    acknowledged = {node_id: sent[node_id].acknowledged for node_id in ready if sent[node_id].acknowledged}
    for command in await tx.commands.acknowledge(acknowledged, now):
        tx.tell(command)
    processed = [
        (
            sent[node_id].heartbeat,
            max(last[node_id], *(one.entry.sequence for one in sent[node_id].training), 0),
        )
        for node_id in ready
    ]
    await tx.nodes.keep_leases(processed, now)
    return Ingested(frozenset(ready), busy=frozenset(fresh.keys() - ready.keys()))


async def _apply_all(
    tx: Transaction,
    jobs: dict[str, Job],
    by_node: Mapping[str, Sequence[ReportedEntry]],
    launch: Launch,
    now: datetime,
) -> None:
    """Apply the training messages, given by node, to the locked jobs."""
    messages = [(node_id, one) for node_id, entries in by_node.items() for one in entries]
    reported = [jobs[job_id] for job_id in {one.entry.job_id for _, one in messages}]
    running = {(job.id, job.generation) for job in reported}
    coming = {(job.id, job.switch.generation) for job in reported if job.switch is not None}
    await tx.grants.load_allocations(running | coming)
    crews = {job.id: crew_of(job, await load_generations(tx, job)) for job in reported}
    pending = PendingWrites()
    for node_id, one in messages:
        job = jobs[one.entry.job_id]
        if one.training is not None and may_report(crews[job.id], one, node_id):
            jobs[job.id] = await pending.add(tx, job, one.training, now)
    await pending.write(tx, now)
    for job_id in pending.at_target:
        await end_at_target(tx, jobs[job_id], launch, now)
