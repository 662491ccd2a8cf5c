"""One round's decision: from a snapshot to what every job gets, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite

from headway.contract.jobs import Reason, SizeOption
from service.domain.allocation.eligibility import backs_off
from service.domain.allocation.explain import (
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
from service.domain.allocation.guarantees import choose_within_guarantees
from service.domain.allocation.knapsack.problem import NOTHING, Solution, Solve
from service.domain.allocation.lending import why_at_quota
from service.domain.allocation.pacing import Wish, orders_of, put_off
from service.domain.allocation.placement import Placement, Step
from service.domain.allocation.places import places_of
from service.domain.allocation.round import Round
from service.domain.allocation.sentences import Sentence
from service.domain.allocation.waiting import Census, census_of, why_unpaid, why_wait
from service.domain.cluster import Orders, SlotKey, Snapshot, allocation_of
from service.domain.jobs import Allocation, size_of
from service.domain.perf.batch import choose_batch
from service.domain.policies.policy import Choices, Policy


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


@dataclass(frozen=True, slots=True)
class Expected:
    """Samples per second that a new allocation is expected to give, with P10 and P90."""

    samples_per_s: float
    low: float
    high: float


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
    expected: Expected | None = None
    """With START and CHANGE, where something is known of the job."""
    global_batch: int | None = None
    """With ADAPT: what a step is to take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision for every job that could be decided, and how good the choice provably is."""

    decisions: tuple[Decision, ...]
    round: Round
    choices: Choices
    times: Mapping[str, float] = field(default_factory=dict)
    """Seconds of its parts: `solve_s`, `place_s`."""

    @property
    def solution(self) -> Solution:
        """What the solver said."""
        return self.choices.solution

    @property
    def changes(self) -> tuple[Decision, ...]:
        """The decisions that do something."""
        return tuple(one for one in self.decisions if one.action not in {Action.KEEP, Action.WAIT})


def decide(
    round_: Round, policy: Policy, solve: Solve, *, clock_s: Callable[[], float] = lambda: 0.0
) -> Plan:
    """The allocation that the policy chooses.

    Jobs that are on their way (starting, stopping) are left alone and keep what they hold. A change that needs slots
    which others are still leaving, or for which nodes and service have no room now (`pacing`), waits for a later round.
    `clock_s` measures how long it takes.
    """
    snapshot = round_.snapshot
    began_s = clock_s()
    shared = choose_within_guarantees(round_, policy, solve)
    choices = shared.choices
    solved_s = clock_s()
    chosen = [int(column) for column in choices.chosen]
    placements = places_of(round_, chosen)
    placed_s = clock_s()
    census = census_of(round_, choices, _left_over(snapshot, placements.values()))
    options = all_options(round_, choices)
    cases = [
        Case(round_, row, column, options[row], shared.given_up_for.get(row))
        for row, column in enumerate(chosen)
    ]
    decided = [_decide_job(case, placements, census) for case in cases]
    decisions = _paced(snapshot.orders, cases, decided, choices)
    return Plan(
        tuple(_with_batch(snapshot, one) for one in decisions),
        round_,
        choices,
        {"solve_s": solved_s - began_s, "place_s": placed_s - solved_s},
    )


def _paced(
    orders: Orders, cases: Sequence[Case], decisions: Sequence[Decision], choices: Choices
) -> list[Decision]:
    """The decisions, with those changes put off that are for their own job's sake and for which there is no room now."""
    wishes = [
        Wish(case.row, gain, orders_of(_held(case), decision.allocation))
        for case, decision in zip(cases, decisions, strict=True)
        if decision.action is Action.CHANGE
        and decision.reason is Reason.BETTER_ALLOCATION
        and case.holding.whole
        and (gain := _own_gain(case, choices)) > 0
    ]
    paced = list(decisions)
    for row, until in put_off(wishes, orders).items():
        case = cases[row]
        paced[row] = _decision(case, Action.KEEP, _held(case), why_put_off(case, until))
    return paced


def _own_gain(case: Case, choices: Choices) -> float:
    """What the change is worth to the job itself; 0 where it is made for others, who wait for it."""
    now = case.round.given.current[case.row]
    if now == NOTHING:
        return 0.0
    before, after = (float(choices.utility[case.row, column]) for column in (now, case.column))
    return after - before if isfinite(before) and isfinite(after) else 0.0


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


def _decide_job(case: Case, placements: Mapping[str, Placement], census: Census) -> Decision:
    job, holding = case.job, case.holding
    current = _held(case)
    placement = placements.get(job.id)
    if placement is None and holding.whole and case.column == case.round.given.current[case.row]:
        placement = Placement(allocation=current, step=Step.STAY)
    if case.column == NOTHING or placement is None or not placement.allocation:
        if holding.size:
            why = why_vacate(case)
            if why.reason is Reason.PREEMPTED:
                why = why_unpaid(case, census) or why_at_quota(case.round, case.row, census.chosen) or why
            return _decision(case, Action.VACATE, {}, why)
        return _decision(case, Action.WAIT, {}, why_wait(case, census))
    if placement.allocation == current:
        return _decision(case, Action.KEEP, current, why_keep(case))
    if holding.size and backs_off(job, case.round.snapshot) and not _within(placement.allocation, current):
        rest = _survivors(case)
        if rest:
            return _decision(case, Action.CHANGE, rest, why_less(case, size_of(rest)))
        return _decision(case, Action.KEEP, current, why_back_off(case))
    if placement.step in {Step.WAIT, Step.YIELD}:
        return _later(case, placement, current)
    if holding.size:
        why = why_change(case, current, placement)
        return _decision(case, Action.CHANGE, placement.allocation, why)
    return _decision(case, Action.START, placement.allocation, why_start(case, placement.allocation))


def _held(case: Case) -> Allocation:
    return allocation_of(case.round.snapshot.slots_held_by(case.job.id))


def _later(case: Case, placement: Placement, current: Allocation) -> Decision:
    """What is chosen is not free yet, or never will be while the job holds what it has."""
    why, holding, rest = why_later(case, placement), case.holding, _survivors(case)
    if rest:
        return _decision(case, Action.CHANGE, rest, why_less(case, size_of(rest)))
    if holding.whole and placement.step is Step.WAIT:
        return _decision(case, Action.KEEP, current, why)
    return _decision(case, Action.VACATE if holding.size else Action.WAIT, {}, why)


def _survivors(case: Case) -> Allocation:
    """What a job can go on with in place that must leave a part of its slots, while its next place is not free: of the
    sizes that its job file allows the largest, on few nodes. Empty where it need not, or cannot.
    """
    job, holding = case.job, case.holding
    fitting = [size for size in job.sizes if size <= len(holding.keepable)]
    if not job.live or holding.whole or not fitting:
        return {}
    of_nodes = sorted(allocation_of(holding.keepable).items(), key=lambda one: (-len(one[1]), one[0]))
    keys = [SlotKey(node, slot) for node, slots in of_nodes for slot in slots]
    return allocation_of(keys[: max(fitting)])


def _left_over(snapshot: Snapshot, placements: Iterable[Placement]) -> list[SlotKey]:
    """The free slots that the round gives to nobody."""
    given = {
        SlotKey(node, slot)
        for placement in placements
        for node, slots in placement.allocation.items()
        for slot in slots
    }
    return [key for key in snapshot.free if key not in given]


def _within(allocation: Allocation, current: Allocation) -> bool:
    """Whether an allocation takes no slot beyond the current ones."""
    return all(set(slots) <= set(current.get(node, ())) for node, slots in allocation.items())


def _decision(case: Case, action: Action, allocation: Allocation, why: Sentence) -> Decision:
    starts = action in {Action.START, Action.CHANGE}
    return Decision(
        job_id=case.job.id,
        action=action,
        allocation=allocation,
        reason=why.reason,
        message=why.message,
        options=case.options,
        expected=_expected(case) if starts else None,
    )


def _expected(case: Case) -> Expected | None:
    """The plain speed of what a job gets. Of one that adapts its batch nothing is said: its batch is chosen later."""
    round_, row, column = case.round, case.row, case.column
    known = round_.learned.measured[row] or round_.learned.related[row]
    table = round_.table
    if not known or case.job.adapts or column == NOTHING or not table.efficiency[row, column] > 0:
        return None
    return Expected(
        *(
            float(one[row, column] / table.efficiency[row, column])
            for one in (table.goodput, table.low, table.high)
        )
    )
