"""Decision of a round: from a snapshot to the slots of every job, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from math import isfinite

import numpy as np

from headway.contract.views.jobs import Reason, SizeOption
from service.domain.allocation.configurations.eligibility import backs_off
from service.domain.allocation.decision.batches import (
    batch_on_new_slots,
    batch_on_same_slots,
    batch_text,
    counted_effect,
)
from service.domain.allocation.decision.crossing_texts import crossing_text
from service.domain.allocation.decision.deadline_texts import deadline_text
from service.domain.allocation.decision.explain import (
    Case,
    all_options,
    why_back_off,
    why_change,
    why_keep,
    why_later,
    why_less,
    why_put_off,
    why_start,
    why_vacate,
)
from service.domain.allocation.decision.guarantees import choose_within_guarantees
from service.domain.allocation.decision.length_texts import length_text
from service.domain.allocation.decision.parted_texts import why_parted
from service.domain.allocation.decision.quota_texts import why_at_quota
from service.domain.allocation.decision.reason_texts import ReasonText
from service.domain.allocation.decision.stuck_jobs import choose_without_stuck
from service.domain.allocation.decision.waiting import (
    WaitingFacts,
    small_budget_text,
    waiting_facts,
    why_unpaid,
    why_wait,
)
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import NOTHING, Solution, Solve
from service.domain.allocation.placement.cluster_layout import places_of
from service.domain.allocation.placement.pacing import OptionalChange, orders_of, put_off
from service.domain.allocation.placement.placed_speed import placed_share
from service.domain.allocation.placement.placement import Placement, PlacementStep
from service.domain.cluster.snapshot import Orders, SlotKey, Snapshot, allocation_of
from service.domain.jobs.first_step import awaits_first_step
from service.domain.jobs.job import Allocation, size_of
from service.domain.jobs.parallelism import lacks_memory
from service.domain.perf.mixed import expected_samples, mixes_of
from service.domain.policies.framework.policy import Choices, Policy


class Action(StrEnum):
    """Action of a round on a job."""

    START = "start"
    CHANGE = "change"
    """Continue on `allocation`: in place, or by stopping the running generation and starting the next one."""
    VACATE = "vacate"
    """Stop the running generation without a new grant."""
    ADAPT = "adapt"
    """Continue on the held slots with another global batch."""
    KEEP = "keep"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected samples per second on a new allocation, with the 10th and 90th percentile."""

    samples_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The action for one job, its reason, and the configurations that were compared."""

    job_id: str
    action: Action
    allocation: Allocation
    """Slots that the job is to hold; for KEEP and WAIT its present slots, or none."""
    reason: Reason
    message: str
    options: tuple[SizeOption, ...]
    expected: Expected | None = None
    """Expected speed, for START and CHANGE of a job with known speed; otherwise None."""
    global_batch: int | None = None
    """Global batch from then on, for ADAPT, and for START and CHANGE of a job that adapts it; None: as before."""
    batch_effect: float | None = None
    """Exponent by which ranks count their progress from then on, wherever `global_batch` is given."""
    kind_speeds: Mapping[str, float] = field(default_factory=dict)
    """Expected samples of a slot in a step by device kind, for slots of two kinds; otherwise empty."""
    starts_at: datetime | None = None
    """Expected start of a job that waits, if known."""
    promised: Allocation | None = None
    """Slots that others release for a waiting job, for WAIT; None without any."""
    stopped_for_it: tuple[str, ...] = ()
    """Ids of the jobs that this round stops for a job with promised slots."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions for all jobs that could be decided, with the proven quality of the choice."""

    decisions: tuple[Decision, ...]
    round: Round
    choices: Choices
    times: Mapping[str, float] = field(default_factory=dict)
    """Run times of the parts in seconds: `solve_s`, `place_s`."""

    @property
    def solution(self) -> Solution:
        """Solution of the allocation problem."""
        return self.choices.solution

    @property
    def changes(self) -> tuple[Decision, ...]:
        """Decisions other than to keep or to wait."""
        return tuple(one for one in self.decisions if one.action not in {Action.KEEP, Action.WAIT})


def decide(
    round_: Round, policy: Policy, solve: Solve, *, clock_s: Callable[[], float] = lambda: 0.0
) -> Plan:
    """Return the plan that the policy chooses.

    Jobs in transition (starting, stopping) keep what they hold. A change waits for a later round if it needs
    slots that other jobs are still leaving, or if nodes and service have no capacity for it now (`pacing`).
    `clock_s` measures run times.
    """
    snapshot = round_.snapshot
    began_s = clock_s()
    shared = choose_within_guarantees(round_.given, round_.tenancy, policy, round_.contest.solver(solve))
    solved_s = clock_s()
    placements = places_of(round_, [int(column) for column in shared.choices.chosen])
    shared, placements = choose_without_stuck(round_, policy, solve, shared, placements)
    choices = shared.choices
    chosen = [int(column) for column in choices.chosen]
    placed_s = clock_s()
    facts = waiting_facts(round_, choices, _left_over(snapshot, placements.values()))
    options = all_options(round_, choices)
    short_of_money = small_budget_text(policy)
    cases = [
        Case(round_, row, column, options[row], shared.given_up_for.get(row), choices.solution.gap)
        for row, column in enumerate(chosen)
    ]
    decided = [_with_outlook(case, _decide(case, placements, facts), short_of_money) for case in cases]
    decisions = _with_stopped(_paced(snapshot.orders, cases, decided, choices), placements)
    return Plan(
        tuple(_with_batch(case, one) for case, one in zip(cases, decisions, strict=True)),
        round_,
        choices,
        {"solve_s": solved_s - began_s, "place_s": placed_s - solved_s},
    )


def _with_outlook(case: Case, decision: Decision, short_of_money: str) -> Decision:
    """Return the decision with the outlook on the job's deadline, the levels that it crosses, and its usual length.

    `short_of_money` is said to jobs that wait for capacity.
    """
    texts = [deadline_text(case.round, case.row)]
    if decision.reason is Reason.WAITING_FOR_CAPACITY and decision.action is Action.WAIT:
        texts.append(short_of_money)
    if decision.action in {Action.START, Action.CHANGE, Action.KEEP}:
        texts.append(crossing_text(case.round, case.row, case.column, decision.allocation))
    if decision.reason in {Reason.WAITING_FOR_CAPACITY, Reason.ALLOCATED}:
        texts.append(length_text(case.round, case.row))
    return replace(decision, message="; ".join([decision.message, *filter(None, texts)]))


def _paced(
    orders: Orders, cases: Sequence[Case], decisions: Sequence[Decision], choices: Choices
) -> list[Decision]:
    """Return the decisions with optional changes postponed if there is no capacity for them now."""
    changes = [
        OptionalChange(case.row, gain, orders_of(_held(case), decision.allocation))
        for case, decision in zip(cases, decisions, strict=True)
        if decision.action is Action.CHANGE
        and decision.reason is Reason.BETTER_ALLOCATION
        and case.holding.whole
        and (gain := _own_gain(case, choices)) > 0
    ]
    paced = list(decisions)
    for row, until in put_off(changes, orders).items():
        case = cases[row]
        paced[row] = _decision(case, Action.KEEP, _held(case), why_put_off(case, until))
    return paced


def _with_stopped(decisions: Sequence[Decision], placements: Mapping[str, Placement]) -> list[Decision]:
    """Return the decisions in which jobs with promised slots name those that this round stops for them."""
    stopped = {
        one.job_id for one in decisions if one.action is Action.VACATE and one.reason is Reason.PREEMPTED
    }
    return [
        one
        if one.promised is None
        else replace(one, stopped_for_it=tuple(sorted(stopped & set(placements[one.job_id].waits_for))))
        for one in decisions
    ]


def _own_gain(case: Case, choices: Choices) -> float:
    """Return the worth of the change to the job itself; 0 if the change serves other jobs, which wait for it."""
    now = case.round.given.current[case.row]
    if now == NOTHING:
        return 0.0
    before, after = (float(choices.utility[case.row, column]) for column in (now, case.column))
    return after - before if isfinite(before) and isfinite(after) else 0.0


def _with_batch(case: Case, decision: Decision) -> Decision:
    """Return the decision with the job's global batch: planned for new slots, or measured on the present ones."""
    slots, present = size_of(decision.allocation), case.job.progress.global_batch
    if decision.action in {Action.START, Action.CHANGE}:
        planned = batch_on_new_slots(case, slots)
        if planned is None:
            return decision
        return replace(
            decision,
            global_batch=planned.global_batch,
            batch_effect=counted_effect(case),
            message=f"{decision.message}; {planned.reason}",
        )
    choice = batch_on_same_slots(case) if decision.action is Action.KEEP else None
    if choice is None or present is None:
        return decision
    if choice.global_batch == present:
        return replace(decision, message=f"{decision.message}; {batch_text(case, present, slots)}")
    return replace(
        decision,
        action=Action.ADAPT,
        global_batch=choice.global_batch,
        batch_effect=counted_effect(case),
        reason=Reason.BETTER_BATCH,
        message=f"takes {choice.global_batch:,} samples a step instead of {present:,}: {choice.reason}",
    )


def _decide(case: Case, placements: Mapping[str, Placement], facts: WaitingFacts) -> Decision:
    placement = placements.get(case.job.id)
    if placement is not None and placement.parted:
        return _decide_parted(case, placement)
    return _decide_job(case, placements, facts)


def _decide_job(case: Case, placements: Mapping[str, Placement], facts: WaitingFacts) -> Decision:
    job, holding = case.job, case.holding
    current = _held(case)
    placement = placements.get(job.id)
    if placement is None and holding.whole and case.column == case.round.given.current[case.row]:
        placement = Placement(allocation=current, step=PlacementStep.STAY)
    if case.column == NOTHING or placement is None or not placement.allocation:
        if holding.size:
            why = why_vacate(case, _heirs(case, placements))
            if why.reason is Reason.PREEMPTED:
                why = why_unpaid(case, facts) or why_at_quota(case.round, case.row, facts.quotas) or why
            return _decision(case, Action.VACATE, {}, why)
        return _decision(case, Action.WAIT, {}, why_wait(case, facts))
    waits = holding.whole and awaits_first_step(job, case.round.snapshot.now)
    if placement.allocation == current or waits:
        until = "its ranks have made their first step"
        why = why_keep(case) if placement.allocation == current else why_put_off(case, until)
        return _decision(case, Action.KEEP, current, why)
    if holding.size and backs_off(job, case.round.snapshot) and not _within(placement.allocation, current):
        rest = _survivors(case)
        if rest:
            return _decision(case, Action.CHANGE, rest, why_less(case, size_of(rest)))
        return _decision(case, Action.KEEP, current, why_back_off(case))
    if placement.step in {PlacementStep.WAIT, PlacementStep.YIELD}:
        return _later(case, placement, current)
    if holding.size:
        why = why_change(case, current, placement)
        return _decision(case, Action.CHANGE, placement.allocation, why)
    return _decision(case, Action.START, placement.allocation, why_start(case, placement.allocation))


def _heirs(case: Case, placements: Mapping[str, Placement]) -> list[int]:
    """Return the rows of the jobs that get slots which the job holds now."""
    jobs = enumerate(case.round.jobs)
    return [
        row
        for row, job in jobs
        if (one := placements.get(job.id)) is not None and case.job.id in one.waits_for
    ]


def _decide_parted(case: Case, placement: Placement) -> Decision:
    """Return the decision for a job that gets fewer slots than chosen, or none, because nodes cannot talk."""
    job, holding, current, why = case.job, case.holding, _held(case), why_parted(case, placement)
    stays = holding.whole and (
        awaits_first_step(job, case.round.snapshot.now) or backs_off(job, case.round.snapshot)
    )
    if current and (stays or placement.allocation == current):
        return _decision(case, Action.KEEP, current, why)
    if not placement.allocation:
        return _decision(case, Action.VACATE if current else Action.WAIT, {}, why)
    decision = _decision(case, Action.CHANGE if current else Action.START, placement.allocation, why)
    return replace(decision, expected=None, kind_speeds={})  # those of the chosen size


def _held(case: Case) -> Allocation:
    return allocation_of(case.round.snapshot.slots_held_by(case.job.id))


def _later(case: Case, placement: Placement, current: Allocation) -> Decision:
    """Return the decision for a job whose chosen slots are held by other jobs, or become free only when it
    releases its own.
    """
    why, holding, rest = why_later(case, placement), case.holding, _survivors(case)
    if rest:
        return _decision(case, Action.CHANGE, rest, why_less(case, size_of(rest)))
    if holding.whole and placement.step is PlacementStep.WAIT:
        return _decision(case, Action.KEEP, current, why)
    if holding.size:
        return _decision(case, Action.VACATE, {}, why)
    return replace(_decision(case, Action.WAIT, {}, why), promised=placement.allocation)


def _survivors(case: Case) -> Allocation:
    """Return the slots on which a live job that must leave a part of them can continue until its next ones
    are free.

    The result has the largest size that its job file allows, on few nodes. It is empty if the job need not,
    or cannot, do so.
    """
    job, holding = case.job, case.holding
    fitting = [size for size in job.sizes if size <= len(holding.keepable) and not lacks_memory(job, size)]
    if not job.live or holding.whole or not fitting:
        return {}
    of_nodes = sorted(allocation_of(holding.keepable).items(), key=lambda one: (-len(one[1]), one[0]))
    keys = [SlotKey(node, slot) for node, slots in of_nodes for slot in slots]
    return allocation_of(keys[: max(fitting)])


def _left_over(snapshot: Snapshot, placements: Iterable[Placement]) -> list[SlotKey]:
    """Return the free slots that the round gives to no job."""
    granted = {
        SlotKey(node, slot)
        for placement in placements
        for node, slots in placement.allocation.items()
        for slot in slots
    }
    return [key for key in snapshot.free if key not in granted]


def _within(allocation: Allocation, current: Allocation) -> bool:
    """Return True if an allocation has no slot beyond the current ones."""
    return all(set(slots) <= set(current.get(node, ())) for node, slots in allocation.items())


def _decision(case: Case, action: Action, allocation: Allocation, why: ReasonText) -> Decision:
    starts = action in {Action.START, Action.CHANGE}
    return Decision(
        job_id=case.job.id,
        action=action,
        allocation=allocation,
        reason=why.reason,
        message=why.message,
        starts_at=why.starts_at,
        options=case.options,
        expected=_expected(case, allocation) if starts else None,
        kind_speeds=_kind_speeds(case) if starts else {},
    )


def _kind_speeds(case: Case) -> dict[str, float]:
    """Return the expected samples of a slot in a step by device kind; empty for slots of one kind."""
    round_, row, by_kind = case.round, case.row, case.round.columns.by_kind
    models, column = round_.estimates.learned.models, case.column
    if column == NOTHING or models.shares is None or not by_kind.mixed[column]:
        return {}
    batch = round_.estimates.table.global_batch[row, column].astype(np.float64)
    (mixes,) = mixes_of(
        models.throughput[[row]], models.max_local[[row]], models.shares[[row]], by_kind, np.array([column])
    )
    samples = expected_samples(mixes, batch[None, None])
    speeds = {by_kind.kinds[kind]: float(one[0, 0]) for kind, one in zip(mixes.kinds, samples, strict=True)}
    return speeds if all(isfinite(one) and one > 0 for one in speeds.values()) else {}


def _expected(case: Case, allocation: Allocation) -> Expected | None:
    """Return the expected speed of a job on its new slots.

    The result is None for a job that adapts its batch, which may change on these slots.
    """
    round_, row, column = case.round, case.row, case.column
    table = round_.estimates.table
    if (
        not round_.estimates.known[row]
        or case.job.adapts
        or column == NOTHING
        or not table.efficiency[row, column] > 0
    ):
        return None
    share = placed_share(round_, row, column, allocation)
    return Expected(
        *(
            float(one[row, column] / table.efficiency[row, column]) * share
            for one in (table.goodput, table.low, table.high)
        )
    )
