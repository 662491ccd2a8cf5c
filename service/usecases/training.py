"""How training goes, as ranks say it many times a second all over the cluster: taken in for many nodes at a time.

Such news change nothing but a job's progress and its statistics. So they are gathered, and written in a few statements for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headway.contract.agents import RankMessage, ReportRequest
from headway.contract.jobs import JobProgress
from headway.contract.runtime import Metrics, Progress
from service.domain.jobs import Job
from service.domain.membership import Crew
from service.domain.perf.marks import due_mark
from service.usecases.merging import Heard, heard, merged
from service.usecases.orders import crew_of
from service.usecases.ports import Transaction
from service.usecases.progress import after_message, within_names
from service.usecases.quarantine import note_paces
from service.usecases.records import Bell, Heartbeat, Measured, Reported
from service.usecases.search import on_its_visit


@dataclass(frozen=True, slots=True)
class QuickNews:
    """A report that says at most that commands were taken up and how training goes."""

    heartbeat: Heartbeat
    acknowledged: tuple[str, ...] = ()
    training: tuple[Heard, ...] = ()

    @property
    def is_silent(self) -> bool:
        """Whether it holds no news at all."""
        return not self.acknowledged and not self.training


def quick_news_of(report: ReportRequest, node_id: str, token_sha256: str) -> QuickNews | None:
    """The report as such news; None if it holds others."""
    training = heard(entry for entry in report.entries if isinstance(entry, RankMessage))
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
    """What is to be written of the news of training. Whoever looks at the jobs in another way has it written first."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._measured: list[Measured] = []
        self._reported: list[Reported] = []

    async def take_in(self, tx: Transaction, job: Job, message: Progress | Metrics, now: datetime) -> Job:
        """The locked job with the message's news in its progress."""
        if isinstance(message, Metrics):
            message = within_names(job.progress, message)
        before, progress = job.progress, after_message(job.progress, message)
        if progress != before:
            job = replace(job, progress=progress)
            self._jobs[job.id] = job
            tx.ring(Bell.EVENTS, job.id)
        if isinstance(message, Metrics):
            # A node's clock may be wrong; what came from the future would never come of age.
            at = min(now, datetime.fromtimestamp(message.at_s, UTC))
            self._reported.append(Reported(job.id, message, at))
            return job
        allocation = await tx.allocations.get(job.id, message.generation)
        if allocation is not None:
            self._measured.append(Measured(job.id, allocation, message))
            paced = await note_paces(tx, job, allocation, message, now)
            if paced is not job:
                self._jobs[job.id] = job = paced
        if on_its_visit(job) or _comes_to_a_mark(before, progress):
            tx.ring(Bell.ROUND)
        return job

    async def write(self, tx: Transaction, now: datetime) -> None:
        """Write it, and begin anew."""
        if self._jobs:
            await tx.jobs.save_progress(list(self._jobs.values()))
        if self._measured:
            await tx.history.measure(self._measured, now)
        if self._reported:
            await tx.history.report(self._reported)
        self._jobs, self._measured, self._reported = {}, [], []


def speaks(crew: Crew, one: Heard, node_id: str) -> bool:
    """Whether the rank is on the node, and may say of the job's training what it says."""
    assert isinstance(one.entry, RankMessage), "nobody else speaks of training"
    assert one.training is not None
    who = (one.entry.generation, one.entry.rank)
    return crew.runs_on(who, node_id) and crew.may_say(who, one.training.generation, one.training.rank)


@dataclass(frozen=True, slots=True)
class Taken:
    """Ids of nodes whose reports were taken in; and of those that spoke of a job that somebody else works on at the moment."""

    nodes: frozenset[str]
    busy: frozenset[str] = frozenset()


async def take_in_together(tx: Transaction, news: Sequence[QuickNews], now: datetime) -> Taken:
    """Take in what nodes, each of them another, have to say.

    Nobody here waits for a node or a job that somebody else works on. Other news of a busy job may be taken in a moment later;
    about all others there is something to be said or done, and they are left to `ingest`, which waits.
    """
    last = await tx.leases.lock([one.heartbeat for one in news])
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
    await tx.leases.keep(kept, now)
    nodes = frozenset(one.heartbeat.node_id for one in taken)
    return Taken(nodes, busy=frozenset(fresh) - nodes)


async def _say_all(
    tx: Transaction, jobs: dict[str, Job], news: Mapping[str, Sequence[Heard]], now: datetime
) -> None:
    """`news` is by node."""
    spoken_of = {one.entry.job_id: jobs[one.entry.job_id] for said in news.values() for one in said}
    running = {(job.id, job.generation) for job in spoken_of.values()}
    coming = {(job.id, job.switch.generation) for job in spoken_of.values() if job.switch is not None}
    await tx.allocations.load(running | coming)
    crews = {job.id: await crew_of(tx, job) for job in spoken_of.values()}
    gathered = Gathered()
    for node_id, one in ((node_id, one) for node_id, said in news.items() for one in said):
        job = jobs[one.entry.job_id]
        if one.training is not None and speaks(crews[job.id], one, node_id):
            jobs[job.id] = await gathered.take_in(tx, job, one.training, now)
    await gathered.write(tx, now)


def _comes_to_a_mark(before: JobProgress, progress: JobProgress) -> bool:
    """Whether a forecast is to be kept from now on."""
    return due_mark(before, starts=False) is None and due_mark(progress, starts=False) is not None
