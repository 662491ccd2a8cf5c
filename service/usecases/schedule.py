"""One round: a snapshot, a decision, a guarded apply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from headway.contract.agents import NodeState
from headway.contract.decisions import RoundChange
from headway.contract.jobs import JobState
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.plan import Action, Decision, Plan, decide
from service.domain.allocation.round import build_round
from service.domain.allocation.steering import steered
from service.domain.cluster import PolicySetting, SlotKey, Snapshot
from service.domain.errors import InvalidField
from service.domain.jobs import Allocation, Job
from service.domain.membership import born
from service.domain.policies.policy import Policy
from service.domain.policies.registry import DEFAULT, policy
from service.usecases.generations import start_generation, vacate
from service.usecases.live import prepare
from service.usecases.marks import chosen_columns, keep_forecast, mark_to_keep
from service.usecases.nodes import finish_drain
from service.usecases.orders import Launch, crew_of
from service.usecases.ports import Transaction, Transactions
from service.usecases.records import Bell, DecisionRecord, Prediction
from service.usecases.round_views import change_view, round_view
from service.usecases.search import note_search, search_news

_TAKES_SLOTS = frozenset({Action.START, Action.CHANGE})
EXACT_UP_TO = 100
"""Jobs: so many are decided about without a gap."""
GAP = 1e-3


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round did. `stale` decisions met a job that had changed meanwhile, and were dropped."""

    applied: int
    stale: int
    waiting: int
    drained: int
    gap: float

    @property
    def did_something(self) -> bool:
        """Whether anything changed."""
        return bool(self.applied or self.stale or self.drained)


async def run_round(
    transactions: Transactions,
    launch: Launch,
    *,
    round_id: str,
    now: datetime,
    clock_s: Callable[[], float],
    usd_per_slot_h: Mapping[str, float] = MappingProxyType({}),
) -> RoundResult:
    """Decide on one picture of the cluster, then apply each decision if its job is still the same.

    `clock_s` measures how long the parts of the decision take; `usd_per_slot_h` are prices by device kind.
    """
    began_s = clock_s()
    async with transactions.begin() as tx:
        snapshot = await tx.decisions.snapshot(now, usd_per_slot_h)
    # Solving is pure computation: in a thread, so that the other loops go on.
    plan, state, times = await asyncio.to_thread(_think, snapshot, clock_s)
    async with transactions.begin() as tx:
        changes = await _apply(tx, snapshot, plan, launch, round_id, now)
        if plan.decisions:
            times = {**times, **plan.times, "took_s": clock_s() - began_s}
            await tx.decisions.record_round(round_view(plan, changes, round_id=round_id, times=times))
        if state != snapshot.policy_state:
            await tx.cluster_settings.carry_over(snapshot.policy, state, now)
    drained = []
    for node in snapshot.nodes.values():
        if node.state is NodeState.DRAINING:
            # Apart from the jobs: a report locks its node first and jobs then.
            async with transactions.begin() as tx:
                if await finish_drain(tx, node.id):
                    drained.append(node.name)
    waiting = sum(decision.action is Action.WAIT for decision in plan.decisions)
    return RoundResult(
        len(changes), len(plan.changes) - len(changes), waiting, len(drained), plan.solution.gap
    )


async def _apply(
    tx: Transaction, snapshot: Snapshot, plan: Plan, launch: Launch, round_id: str, now: datetime
) -> list[RoundChange]:
    columns = chosen_columns(plan)
    # Only these are locked: reports about all others need not wait for the round.
    touched = {one.job_id for one in plan.decisions if _touches(plan, one, snapshot, columns)}
    jobs = await tx.jobs.lock_many(sorted(touched))
    changes: list[RoundChange] = []
    told: list[DecisionRecord] = []
    gone = await _gone(tx, plan.changes)
    for decision in _leavers_first(plan.decisions):
        if decision.job_id in touched:
            job = jobs.get(decision.job_id)
            if job is None or not _unchanged(job, snapshot.jobs[decision.job_id]):
                continue
            job = await note_search(tx, plan.round, job, now)
            job = await keep_forecast(tx, plan, decision, job, columns.get(job.id), now)
            in_reach = decision.action not in _TAKES_SLOTS or gone.isdisjoint(_slots(decision.allocation))
            if in_reach and await _apply_decision(tx, job, decision, launch, round_id, now):
                changes.append(change_view(job, decision))
        told.append(
            DecisionRecord(
                job_id=decision.job_id,
                action=decision.action,
                reason=decision.reason,
                message=decision.message,
                options=decision.options,
            )
        )
    await tx.decisions.store(told, round_id, now)
    return changes


def _touches(
    plan: Plan, decision: Decision, snapshot: Snapshot, columns: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether the decision, or what the round found out on its way to it, changes the job."""
    job = snapshot.jobs[decision.job_id]
    if search_news(plan.round, job) or mark_to_keep(decision, job, columns.get(job.id)) is not None:
        return True
    if decision.action is Action.WAIT:
        return _says_why_it_waits(job, decision)
    return decision.action is not Action.KEEP


def _says_why_it_waits(job: Job, decision: Decision) -> bool:
    return job.state is JobState.PENDING and (job.reason, job.message) != (decision.reason, decision.message)


def _think(
    snapshot: Snapshot, clock_s: Callable[[], float]
) -> tuple[Plan, Mapping[str, Any], Mapping[str, float]]:
    """The plan, what the policy carries over to the next round, and the seconds that went before."""
    began_s = clock_s()
    round_ = build_round(snapshot)
    built_s = clock_s()
    follows, state = steered(chosen_policy(snapshot.policy), round_)
    gap = 0.0 if len(round_.jobs) <= EXACT_UP_TO else GAP
    plan = decide(round_, follows, partial(solve, gap=gap), clock_s=clock_s)
    return plan, state, {"tables_s": built_s - began_s}


def chosen_policy(setting: PolicySetting) -> Policy:
    """The policy of the cluster; the default where the setting is one that this version does not know."""
    try:
        return policy(setting.name, setting.parameters)
    except InvalidField:
        return policy(DEFAULT)


def _prediction(decision: Decision) -> Prediction | None:
    expected = decision.expected
    return None if expected is None else Prediction(expected.samples_per_s, expected.low, expected.high)


def _leavers_first(decisions: Sequence[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda one: one.action not in {Action.VACATE, Action.CHANGE})


def _unchanged(job: Job, seen: Job) -> bool:
    """The guard: nothing that the decision rests on has happened since the snapshot."""
    return (
        job.generation == seen.generation
        and job.state is seen.state
        and job.pinned_size == seen.pinned_size
        and not job.pause_requested
    )


async def _apply_decision(
    tx: Transaction, job: Job, decision: Decision, launch: Launch, round_id: str, now: datetime
) -> bool:
    """Whether something was changed."""
    reason, message = decision.reason, decision.message
    match decision.action:
        case Action.START:
            if not await tx.grants.grant(job.id, job.newest_generation + 1, decision.allocation, now):
                return False
            await start_generation(
                tx,
                job,
                decision.allocation,
                launch,
                reason=reason,
                message=message,
                now=now,
                round_id=round_id,
                predicted=_prediction(decision),
            )
            return True
        case Action.CHANGE | Action.VACATE | Action.ADAPT if await _has_begun_to_end(tx, job):
            return False
        case Action.CHANGE:
            return await _change(tx, job, decision, launch, round_id, now)
        case Action.ADAPT:
            return await prepare(
                tx,
                job,
                job.allocation,
                launch,
                reason=reason,
                message=message,
                now=now,
                round_id=round_id,
                global_batch=decision.global_batch,
            )
        case Action.VACATE:
            await vacate(tx, job, None, reason=reason, message=message, now=now)
            return True
        case Action.WAIT:
            if _says_why_it_waits(job, decision):
                await tx.jobs.save(replace(job, reason=reason, message=message))
                tx.ring(Bell.EVENTS, job.id)
            return False
        case Action.KEEP:
            return False


async def _change(
    tx: Transaction, job: Job, decision: Decision, launch: Launch, round_id: str, now: datetime
) -> bool:
    """Change the job's slots: in place if its ranks follow orders, else by a restart."""
    target, reason, message = decision.allocation, decision.reason, decision.message
    newcomers = _without(target, job.allocation)
    if not await tx.grants.grant(job.id, job.newest_generation + 1, newcomers, now):
        return False
    in_place = job.live and await prepare(
        tx,
        job,
        target,
        launch,
        reason=reason,
        message=message,
        now=now,
        round_id=round_id,
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
