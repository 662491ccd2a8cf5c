"""One round's decision: from a snapshot to what every job gets, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headway.contract.agents import NodeState
from headway.contract.jobs import Reason, SizeOption
from service.domain.allocation.configurations import (
    JobTable,
    backs_off,
    build_table,
    is_movable,
    is_waiting,
)
from service.domain.allocation.explain import (
    Sentence,
    why_back_off,
    why_change,
    why_keep,
    why_start,
    why_vacate,
    why_wait,
)
from service.domain.allocation.placement import place
from service.domain.allocation.problem import Configuration, Problem, Solution
from service.domain.allocation.solver import solve
from service.domain.cluster import SlotKey, Snapshot
from service.domain.jobs import Allocation
from service.domain.perf.batch import choose_batch


class Action(StrEnum):
    """What a round does with a job."""

    START = "start"
    CHANGE = "change"
    """Go on on `allocation`: in place, or by stopping the running generation and starting the next one."""
    VACATE = "vacate"
    """Stop the running generation; nothing is granted."""
    ADAPT = "adapt"
    """Go on on what it holds, with another global batch."""
    KEEP = "keep"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one job, why, and what it was weighed against."""

    job_id: str
    action: Action
    allocation: Allocation
    """What the job is to hold; for KEEP and WAIT what it holds now, or nothing."""
    reason: Reason
    message: str
    options: tuple[SizeOption, ...]
    global_batch: int | None = None
    """With ADAPT: what a step is to take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision for every job that could be decided, and how good the choice provably is."""

    decisions: tuple[Decision, ...]
    solution: Solution

    @property
    def changes(self) -> tuple[Decision, ...]:
        """The decisions that do something."""
        return tuple(one for one in self.decisions if one.action not in {Action.KEEP, Action.WAIT})


def decide(snapshot: Snapshot, *, time_limit_s: float) -> Plan:
    """The best allocation for the snapshot.

    Jobs that are on their way (starting, stopping) are left alone and keep what they hold. A change
    that needs slots which others are still leaving waits for a later round.
    """
    tables = {
        job.id: build_table(job, snapshot)
        for job in sorted(snapshot.jobs.values(), key=lambda job: (job.submitted_at, job.id))
        if is_waiting(job, snapshot) or is_movable(job, snapshot)
    }
    problem = Problem(
        configurations={job_id: table.rows for job_id, table in tables.items()},
        capacity=_shared_capacity(snapshot, tables),
        idle_utility={job_id: table.idle_utility for job_id, table in tables.items()},
    )
    solution = solve(problem, time_limit_s=time_limit_s)
    free = list(snapshot.free_slots())
    decisions = [
        _decide_job(snapshot, tables[job_id], solution.chosen[job_id], free)
        for job_id in _placing_order(tables, solution)
    ]
    return Plan(tuple(_with_batch(snapshot, one) for one in decisions), solution)


def _with_batch(snapshot: Snapshot, decision: Decision) -> Decision:
    """A job that keeps its slots may change its batch."""
    job = snapshot.jobs[decision.job_id]
    choice = choose_batch(job, snapshot) if decision.action is Action.KEEP else None
    if choice is None or choice.global_batch == job.progress.global_batch:
        return decision
    return replace(
        decision,
        action=Action.ADAPT,
        global_batch=choice.global_batch,
        reason=Reason.BETTER_BATCH,
        message=f"takes {choice.global_batch:,} samples a step instead of {job.progress.global_batch:,}: "
        f"{choice.reason}",
    )


def _shared_capacity(snapshot: Snapshot, tables: Mapping[str, JobTable]) -> dict[str, int]:
    """Slots per kind that the solver may hand out: free ones, and those of movable jobs on READY nodes."""
    capacity: Counter[str] = Counter()
    for key in snapshot.free_slots():
        capacity[snapshot.kind_of(key)] += 1
    for table in tables.values():
        for key in table.keepable:
            if snapshot.nodes[key.node_id].state is NodeState.READY:
                capacity[snapshot.kind_of(key)] += 1
    for table in tables.values():
        for row in table.rows:
            capacity.setdefault(row.device_kind, 0)
    return dict(capacity)


def _placing_order(tables: Mapping[str, JobTable], solution: Solution) -> list[str]:
    """Running jobs place first, since they keep slots; then larger choices; then the order of submits."""

    def key(job_id: str) -> tuple[bool, int]:
        chosen = solution.chosen[job_id]
        return (tables[job_id].current_size == 0, -(chosen.slots if chosen else 0))

    return sorted(tables, key=key)


def _decide_job(
    snapshot: Snapshot, table: JobTable, chosen: Configuration | None, free: list[SlotKey]
) -> Decision:
    job, held = table.job, table.current_size
    current = _current_allocation(snapshot, job.id)
    if chosen is None:
        if held:
            return _decision(table, Action.VACATE, {}, why_vacate(snapshot, table))
        return _decision(table, Action.WAIT, {}, why_wait(snapshot, table, free))
    same_kind = chosen.device_kind == table.current_kind
    keep = table.keepable if same_kind else ()
    if held and same_kind and chosen.slots == held == len(keep):
        return _decision(table, Action.KEEP, current, why_keep(table))
    kind_free = [key for key in free if snapshot.kind_of(key) == chosen.device_kind]
    allocation = place(chosen.slots, keep, kind_free)
    if held and allocation is not None and backs_off(job, snapshot) and not _within(allocation, current):
        return _decision(table, Action.KEEP, current, why_back_off(table))
    if allocation is None:
        sentence = Sentence(
            Reason.WAITING_FOR_CAPACITY,
            f"gets {chosen.slots} {chosen.device_kind} slots as soon as other jobs have left them",
        )
        if held and len(keep) == held:
            return _decision(table, Action.KEEP, current, sentence)
        action = Action.VACATE if held else Action.WAIT
        return _decision(table, action, {}, sentence)
    for node, slots in allocation.items():
        for slot in slots:
            if SlotKey(node, slot) in free:
                free.remove(SlotKey(node, slot))
    if held:
        return _decision(table, Action.CHANGE, allocation, why_change(snapshot, table, chosen))
    return _decision(table, Action.START, allocation, why_start(snapshot, table, chosen, allocation))


def _within(allocation: Allocation, current: Allocation) -> bool:
    """Whether an allocation takes no slot beyond the current ones."""
    return all(set(slots) <= set(current.get(node, ())) for node, slots in allocation.items())


def _current_allocation(snapshot: Snapshot, job_id: str) -> Allocation:
    allocation: dict[str, tuple[int, ...]] = {}
    for key in snapshot.slots_held_by(job_id):
        allocation[key.node_id] = (*allocation.get(key.node_id, ()), key.slot)
    return allocation


def _decision(table: JobTable, action: Action, allocation: Allocation, why: Sentence) -> Decision:
    return Decision(
        job_id=table.job.id,
        action=action,
        allocation=allocation,
        reason=why.reason,
        message=why.message,
        options=table.options,
    )
