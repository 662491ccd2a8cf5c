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
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.job import Job
from service.domain.jobs.membership import Crew
from service.domain.jobs.progress import after_message, within_names
from service.domain.life.life import crew_of
from service.domain.perf.marks import due_mark
from service.usecases.jobs.life import load_generations
from service.usecases.jobs.search import on_its_visit
from service.usecases.nodes.quarantine import note_paces
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.jobs import Measured, Reported
from service.usecases.ports.nodes import Heartbeat
from service.usecases.ports.transactions import Transaction


@dataclass(frozen=True, slots=True)
class QuickNews:
    """A report that contains at most acknowledgements and training messages."""

    heartbeat: Heartbeat
    acknowledged: tuple[str, ...] = ()
    training: tuple[ReportedEntry, ...] = ()

    @property
    def is_silent(self) -> bool:
        """Return True if the report contains neither acknowledgements nor training messages."""
        return not self.acknowledged and not self.training


def quick_news_of(report: ReportRequest, node_id: str, token_sha256: str) -> QuickNews | None:
    """Return the report as `QuickNews`, or None if it contains anything else."""
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
    return QuickNews(heartbeat, tuple(report.acknowledged), tuple(training))


class Gathered:
    """Pending writes from training messages. They must be written before the jobs are used in another way."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._measured: list[Measured] = []
        self._reported: list[Reported] = []

    async def take_in(self, tx: Transaction, job: Job, message: Progress | Metrics, now: datetime) -> Job:
        """Return the locked job with the message applied to its progress."""
        if isinstance(message, Metrics):
            message = within_names(job.progress, message)
        before, progress = job.progress, after_message(job.progress, message)
        if progress != before:
            job = replace(job, progress=progress)
            self._jobs[job.id] = job
            tx.wake(WakeUp.EVENTS, job.id)
        if isinstance(message, Metrics):
            # A node's clock may be wrong. Values with a time in the future would never be thinned.
            at = min(now, datetime.fromtimestamp(message.at_s, UTC))
            self._reported.append(Reported(job.id, message, at))
            return job
        allocation = await tx.grants.allocation(job.id, message.generation)
        if allocation is not None:
            self._measured.append(Measured(job.id, allocation, message))
            paced = await note_paces(tx, job, allocation, message, now)
            if paced is not job:
                self._jobs[job.id] = job = paced
        if on_its_visit(job) or _comes_to_a_mark(before, progress):
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
        self._jobs, self._measured, self._reported = {}, [], []


def may_report(crew: Crew, one: ReportedEntry, node_id: str) -> bool:
    """Return True if the rank is on the node and may report this about the job's training."""
    assert isinstance(one.entry, RankMessage), "nobody else may_report of training"
    assert one.training is not None
    who = (one.entry.generation, one.entry.rank)
    return crew.runs_on(who, node_id) and crew.may_report(who, one.training.generation, one.training.rank)


@dataclass(frozen=True, slots=True)
class Taken:
    """Ids of nodes whose reports were processed, and of nodes whose jobs were locked by another transaction."""

    nodes: frozenset[str]
    busy: frozenset[str] = frozenset()


async def take_in_together(tx: Transaction, news: Sequence[QuickNews], now: datetime) -> Taken:
    """Process the reports of several nodes, at most one of each.

    Locked nodes and jobs are skipped without waiting. Reports about a locked job may be processed a moment
    later. All others that were skipped require another action, so they are left to `ingest`, which waits.
    """
    last = await tx.nodes.lock_renewable([one.heartbeat for one in news])
    fresh = {
        one.heartbeat.node_id: merged([said for said in one.training if said.entry.sequence > last[node_id]])
        for one in news
        if (node_id := one.heartbeat.node_id) in last
    }
    job_ids = {said.entry.job_id for heard_here in fresh.values() for said in heard_here}
    jobs = await tx.jobs.lock_many(sorted(job_ids), wait=False)
    taken = [
        one
        for one in news
        if one.heartbeat.node_id in fresh
        and all(said.entry.job_id in jobs for said in fresh[one.heartbeat.node_id])
    ]
    await _say_all(tx, jobs, {one.heartbeat.node_id: fresh[one.heartbeat.node_id] for one in taken}, now)
    acknowledged = {one.heartbeat.node_id: one.acknowledged for one in taken if one.acknowledged}
    for command in await tx.commands.acknowledge(acknowledged, now):
        tx.tell(command)
    kept = []
    for one in taken:
        sequences = (said.entry.sequence for said in one.training)
        kept.append((one.heartbeat, max(last[one.heartbeat.node_id], *sequences, 0)))
    await tx.nodes.keep_leases(kept, now)
    nodes = frozenset(one.heartbeat.node_id for one in taken)
    return Taken(nodes, busy=frozenset(fresh) - nodes)


async def _say_all(
    tx: Transaction, jobs: dict[str, Job], news: Mapping[str, Sequence[ReportedEntry]], now: datetime
) -> None:
    """Apply the training messages, given by node, to the locked jobs."""
    spoken_of = {one.entry.job_id: jobs[one.entry.job_id] for said in news.values() for one in said}
    running = {(job.id, job.generation) for job in spoken_of.values()}
    coming = {(job.id, job.switch.generation) for job in spoken_of.values() if job.switch is not None}
    await tx.grants.load_allocations(running | coming)
    crews = {job.id: crew_of(job, await load_generations(tx, job)) for job in spoken_of.values()}
    gathered = Gathered()
    for node_id, one in ((node_id, one) for node_id, said in news.items() for one in said):
        job = jobs[one.entry.job_id]
        if one.training is not None and may_report(crews[job.id], one, node_id):
            jobs[job.id] = await gathered.take_in(tx, job, one.training, now)
    await gathered.write(tx, now)


def _comes_to_a_mark(before: JobProgress, progress: JobProgress) -> bool:
    """Return True if the job has just reached a milestone at which a forecast is to be stored."""
    return due_mark(before, starts=False) is None and due_mark(progress, starts=False) is not None
