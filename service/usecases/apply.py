"""Apply what a round has decided: a few jobs in each transaction, and each only if its job is still as it was.

Reports about a job wait as long as a transaction has its row. So there are many short ones, and whatever comes between two of
them, the end of this process among it, leaves every job either as it was or changed as a whole: the next round goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.decisions import RoundChange
from headway.contract.jobs import JobState
from service.domain.allocation.plan import Action, Decision, Plan
from service.domain.cluster import SlotKey, Snapshot
from service.domain.jobs import Allocation, Job
from service.domain.membership import born
from service.usecases.generations import start_generation, vacate
from service.usecases.live import prepare
from service.usecases.marks import chosen_columns, keep_forecast, mark_to_keep
from service.usecases.orders import Launch, crew_of
from service.usecases.ports import Transaction, Transactions
from service.usecases.records import Bell, DecisionRecord, Prediction
from service.usecases.round_views import change_view
from service.usecases.search import note_search, search_news

PIECE = 10
"""Jobs that one transaction changes."""
_TAKES_SLOTS = frozenset({Action.START, Action.CHANGE})


@dataclass(frozen=True, slots=True)
class Applying:
    """A plan that is being applied."""

    snapshot: Snapshot
    plan: Plan
    launch: Launch
    round_id: str
    now: datetime
    columns: Mapping[str, tuple[int, int]]
    """Row and column of every job that the plan gives something."""

    def changes(self, decision: Decision) -> bool:
        """Whether the decision, or what the round found out on its way to it, changes the job."""
        job = self.snapshot.jobs[decision.job_id]
        return (
            decision.action not in {Action.WAIT, Action.KEEP}
            or search_news(self.plan.round, job) is not None
            or mark_to_keep(decision, job, self.columns.get(job.id)) is not None
            or _saying_why_it_waits(job, decision) is not job
        )


async def apply_plan(
    transactions: Transactions,
    snapshot: Snapshot,
    plan: Plan,
    launch: Launch,
    round_id: str,
    now: Callable[[], datetime],
) -> tuple[list[RoundChange], list[DecisionRecord]]:
    """What was changed, and what is still to be stored of the decisions that leave their jobs as they are."""
    applying = Applying(snapshot, plan, launch, round_id, now(), chosen_columns(plan))
    changing: list[Decision] = []
    others: list[DecisionRecord] = []
    for decision in plan.decisions:
        if applying.changes(decision):
            changing.append(decision)
        else:
            others.append(_told(decision))
    changing.sort(key=_leaves_nothing)
    changes: list[RoundChange] = []
    for first in range(0, len(changing), PIECE):
        async with transactions.begin() as tx:
            applying = replace(applying, now=now())
            changes += await _apply_piece(tx, applying, changing[first : first + PIECE])
    return changes, others


def _leaves_nothing(decision: Decision) -> bool:
    """Decisions by which slots become free go first."""
    return decision.action not in {Action.VACATE, Action.CHANGE}


async def _apply_piece(tx: Transaction, applying: Applying, piece: Sequence[Decision]) -> list[RoundChange]:
    jobs = await tx.jobs.lock_many(sorted(one.job_id for one in piece))
    gone = await _gone(tx, piece)
    changes: list[RoundChange] = []
    told: list[DecisionRecord] = []
    for decision in piece:
        job = jobs.get(decision.job_id)
        if job is None or not _unchanged(job, applying.snapshot.jobs[decision.job_id]):
            continue
        if await _apply_one(tx, applying, job, decision, gone):
            changes.append(change_view(job, decision))
        told.append(_told(decision))
    await tx.decisions.store(told, applying.round_id, applying.now)
    return changes


async def _apply_one(
    tx: Transaction, applying: Applying, locked: Job, decision: Decision, gone: frozenset[SlotKey]
) -> bool:
    """Whether the decision was carried out, and its job saved with it; else it keeps what the round found out about it."""
    plan, now = applying.plan, applying.now
    job = await note_search(tx, plan.round, locked, now)
    job = await keep_forecast(tx, plan, decision, job, applying.columns.get(job.id), now)
    in_reach = decision.action not in _TAKES_SLOTS or gone.isdisjoint(_slots(decision.allocation))
    if in_reach and await _carry_out(tx, applying, job, decision):
        return True
    job = _saying_why_it_waits(job, decision)
    if job != locked:
        await tx.jobs.save(job)
        tx.ring(Bell.EVENTS, job.id)
    return False


def _told(decision: Decision) -> DecisionRecord:
    return DecisionRecord(
        job_id=decision.job_id,
        action=decision.action,
        reason=decision.reason,
        message=decision.message,
        options=decision.options,
    )


def _saying_why_it_waits(job: Job, decision: Decision) -> Job:
    """The job; one that waits for a round, with what this one says of it, if that is something new."""
    waits = decision.action is Action.WAIT and job.state is JobState.PENDING
    if not waits or (job.reason, job.message) == (decision.reason, decision.message):
        return job
    return replace(job, reason=decision.reason, message=decision.message)


def _prediction(decision: Decision) -> Prediction | None:
    expected = decision.expected
    return None if expected is None else Prediction(expected.samples_per_s, expected.low, expected.high)


def _unchanged(job: Job, seen: Job) -> bool:
    """The guard: nothing that the decision rests on has happened since the snapshot."""
    return (
        job.generation == seen.generation
        and job.state is seen.state
        and job.pinned_size == seen.pinned_size
        and not job.pause_requested
    )


async def _carry_out(tx: Transaction, applying: Applying, job: Job, decision: Decision) -> bool:
    """Whether something was changed, and the job saved."""
    reason, message, now = decision.reason, decision.message, applying.now
    match decision.action:
        case Action.START:
            if not await tx.grants.grant(job.id, job.newest_generation + 1, decision.allocation, now):
                return False
            await start_generation(
                tx,
                job,
                decision.allocation,
                applying.launch,
                reason=reason,
                message=message,
                now=now,
                round_id=applying.round_id,
                predicted=_prediction(decision),
            )
            return True
        case Action.CHANGE | Action.VACATE | Action.ADAPT if await _has_begun_to_end(tx, job):
            return False
        case Action.CHANGE:
            return await _change(tx, applying, job, decision)
        case Action.ADAPT:
            return await prepare(
                tx,
                job,
                job.allocation,
                applying.launch,
                reason=reason,
                message=message,
                now=now,
                round_id=applying.round_id,
                global_batch=decision.global_batch,
            )
        case Action.VACATE:
            await vacate(tx, job, None, reason=reason, message=message, now=now)
            return True
        case Action.WAIT | Action.KEEP:
            return False


async def _change(tx: Transaction, applying: Applying, job: Job, decision: Decision) -> bool:
    """Change the job's slots: in place if its ranks follow orders, else by a restart."""
    target, reason, message, now = decision.allocation, decision.reason, decision.message, applying.now
    newcomers = _without(target, job.allocation)
    if not await tx.grants.grant(job.id, job.newest_generation + 1, newcomers, now):
        return False
    in_place = job.live and await prepare(
        tx,
        job,
        target,
        applying.launch,
        reason=reason,
        message=message,
        now=now,
        round_id=applying.round_id,
        predicted=_prediction(decision),
    )
    if not in_place:
        await vacate(tx, job, target, reason=reason, message=message, now=now)
    return True


async def _gone(tx: Transaction, decisions: Sequence[Decision]) -> frozenset[SlotKey]:
    """Slots that a decision counts on and that went since the snapshot: with their node, where nobody would start ranks, nor
    say so, or into quarantine.
    """
    wanted = {key for one in decisions if one.action in _TAKES_SLOTS for key in _slots(one.allocation)}
    names = sorted({key.node_id for key in wanted})
    nodes = await tx.nodes.many(names)
    lost = {node.id for node in nodes.values() if node.state is NodeState.LOST}
    confined = {one.key for one in await tx.quarantines.open(names)} if names else set()
    return frozenset(key for key in wanted if key.node_id in lost or key in confined)


def _slots(allocation: Allocation) -> set[SlotKey]:
    return {SlotKey(node, slot) for node, slots in allocation.items() for slot in slots}


async def _has_begun_to_end(tx: Transaction, job: Job) -> bool:
    """Whether the running generation has left some of its slots since the snapshot, or, where its members change in
    place, whether one of them has ended.
    """
    held: dict[str, set[int]] = {}
    for nodes in (await tx.grants.held(job.id)).values():
        for node, slots in nodes.items():
            held.setdefault(node, set()).update(slots)
    if any(not set(slots) <= held.get(node, set()) for node, slots in job.allocation.items()):
        return True
    if not job.live:
        return False
    running = (await crew_of(tx, job)).running
    exits = await tx.history.exits(job.id, min(one.born_generation for one in running))
    return any(born(one) in exits for one in running)


def _without(allocation: Allocation, held: Allocation) -> Allocation:
    """The slots of `allocation` that are not in `held`."""
    rest = {node: tuple(sorted(set(slots) - set(held.get(node, ())))) for node, slots in allocation.items()}
    return {node: slots for node, slots in rest.items() if slots}
