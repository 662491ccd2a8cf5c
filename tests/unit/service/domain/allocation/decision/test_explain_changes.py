"""Reasons of changes and stops: faults, requests, gains, money, deadlines, guarantees and waiting jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.agents import NodeState
from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import JobProgress, Reason
from service.domain.allocation.decision.explain import (
    why_back_off,
    why_change,
    why_less,
    why_vacate,
)
from service.domain.allocation.decision.plan import Action, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement.placement import Placement, PlacementStep
from service.domain.cluster.snapshot import Cap, Limit, Measurement, Snapshot, Tenant
from service.domain.jobs.job import size_of
from service.domain.policies.registry import policy
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of
from tests.unit.service.domain.allocation.scopes import (
    RUNNING,
    case_of,
    elastic_job,
    on,
    running_alone,
    speeds,
    spot,
)

STAYS = {"n": (0, 1)}


def moved(to: dict[str, tuple[int, ...]], **fields: Any) -> Placement:
    return Placement(allocation=to, step=PlacementStep.GO, **fields)


@pytest.mark.parametrize(
    ("state", "fields", "reason"),
    [
        (NodeState.DRAINING, {}, Reason.NODE_DRAINED),
        (NodeState.READY, {"reclaim_at": NOW + timedelta(seconds=90)}, Reason.SPOT_RECLAIMED),
        (NodeState.READY, {"slots": {0: "cpu"}}, Reason.BAD_DEVICE),
        (NodeState.READY, {"slots": {0: "cpu"}, "quarantined": {1: "Xid 79"}}, Reason.BAD_DEVICE),
    ],
)
def test_a_job_that_cannot_keep_its_slots_has_the_fault_as_its_reason(
    state: NodeState, fields: dict[str, Any], reason: Reason
) -> None:
    nodes = (replace(node_of("n", 2, state=state), **fields), node_of("m", 4))
    case = case_of(running_alone(2, nodes, high=2), size=2)
    change = why_change(case, STAYS, moved({"m": (0, 1)}))
    vacated, less = why_vacate(case), why_less(case, 1)
    assert {one.reason for one in (change, vacated, less)} == {reason}
    assert all("name-of-n" in one.message for one in (change, vacated, less))
    if "reclaim_at" in fields:
        assert "12:01:30 UTC" in change.message
    if "quarantined" in fields:
        assert "slot 1 of name-of-n" in change.message
        assert "Xid 79" in change.message


def test_several_bad_slots_are_counted_and_several_nodes_named() -> None:
    confined = replace(node_of("n", 4), slots={0: "cpu"}, quarantined={1: "Xid 79", 2: "Xid 48", 3: "Xid 48"})
    case = case_of(running_alone(4, (confined, node_of("m", 4)), high=4), size=4)
    assert "(and 2 more slots)" in why_change(case, {"n": (0, 1, 2, 3)}, moved({"m": (0, 1, 2, 3)})).message
    nodes = (
        node_of("a", 1, state=NodeState.DRAINING),
        node_of("b", 1, state=NodeState.DRAINING),
        node_of("m", 4),
    )
    job = elastic_job(state=RUNNING, high=2)
    case = case_of(snapshot_of(nodes, [job], {"j": [*on("a", 0), *on("b", 0)]}), size=2)
    assert "name-of-a, name-of-b" in why_vacate(case).message


def test_the_earliest_reclaim_counts() -> None:
    nodes = [
        node_of("a", 1, reclaim_at=NOW + timedelta(seconds=120)),
        node_of("b", 1, reclaim_at=NOW + timedelta(seconds=60)),
        node_of("m", 4),
    ]
    job = elastic_job(state=RUNNING, high=2)
    case = case_of(snapshot_of(nodes, [job], {"j": [*on("a", 0), *on("b", 0)]}), size=2)
    assert "12:01:00 UTC" in why_vacate(case).message


def test_a_size_by_request_and_a_left_over_size() -> None:
    asked = case_of(running_alone(2, pinned_size=4), size=4)
    assert why_change(asked, STAYS, moved({"n": (0, 1, 2, 3)})).reason is Reason.USER_REQUEST
    left = case_of(running_alone(3, points=speeds((4, 100.0)), low=4, live=True), size=4)
    why = why_change(left, {"n": (0, 1, 2)}, moved({"n": (0, 1, 2, 3)}))
    assert why.reason is Reason.BETTER_ALLOCATION
    assert "from 3 cpu slots to 4 cpu slots" in why.message
    assert "job file" in why.message
    vacated = why_vacate(left)
    assert vacated.reason is Reason.WAITING_FOR_CAPACITY
    assert "3 cpu slots" in vacated.message


def test_growth_has_both_speeds_and_whether_the_larger_was_measured() -> None:
    growing = running_alone(2, points=speeds((2, 190.0), (4, 360.0)))
    text = why_change(case_of(growing, size=4), STAYS, moved({"n": (0, 1, 2, 3)})).message
    assert "190 -> 360 samples/s measured" in text
    guess = why_change(case_of(growing, size=3), STAYS, moved({"n": (0, 1, 2)})).message
    assert guess.endswith("expected")


def test_without_a_known_speed_growth_is_a_ratio() -> None:
    silent = running_alone(2, live=True, age_s=600.0)
    text = why_change(case_of(silent, size=4), STAYS, moved({"n": (0, 1, 2, 3)})).message
    assert "times the speed" in text


def test_a_move_of_the_same_size_names_the_nodes_and_the_job_that_gets_the_slots() -> None:
    jobs = [
        elastic_job(state=RUNNING, high=2),
        elastic_job("next", 1, 1, age_s=1.0),
        elastic_job("theirs", 1, 1, project="q"),
    ]
    snapshot = snapshot_of([node_of("n", 2), node_of("m", 2)], jobs, {"j": on("n", 0, 1)})
    row = [job.id for job in build_round(snapshot).jobs].index("j")
    case = case_of(snapshot, row, size=2)
    texts = {
        heir: why_change(case, STAYS, moved({"m": (0, 1)}, makes_room_for=heir)).message
        for heir in ("", "next", "theirs")
    }
    assert all("name-of-n to name-of-m" in text for text in texts.values())
    assert "next" in texts["next"]
    assert "theirs" not in texts["theirs"]
    assert "another project" in texts["theirs"]


def limited(left_usd: float) -> Snapshot:
    nodes = (node_of("n", 8, usd_per_slot_h=1.0),)
    points = speeds((1, 10.0), (2, 18.0), (4, 30.0))
    progress = JobProgress(samples=0, total_samples=36_000)
    return replace(running_alone(4, nodes, points, high=4, progress=progress), limits={"j": Limit(left_usd)})


def test_a_change_for_money_has_both_costs_and_the_limit() -> None:
    """36,000 samples at 30 a second take 20 minutes on four slots: 1.33 $; at 10 a second an hour on one: 1.00 $."""
    case = case_of(limited(1.2), size=1)
    why = why_change(case, {"n": (0, 1, 2, 3)}, moved({"n": (0,)}))
    assert why.reason is Reason.BUDGET
    assert "$1.20" in why.message
    costs = [float(word.strip("$;")) for word in why.message.split() if word.startswith("$")]
    assert costs[0] == pytest.approx(1.0, abs=0.05)
    assert costs[1] == pytest.approx(1.33, abs=0.08)
    assert why_change(case_of(limited(99.0), size=1), {"n": (0, 1, 2, 3)}, moved({"n": (0,)})).reason is (
        Reason.BETTER_ALLOCATION
    )


def test_a_change_for_a_deadline_names_it() -> None:
    nodes = (node_of("f", 4), spot("s", 2))
    job = elastic_job(
        state=RUNNING,
        high=2,
        market="mixed",
        live=True,
        goal={"deadline": NOW + timedelta(seconds=350)},
        progress=JobProgress(samples=0, total_samples=36_000),
    )
    points = {"j": speeds((1, 50.0), (2, 100.0))}
    case = case_of(snapshot_of(nodes, [job], {"j": on("s", 0, 1)}, points), size=2)
    why = why_change(case, {"s": (0, 1)}, moved({"f": (0, 1)}))
    assert why.reason is Reason.DEADLINE
    assert "2026-11-01 12:05" in why.message


def test_a_shrink_makes_room_for_waiting_minimums() -> None:
    wide = elastic_job("wide", high=4, state=RUNNING)
    late = elastic_job("late", 1, 1, age_s=1.0)
    snapshot = snapshot_of(
        [node_of("n", 4)], [wide, late], {"wide": on("n", 0, 1, 2, 3)}, {"wide": speeds((4, 300.0))}
    )
    text = why_change(case_of(snapshot, 0, size=2), {"n": (0, 1, 2, 3)}, moved({"n": (0, 1)})).message
    assert "late" in text
    alone = replace(snapshot, jobs={"wide": snapshot.jobs["wide"]})
    other = why_change(case_of(alone, 0, size=2), {"n": (0, 1, 2, 3)}, moved({"n": (0, 1)})).message
    assert "late" not in other


def claimed() -> Snapshot:
    borrower = elastic_job("b", high=8, state=RUNNING, project="b", live=True)
    own = elastic_job("own", high=4, project="a", age_s=1.0)
    snapshot = snapshot_of([node_of("n", 8)], [borrower, own], {"b": on("n", *range(8))})
    return replace(snapshot, projects={"a": Tenant(ProjectQuota(slots=4))})


def test_a_guarantee_is_the_reason_of_a_shrink_and_of_a_stop() -> None:
    (claim,) = build_round(claimed()).tenancy.claims
    case = case_of(claimed(), 0, size=4, given_up_for=claim)
    shrinks = why_change(case, {"n": tuple(range(8))}, moved({"n": (0, 1, 2, 3)}))
    stops = why_vacate(case_of(claimed(), 0, given_up_for=claim))
    assert (shrinks.reason, stops.reason) == (Reason.BETTER_ALLOCATION, Reason.PREEMPTED)
    for why in (shrinks, stops):
        assert "4 slots" in why.message
        assert "own" not in why.message


def test_a_lowered_maximum_is_the_reason_of_a_shrink() -> None:
    snapshot = replace(
        running_alone(4, points=speeds((4, 300.0))), projects={"default": Tenant(ProjectQuota(max_slots=2))}
    )
    text = why_change(case_of(snapshot, size=2), {"n": (0, 1, 2, 3)}, moved(STAYS)).message
    assert "4 slots" in text
    assert "maximum of 2" in text


@pytest.mark.parametrize(
    ("usd_per_h", "project", "reason", "part"),
    [
        (0.0, None, Reason.BUDGET, "is spent"),
        (1.5, None, Reason.BUDGET, "$1.50"),
        (1.5, "default", Reason.BUDGET, "$2.00"),
        (1.5, "other", Reason.PREEMPTED, "gain more"),
        (2.0, None, Reason.PREEMPTED, "gain more"),
    ],
)
def test_a_budget_that_does_not_pay_for_the_present_slots(
    usd_per_h: float, project: str | None, reason: Reason, part: str
) -> None:
    snapshot = running_alone(2, (node_of("n", 4, usd_per_slot_h=1.0),), speeds((2, 100.0)), high=2)
    why = why_vacate(case_of(replace(snapshot, caps=(Cap("team", project, usd_per_h),))))
    assert why.reason is reason
    assert part in why.message


@pytest.mark.parametrize(("failures", "part"), [(1, "once"), (3, "3 times")])
def test_a_backoff_has_its_failures_and_its_end(failures: int, part: str) -> None:
    fields = {"growth_failures": failures, "grow_after": NOW + timedelta(seconds=20)}
    why = why_back_off(case_of(running_alone(2, live=True, **fields), size=2))
    assert why.reason is Reason.START_FAILED
    assert part in why.message
    assert "12:00:20 UTC" in why.message
    assert "UTC" not in why_back_off(case_of(running_alone(2), size=2)).message


def test_a_search_explains_what_it_wants() -> None:
    fields = {
        "live": True,
        "goal": {"search": "full", "objective": "time"},
        "progress": JobProgress(samples=9, total_samples=10**7),
    }
    snapshot = running_alone(1, points=speeds((1, 100.0)), **fields)
    round_ = build_round(snapshot)
    wanted = int(round_.columns.configurations.slots[round_.search.target[0]])
    wants = case_of(snapshot, size=wanted)
    assert wants.search.startswith("search: ")
    assert "search: " in why_change(wants, {"n": (0,)}, moved({"n": tuple(range(wanted))})).message
    assert case_of(snapshot, size=wanted % 8 + 1).search == ""
    assert case_of(snapshot).search == ""
    assert case_of(running_alone(1), size=1).search == ""


def test_a_lone_job_that_tries_a_size_says_so_and_names_no_other_jobs() -> None:
    """Few steps on two slots were slower, so four are not expected to be faster, but may be."""
    measured = tuple(
        Measurement(
            "cpu",
            slots,
            speed,
            3,
            global_batch=12,
            local_batch=12 // slots,
            step_s=12 / speed,
            step_s_spread=1.2 / speed,
        )
        for slots, speed in ((1, 100.0), (2, 80.0))
    )
    spec = spec_of("lone", elastic={"min": 1, "max": 4})
    progress = JobProgress(samples=1000, samples_per_s=100.0, begun_generation=3)
    job = job_of("lone", RUNNING, age_s=600.0, spec=spec, live=True, generation=3, progress=progress)
    snapshot = snapshot_of([node_of("n", 4)], [job], {"lone": [("n", 0)]}, {"lone": measured})
    (decision,) = decide(build_round(snapshot), policy("goodput"), solve).decisions
    assert (decision.action, size_of(decision.allocation)) == (Action.CHANGE, 4)
    assert "tries it" in decision.message
    assert "jobs that gain more" not in decision.message
