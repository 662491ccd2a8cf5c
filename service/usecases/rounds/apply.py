"""Application of a round's decisions, a few jobs per transaction.

A decision is dropped if its job has changed. Reports about a job wait while a transaction has its row locked,
so each transaction is short. An interruption between two of them leaves every job either unchanged or changed
as a whole, and the next round goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.views.decisions import RoundChange
from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, Plan
from service.domain.cluster.snapshot import SlotKey, Snapshot
from service.domain.contention.costs import change_s, restart_s
from service.domain.contention.promises import with_promise
from service.domain.contention.rate import IMPOSED, with_imposed_change
from service.domain.jobs.job import Allocation, Job, minus
from service.domain.jobs.records import Prediction
from service.domain.life.changes import ChangeInPlace, has_begun_to_end, prepare
from service.domain.life.commands import send_losses
from service.domain.life.expected_losses import has_other_losses
from service.domain.life.life import Launch, Life
from service.domain.life.starts import start_generation, vacate
from service.usecases.jobs.life import apply, load_life, load_waiting
from service.usecases.jobs.milestones import chosen_columns, due_milestone, keep_forecast
from service.usecases.jobs.search import changed_search, record_search
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.transactions import Transaction, Transactions
from service.usecases.rounds.views import change_view

PIECE = 10
"""Number of jobs that one transaction changes."""
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
    """Row and column of every job to which the plan gives slots."""

    def changes(self, decision: Decision) -> bool:
        """Return True if the decision, or a result of the round about the job, changes the job's row."""
        job = self.snapshot.jobs[decision.job_id]
        return (
            decision.action not in {Action.WAIT, Action.KEEP}
            or changed_search(self.plan.round, job) is not None
            or due_milestone(decision, job, self.columns.get(job.id)) is not None
            or has_other_losses(job, self.snapshot)
            or _waiting(job, decision, self.now) is not job
        )


async def apply_plan(
    transactions: Transactions,
    snapshot: Snapshot,
    plan: Plan,
    launch: Launch,
    round_id: str,
    now: Callable[[], datetime],
) -> tuple[list[RoundChange], list[Decision]]:
    """Apply the plan of a round.

    Return the changes, and the decisions that leave their jobs unchanged and are still to be stored.
    """
    applying = Applying(snapshot, plan, launch, round_id, now(), chosen_columns(plan))
    changing: list[Decision] = []
    others: list[Decision] = []
    for decision in plan.decisions:
        if applying.changes(decision):
            changing.append(decision)
        else:
            others.append(decision)
    # Decisions that free slots come before those that take them, and promises of these slots before both.
    changing.sort(key=lambda one: (one.promised is None, one.action not in {Action.VACATE, Action.CHANGE}))
    changes: list[RoundChange] = []
    for first in range(0, len(changing), PIECE):
        async with transactions.begin() as tx:
            applying = replace(applying, now=now())
            changes += await _apply_piece(tx, applying, changing[first : first + PIECE])
    return changes, others


async def _apply_piece(tx: Transaction, applying: Applying, piece: Sequence[Decision]) -> list[RoundChange]:
    jobs = await tx.jobs.lock_many(sorted(one.job_id for one in piece))
    unusable = await _unusable_slots(tx, piece)
    changes: list[RoundChange] = []
    decided: list[Decision] = []
    for decision in piece:
        job = jobs.get(decision.job_id)
        if job is None or not _unchanged(job, applying.snapshot.jobs[decision.job_id]):
            continue
        if await _apply_one(tx, applying, job, decision, unusable):
            changes.append(change_view(job, decision))
        decided.append(decision)
    await tx.rounds.store_decisions(decided, applying.round_id, applying.now)
    return changes


async def _apply_one(
    tx: Transaction, applying: Applying, locked: Job, decision: Decision, unusable: frozenset[SlotKey]
) -> bool:
    """Carry out a decision on a locked job. Return True if it changed the job's slots or batch.

    Otherwise only the round's other results about the job are saved: its search, forecast, reason to wait and
    expected losses.
    """
    plan, now = applying.plan, applying.now
    job = await record_search(tx, plan.round, locked, now)
    job = await keep_forecast(tx, plan, decision, job, applying.columns.get(job.id), now)
    if decision.kind_speeds:
        progress = job.progress.model_copy(update={"kind_speeds": dict(decision.kind_speeds)})
        job = replace(job, progress=progress)
    is_possible = decision.action not in _TAKES_SLOTS or unusable.isdisjoint(_slots(decision.allocation))
    if decision.action is Action.KEEP:
        is_possible = has_other_losses(job, applying.snapshot)
    after = await _carry_out(tx, applying, job, decision) if is_possible else None
    if after is not None:
        await apply(tx, locked, after)
        return decision.action is not Action.KEEP
    job = _waiting(job, decision, now)
    if job != locked:
        await tx.jobs.save(job)
        tx.wake(WakeUp.EVENTS, job.id)
    return False


def _waiting(job: Job, decision: Decision, now: datetime) -> Job:
    """Return the job with the reason, message and promised slots of a decision to wait; otherwise the job itself."""
    if decision.action is not Action.WAIT or job.state is not JobState.PENDING:
        return job
    job = with_promise(job, decision.promised, now, decision.stopped_for_it)
    if (job.reason, job.message) == (decision.reason, decision.message):
        return job
    return replace(job, reason=decision.reason, message=decision.message)


def _prediction(decision: Decision) -> Prediction | None:
    expected = decision.expected
    return None if expected is None else Prediction(expected.samples_per_s, expected.low, expected.high)


def _unchanged(job: Job, before: Job) -> bool:
    """Return True if nothing that the decision depends on has changed since the snapshot."""
    return (
        job.generation == before.generation
        and job.state is before.state
        and job.pinned_size == before.pinned_size
        and not job.pause_requested
    )


async def _carry_out(tx: Transaction, applying: Applying, job: Job, decision: Decision) -> Life | None:
    """Return the life of a job after a decision that changes it, or None if the decision does not apply."""
    launch, now, target = applying.launch, applying.now, decision.allocation
    match decision.action:
        case Action.START:
            if not await tx.grants.grant(job.id, job.newest_generation + 1, target, now):
                return None
            return start_generation(
                await load_waiting(tx, job, launch, now, granted=target),
                target,
                reason=decision.reason,
                message=decision.message,
                round_id=applying.round_id,
                predicted=_prediction(decision),
                global_batch=decision.global_batch,
                batch_effect=decision.batch_effect,
            )
        case Action.WAIT:
            return None
    life = await load_life(tx, job, launch, now, target=target)
    if has_begun_to_end(life):
        return None
    match decision.action:
        case Action.KEEP:
            return send_losses(life)
        case Action.ADAPT:
            return prepare(life, _change(applying, decision, job.allocation))
        case Action.CHANGE:
            return await _with_new_slots(
                tx, applying, _with_imposed_change(applying, life, decision), decision
            )
        case Action.VACATE:
            return vacate(
                _with_imposed_change(applying, life, decision),
                None,
                reason=decision.reason,
                message=decision.message,
            )


def _change(applying: Applying, decision: Decision, target: Allocation) -> ChangeInPlace:
    return ChangeInPlace(
        target=target,
        reason=decision.reason,
        message=decision.message,
        round_id=applying.round_id,
        global_batch=decision.global_batch,
        batch_effect=decision.batch_effect,
        predicted=_prediction(decision) if decision.action is Action.CHANGE else None,
    )


def _with_imposed_change(applying: Applying, life: Life, decision: Decision) -> Life:
    """Return the life, with the change counted in the job's record if it is imposed on the job."""
    if decision.reason not in IMPOSED:
        return life
    vacated = decision.action is Action.VACATE
    usual = applying.plan.round.scope.usual
    cost_s = restart_s(life.job, usual) if vacated else change_s(life.job, usual)
    stopped = vacated and decision.reason is Reason.PREEMPTED
    progress = with_imposed_change(life.job.progress, life.now, cost_s, stopped=stopped)
    return life.with_job(replace(life.job, progress=progress))


async def _with_new_slots(tx: Transaction, applying: Applying, life: Life, decision: Decision) -> Life | None:
    """Return the life after a change of the job's slots: in place if its ranks follow orders, else by a
    restart. Return None if the slots are not free any more.
    """
    job, target = life.job, decision.allocation
    newcomers = minus(target, job.allocation)
    if not await tx.grants.grant(job.id, job.newest_generation + 1, newcomers, life.now):
        return None
    life = life.with_grant(newcomers)
    in_place = prepare(life, _change(applying, decision, target)) if job.live else None
    return in_place or vacate(
        life, target, reason=decision.reason, message=decision.message, global_batch=decision.global_batch
    )


async def _unusable_slots(tx: Transaction, decisions: Sequence[Decision]) -> frozenset[SlotKey]:
    """Return slots that decisions need but that have become unusable since the snapshot.

    Their node is LOST, so no ranks would start there; or they are in quarantine, or their agent withholds
    them.
    """
    wanted = {key for one in decisions if one.action in _TAKES_SLOTS for key in _slots(one.allocation)}
    names = sorted({key.node_id for key in wanted})
    nodes = await tx.nodes.many(names)
    lost = {node.id for node in nodes.values() if node.state is NodeState.LOST}
    confined = {one.key for one in await tx.nodes.open_quarantines(names)} if names else set()
    confined |= {
        SlotKey(node.id, slot.index) for node in nodes.values() for slot in node.slots if slot.withheld
    }
    return frozenset(key for key in wanted if key.node_id in lost or key in confined)


def _slots(allocation: Allocation) -> set[SlotKey]:
    return {SlotKey(node, slot) for node, slots in allocation.items() for slot in slots}
