"""Caps on dollars per hour, what a job may spend, and deadlines: what they forbid, and what they never do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.spec import Resize
from headway.contract.views.jobs import JobProgress, Reason
from service.domain.allocation.decision.plan import Action, Plan, decide
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Cap, Limit, Snapshot
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.builders import NOW, clusters, snapshot_of
from tests.unit.service.domain.cluster.test_pools import (
    FIRM,
    SPEEDS,
    SPOT,
    decided,
    firm,
    mixed,
    offered,
    parts_in,
    running,
    spot,
)

ON_DEMAND = {"market": "on-demand"}
ONE_SIZE = {"fifo", "las", "srtf", "gavel", "shockwave"}
"""Policies that know one size for each job."""
TEAM = Cap("team", "team", 8.0)


def planned(snapshot: Snapshot, name: str = "goodput") -> Plan:
    return decide(build_round(snapshot), policy(name), solve)


def crowd(*caps: Cap, sizes: tuple[int, ...] = (4, 2), project: str = "team") -> Snapshot:
    """Jobs that run on slots of $1 an hour, and could have more."""
    jobs = [running(f"j{index}", spec={**ON_DEMAND, "project": project}) for index in range(len(sizes))]
    slots = [("f", slot) for slot in range(sum(sizes))]
    held = {job.id: [slots.pop() for _ in range(size)] for job, size in zip(jobs, sizes, strict=True)}
    measured = {job.id: SPEEDS[:8] for job in jobs}
    return replace(snapshot_of([firm("f", 16, usd=1.0)], jobs, held, measured), caps=caps)


def usd_per_h(plan: Plan) -> float:
    columns = plan.choices.chosen
    return float(plan.round.given.configurations.usd_per_h[columns[columns != NOTHING]].sum())


@pytest.mark.parametrize("name", POLICIES)
def test_a_cap_bounds_what_all_take_together(name: str) -> None:
    assert usd_per_h(planned(crowd(TEAM), name)) <= 8.0
    assert usd_per_h(planned(crowd(Cap("all", None, 3.0)), name)) <= 3.0


def test_a_cap_has_a_price() -> None:
    plan = planned(crowd(TEAM))
    prices = dict(
        zip((row.name for row in plan.round.given.rows), plan.solution.prices.tolist(), strict=True)
    )
    assert prices["budget/team"] > 0
    assert prices["slots/a100"] == 0


def test_a_cap_is_for_the_jobs_of_its_project() -> None:
    free, bound = (usd_per_h(planned(crowd(Cap("cap", project, 2.0)))) for project in ("other", "team"))
    assert bound <= 2.0 < free


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - ONE_SIZE))
def test_a_cap_makes_jobs_smaller_before_it_stops_one(name: str) -> None:
    snapshot = crowd(Cap("all", None, 3.0), sizes=(4, 3, 2))
    plan = planned(snapshot, name)
    assert all(one.allocation for one in plan.decisions)
    assert usd_per_h(plan) == 3.0


def test_only_a_cap_that_cannot_be_met_otherwise_stops_a_job() -> None:
    plan = planned(crowd(Cap("all", None, 2.0), sizes=(2, 2, 2)))
    assert sum(bool(one.allocation) for one in plan.decisions) == 2
    (stopped,) = [one for one in plan.decisions if not one.allocation]
    assert (stopped.action, stopped.reason) == (Action.VACATE, Reason.BUDGET)
    assert "budget all ($2.00 an hour) has $0.00 left" in stopped.message
    assert not any(one.allocation for one in planned(crowd(Cap("all", None, 0.0))).decisions)


def test_spending_that_no_round_can_change_counts_first() -> None:
    snapshot = crowd(Cap("all", None, 5.0))
    rigid = snapshot.jobs["j0"]
    elastic = rigid.spec.elastic.model_copy(update={"resize": Resize.NEVER})
    rigid = replace(rigid, spec=rigid.spec.model_copy(update={"elastic": elastic}))
    plan = planned(replace(snapshot, jobs={**snapshot.jobs, "j0": rigid}))
    row = next(row for row in plan.round.given.rows if row.name == "budget/all")
    assert row.capacity == 1.0
    assert usd_per_h(plan) == 1.0


def test_who_waits_for_dollars_is_told_so() -> None:
    late = mixed("late", spec=ON_DEMAND)
    snapshot = crowd(Cap("all", None, 1.5), sizes=(1,))
    one = decided(replace(snapshot, jobs={**snapshot.jobs, "late": late}))["late"]
    assert (one.action, one.reason) == (Action.WAIT, Reason.BUDGET)
    assert one.message == ("costs at least $1.00 an hour, but budget all ($1.50 an hour) has $0.50 left")


def spender(
    left_usd: float, on_budget: Any = "shrink", total: int | None = 360_000, **fields: Any
) -> Snapshot:
    """A job on four slots of $1 an hour that trains 348 samples a second, and has 360,000 to do: $1.15."""
    progress = JobProgress(total_samples=total)
    job = running(high=4, progress=progress, spec=ON_DEMAND, **fields)
    held = {"j": [("f", slot) for slot in range(4)]}
    snapshot = snapshot_of([firm("f", 4, usd=1.0)], [job], held, {"j": SPEEDS[:4]})
    return replace(snapshot, limits={"j": Limit(left_usd, on_budget)})


def test_a_job_shrinks_to_what_it_can_pay() -> None:
    assert decided(spender(1.2))["j"].action is Action.KEEP
    one = decided(spender(1.12))["j"]
    assert (one.action, one.reason) == (Action.CHANGE, Reason.BUDGET)
    assert sum(map(len, one.allocation.values())) < 4
    assert "it may still spend $1.12" in one.message


def test_nothing_is_cheap_enough_then_the_cheapest_stays() -> None:
    assert [sum(one) for one in offered(build_round(spender(0.1)))] == [1]
    assert sum(map(len, decided(spender(-5.0))["j"].allocation.values())) == 1


@pytest.mark.parametrize("on_budget", ["pause", "stop"])
def test_who_is_to_stop_at_the_limit_goes_on_until_then(on_budget: str) -> None:
    assert decided(spender(0.1, on_budget))["j"].action is Action.KEEP


def test_job_without_an_end_has_no_known_cost_and_goes_on() -> None:
    assert decided(spender(0.001, total=None))["j"].action is Action.KEEP


def test_a_job_that_is_over_budget_and_cannot_move_stays() -> None:
    """New ranks do not come up, and it may not be smaller."""
    snapshot = spender(0.1, low=4, grow_after=NOW + timedelta(seconds=9))
    assert decided(snapshot)["j"].action is Action.KEEP


def hurried(left_s: float, *, at: str = "spot", room: int = 4, total: int | None = 100_000) -> Snapshot:
    """A job that takes both markets and needs about 290 s on four slots. `at`: where it runs now."""
    goal = {"deadline": NOW + timedelta(seconds=left_s)}
    job = running(
        low=4, high=4, spec={"goal": goal, "market": "mixed"}, progress=JobProgress(total_samples=total)
    )
    held = {"j": [(at, slot) for slot in range(4)]}
    nodes = [firm("firm", room, usd=4.0), spot("spot", 4, usd=1.0)]
    return snapshot_of(nodes, [job], held, {"j": SPEEDS[:4]})


def test_a_deadline_moves_a_job_to_machines_that_stay() -> None:
    assert decided(hurried(3600))["j"].action is Action.KEEP
    one = decided(hurried(292))["j"]
    assert (one.action, one.reason) == (Action.CHANGE, Reason.DEADLINE)
    assert parts_in(hurried(292), one) == {FIRM: 4}
    assert "no time is left before its deadline" in one.message
    assert "to lose a spot machine" in one.message


def test_it_goes_back_only_with_time_for_both_ways() -> None:
    """It saves money on spot, and would if it had the time."""
    assert parts_in(hurried(3600, at="firm"), decided(hurried(3600, at="firm"))["j"])[SPOT] >= 3
    one = decided(hurried(292, at="firm"))["j"]
    assert one.action is Action.KEEP
    notes = build_round(hurried(292, at="firm")).notes.codes[0]
    assert Note.DEADLINE in notes


@pytest.mark.parametrize("fields", [{"room": 3}, {"total": None}])
def test_a_deadline_leaves_a_job_where_it_is_if_there_is_nothing_better(fields: dict[str, Any]) -> None:
    assert decided(hurried(292, **fields))["j"].action is Action.KEEP


def test_a_job_that_is_late_and_waits_takes_spot_slots_if_no_others_are_there() -> None:
    goal = {"deadline": (NOW + timedelta(seconds=1)).isoformat()}
    job = mixed("j", 2, 2, spec={"goal": goal}, progress=JobProgress(total_samples=10**6))
    shown = {"default/j": SPEEDS[:2]}
    for room, pool in ((2, FIRM), (1, SPOT)):
        snapshot = snapshot_of([firm("firm", room), spot("spot", 2)], [job])
        snapshot = replace(snapshot, class_measurements=shown)
        one = decided(snapshot)["j"]
        assert one.action is Action.START
        assert parts_in(snapshot, one)[pool] >= 1
        assert (parts_in(snapshot, one)[SPOT] == 0) == (pool == FIRM)


@given(clusters(), st.sampled_from(["goodput", "budget", "srtf"]))
@settings(max_examples=25)
def test_no_cap_is_exceeded_and_no_row_is_forgotten(snapshot: Snapshot, name: str) -> None:
    plan = planned(snapshot, name)
    chosen = plan.choices.chosen
    for row in plan.round.given.rows:
        counts = chosen != NOTHING
        if row.jobs is not None:
            counts &= row.jobs
        assert row.demand[chosen[counts]].sum() <= row.capacity + 1e-6
    assert plan.solution.bound >= plan.solution.objective - 1e-6
