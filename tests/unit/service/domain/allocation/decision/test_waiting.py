"""Reasons of waits: capacity, devices, engines, quotas and budgets, in the order in which they are examined."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.allocation.decision.expected_starts import ExpectedStart, rounded
from service.domain.allocation.decision.explain import Case
from service.domain.allocation.decision.plan import Action
from service.domain.allocation.decision.waiting import WaitingFacts, waiting_facts, why_unpaid, why_wait
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.contention_rules import ContentionRules
from service.domain.cluster.snapshot import Cap, Node, SlotKey, Snapshot, Tenant
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import NOW, clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import (
    RUNNING,
    case_of,
    decisions,
    elastic_job,
    on,
    speeds,
    spot,
)


def facts(snapshot: Snapshot, *left: SlotKey) -> WaitingFacts:
    round_ = build_round(snapshot)
    return waiting_facts(round_, Goodput().choose(round_.given, solve), left)


def wait(nodes: list[Node], job: Job, *others: Job, held: Any = None, **fields: Any) -> tuple[Reason, str]:
    """The decision about a job that has to wait."""
    snapshot = replace(snapshot_of(nodes, [job, *others], held), **fields)
    found = decisions(snapshot)[job.id]
    assert found.action is Action.WAIT
    return found.reason, found.message


@pytest.mark.parametrize("nodes", [[], [node_of("n", state=NodeState.LOST)]])
def test_without_nodes_the_commands_that_add_one_are_named(nodes: list[Node]) -> None:
    reason, text = wait(nodes, elastic_job())
    assert reason is Reason.WAITING_FOR_CAPACITY
    assert "headway agent" in text
    assert "headway up" in text


@pytest.mark.parametrize(
    ("devices", "nodes", "parts"),
    [
        (["h100"], [node_of("n"), node_of("g", kind="a100")], ["has h100;", "a100, cpu"]),
        (["h100", "b200"], [node_of("n")], ["h100 or b200", "cpu"]),
        (["h100"], [node_of("n", kind="h100", state=NodeState.DRAINING)], ["h100", "none"]),
    ],
)
def test_devices_that_no_node_in_service_has(devices: list[str], nodes: list[Node], parts: list[str]) -> None:
    reason, text = wait(nodes, elastic_job(resources={"devices": devices}))
    assert reason is Reason.NO_SUCH_DEVICE
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize("devices", [[], ["cpu"]])
def test_an_image_without_a_container_engine(devices: list[str]) -> None:
    nodes = [node_of("n", containers=False)]
    reason, text = wait(nodes, elastic_job(image="registry/image:1", resources={"devices": devices}))
    assert reason is Reason.NO_CONTAINER_ENGINE
    assert "Docker" in text


def test_an_engine_on_another_kind_does_not_help() -> None:
    nodes = [node_of("n", containers=False), node_of("g", kind="a100")]
    job = elastic_job(image="registry/image:1", resources={"devices": ["cpu"]})
    assert wait(nodes, job)[0] is Reason.NO_CONTAINER_ENGINE


@pytest.mark.parametrize(
    ("nodes", "fields", "parts"),
    [
        ([node_of("n", 2)], {"low": 3}, ["at least 3 slots", "have 2"]),
        # Kinds are not added.
        ([node_of("n", 2), node_of("g", 2, kind="a100")], {"low": 3}, ["at least 3 slots", "have 2"]),
        # Markets of one kind are, for a job that accepts both.
        (
            [node_of("n", 2), spot("s", 2)],
            {"low": 5, "high": 8, "market": "mixed"},
            ["at least 5 slots", "have 4"],
        ),
        # Otherwise the slots on the other market are mentioned.
        ([node_of("n", 2), spot("s", 4)], {"low": 3}, ["have 2", "4 spot slots exist", "on-demand only"]),
        (
            [node_of("n", 5), spot("s", 1)],
            {"low": 3, "market": "spot"},
            ["have 1", "5 on-demand slots exist", "spot only"],
        ),
        ([spot("s", 1)], {"low": 1}, ["have 0", "1 spot slot exist"]),
        (
            [node_of("n", 1), spot("s", 9, kind="a100")],
            {"low": 3, "resources": {"devices": ["cpu"]}},
            ["have 1"],
        ),
    ],
)
def test_a_job_larger_than_the_cluster(nodes: list[Node], fields: dict[str, Any], parts: list[str]) -> None:
    reason, text = wait(nodes, elastic_job(**{"high": 8, **fields}))
    assert reason is Reason.WAITING_FOR_CAPACITY
    assert [part for part in parts if part not in text] == []
    assert ("exist" in text) == any("exist" in part for part in parts)


def test_slots_in_quarantine_are_counted() -> None:
    bad = replace(node_of("n", 2), slots={1: "cpu"}, quarantined={0: "Xid 79", 5: "Xid 48"})
    gone = replace(node_of("m", 1, state=NodeState.DRAINING), quarantined={7: "Xid 79"})
    _, text = wait([bad, gone], elastic_job(low=2))
    assert "2 slots more in quarantine" in text, "those of nodes that take jobs"


def full(*waiting: Job, slots: int = 4, **holders: int) -> Snapshot:
    """Running jobs of fixed sizes hold all slots of a node."""
    jobs = [
        elastic_job(name, count, count, state=RUNNING, project=f"p{name[0]}")
        for name, count in holders.items()
    ]
    keys = iter(range(slots))
    held = {name: on("n", *(next(keys) for _ in range(count))) for name, count in holders.items()}
    return snapshot_of([node_of("n", slots)], [*jobs, *waiting], held)


def test_the_largest_holders_of_the_own_project_are_named_and_others_summed() -> None:
    waiting = elastic_job("a9", 2, 2, project="pa")
    snapshot = full(waiting, slots=9, a1=1, a2=3, b1=5)
    found = facts(snapshot).held_by
    assert found["pa"] == "; held by a2 (3), a1 (1), other projects (5)"
    assert found["pb"] == "; held by b1 (5), other projects (4)"


def test_at_most_five_holders_are_named() -> None:
    snapshot = full(slots=7, a1=1, a2=1, a3=1, a4=1, a5=1, a6=2)
    text = facts(snapshot).held_by["pa"]
    assert text == "; held by a6 (2), a1 (1), a2 (1), a3 (1), a4 (1)"


def test_a_project_with_jobs_and_no_slots_in_an_empty_cluster() -> None:
    assert facts(snapshot_of([node_of("n")], [elastic_job()])).held_by == {"default": ""}


def test_facts_count_slots_in_service_and_left() -> None:
    nodes = [node_of("n", 4), spot("s", 3), node_of("d", 5, state=NodeState.DRAINING)]
    left = [SlotKey("n", 0), SlotKey("n", 1), SlotKey("s", 0), SlotKey("d", 99)]
    found = facts(snapshot_of(nodes), *left)
    assert {pool.name: count for pool, count in found.in_service.items()} == {"cpu": 4, "cpu (spot)": 3}
    assert {pool.name: count for pool, count in found.left.items()} == {"cpu": 2, "cpu (spot)": 1}
    assert {pool.market for pool in found.left} == {Market.ON_DEMAND, Market.SPOT}
    assert found.any_node
    assert found.quarantine_text == ""


@pytest.mark.parametrize(
    ("holders", "low", "part"),
    [
        # Every running job has its smallest size: no surplus.
        ({"a1": 4}, 1, "no running job holds more than its minimum"),
    ],
)
def test_a_wait_behind_minimums(holders: Mapping[str, int], low: int, part: str) -> None:
    snapshot = full(elastic_job("w", low, low, project="pw"), **holders)
    text = decisions(snapshot)["w"].message
    assert part in text
    assert "0 of 4 are left" in text


def test_the_latest_turn_is_a_time_of_day() -> None:
    """1800 s of waiting less 600 s, then at most three minimum run times of 60 s."""
    running = elastic_job("r", 4, 4, state=RUNNING, age_s=30.0, priority=60)
    waiting = elastic_job("w", 4, 4, age_s=600.0)
    snapshot = snapshot_of([node_of("n", 4)], [running, waiting], {"r": on("n", 0, 1, 2, 3)})
    by = NOW + timedelta(seconds=1200 + 3 * 60)
    assert f"{by:%H:%M} UTC" in decisions(snapshot)["w"].message
    patient = replace(snapshot, contention=ContentionRules(max_wait_s=7200.0))
    later = NOW + timedelta(seconds=6600 + 3 * 60)
    assert f"{later:%H:%M} UTC" in decisions(patient)["w"].message


def trains(job_id: str, size: int, left_s: float | None, **fields: Any) -> Job:
    """A running job that ends in `left_s`; None: nobody knows."""
    known = {"total_samples": int(100 + 10 * left_s)} if left_s is not None else {}
    progress = JobProgress(samples=100, samples_per_s=10.0, **known)
    spec = {"elastic": {"resize": "never"}, "age_s": 3000.0, **fields}
    return elastic_job(job_id, size, size, state=RUNNING, progress=progress, **spec)


def starts(waiting: list[Job], **lefts: float | None) -> dict[str, str]:
    """The expected starts of jobs that wait for others with two slots each, as their messages tell them."""
    nodes = [node_of(name, 2) for name in lefts]
    running = [trains(name, 2, left_s) for name, left_s in lefts.items()]
    found = decisions(snapshot_of(nodes, [*running, *waiting], {name: on(name, 0, 1) for name in lefts}))
    for one in waiting:
        at, said = found[one.id].starts_at, found[one.id].message
        assert (f"{at:%H:%M} UTC" in said) if at is not None else ("expected" not in said)
    parts = {one.id: found[one.id].message.split("; ") for one in waiting}
    return {name: "".join(one for one in said if "expected" in one) for name, said in parts.items()}


def about(wait_s: float) -> str:
    """The range of the expected start after a wait, in which the wait lies."""
    low, high = ExpectedStart(wait_s, ()).between(NOW)
    assert low <= NOW + timedelta(seconds=wait_s) <= high
    return (
        f"expected to start between {low:%H:%M} and {high:%H:%M} UTC"
        if low > NOW
        else f"expected to start by {high:%H:%M} UTC"
    )


def test_a_wait_tells_when_running_jobs_are_expected_to_free_enough_slots() -> None:
    assert NOW.second == NOW.microsecond == 0
    one, two = elastic_job("one", 2, 2, age_s=500.0), elastic_job("two", 2, 2, age_s=400.0)
    assert starts([one], r=290.0, s=500.0) == {"one": f"{about(290)}, when r ends"}
    assert starts([one, two], r=290.0, s=500.0) == {
        "one": f"{about(290)}, when r ends",
        "two": f"{about(500)}, when r and s end",
    }
    wide = elastic_job("wide", 4, 4, age_s=500.0)
    assert starts([wide], r=290.0, s=500.0) == {"wide": f"{about(500)}, when r and s end"}


def test_a_start_of_which_nothing_is_known_is_not_guessed() -> None:
    assert starts([elastic_job("one", 2, 2, age_s=500.0)], r=None) == {"one": ""}
    assert starts([elastic_job("wide", 4, 4, age_s=500.0)], r=60.0, s=None) == {"wide": ""}


def test_an_expected_start_names_no_job_of_another_project() -> None:
    other = elastic_job("one", 2, 2, age_s=500.0, project="other")
    assert starts([other], secret=60.0) == {"one": f"{about(60)}, when a job of another project ends"}


def calls_for_reasons(count: int) -> int:
    """The Python calls that say why so many jobs wait for as many others, which end later than their turns come."""
    nodes = [node_of(f"n{one}", 2) for one in range(count)]
    running = [trains(f"r{one}", 2, 300.0 + one) for one in range(count)]
    waiting = [elastic_job(f"w{one}", 2, 2, age_s=500.0 + one, project="other") for one in range(count)]
    held = {one.id: on(node.id, 0, 1) for one, node in zip(running, nodes, strict=True)}
    round_ = build_round(snapshot_of(nodes, [*running, *waiting], held))
    choices = Goodput().choose(round_.given, solve)
    cases = [
        Case(round_, row, NOTHING, ()) for row, job in enumerate(round_.jobs) if job.state is JobState.PENDING
    ]
    calls = Counter[str]()
    sys.setprofile(lambda _, event, __: calls.update([event]))
    found = waiting_facts(round_, choices, ())
    said = [why_wait(case, found).message for case in cases]
    sys.setprofile(None)
    assert all("needs at least 2" in one for one in said)
    return calls["call"]


def test_a_reason_costs_the_same_whatever_the_number_of_running_jobs() -> None:
    assert calls_for_reasons(80) < 6 * calls_for_reasons(20), "four times the jobs"


@pytest.mark.parametrize(
    ("wait_s", "said"), [(61.0, "00:02"), (1000.0, "00:20"), (3601.0, "01:30"), (8 * 3600.0 + 1, "10:00")]
)
def test_longer_waits_are_told_less_exactly(wait_s: float, said: str) -> None:
    midnight = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
    assert f"{rounded(midnight, wait_s):%H:%M}" == said


def test_reserved_slots_name_a_job_of_the_own_project_only() -> None:
    firm = elastic_job("firm", 2, 2, state=RUNNING, age_s=1.0, project="p")
    overdue = elastic_job("overdue", 4, 4, age_s=4000.0, project="p")
    own, foreign = (elastic_job(name, 1, 1, age_s=100.0, project=name) for name in ("p", "q"))
    own = replace(own, id="own")
    snapshot = snapshot_of([node_of("n", 4)], [firm, overdue, own, foreign], {"firm": on("n", 0, 1)})
    found = decisions(snapshot)
    assert {found[job].action for job in ("own", "q", "overdue")} == {Action.WAIT}
    assert "kept for overdue," in found["own"].message
    assert "overdue" not in found["q"].message
    assert "kept for a job of another project" in found["q"].message
    assert "slots are kept for it until" in found["overdue"].message


def test_a_quota_comes_before_other_reasons() -> None:
    running = elastic_job("r", 2, 2, state=RUNNING)
    snapshot = snapshot_of([node_of("n", 4)], [running, elastic_job("w", 1, 1)], {"r": on("n", 0, 1)})
    limited = replace(snapshot, projects={"default": Tenant(ProjectQuota(max_slots=2))})
    assert decisions(snapshot)["w"].action is Action.START
    assert decisions(limited)["w"].reason is Reason.QUOTA


def test_the_usage_of_a_guarantee_ends_the_message() -> None:
    running = elastic_job("r", 4, 4, state=RUNNING, project="b", elastic={"resize": "never"})
    waiting = elastic_job("w", 2, 2, project="a")
    snapshot = snapshot_of([node_of("n", 4)], [running, waiting], {"r": on("n", 0, 1, 2, 3)})
    snapshot = replace(snapshot, projects={"a": Tenant(ProjectQuota(slots=2))})
    text = decisions(snapshot)["w"].message
    assert "project a holds 0 of its 2 guaranteed slots" in text
    assert "project b" not in text


def priced(cap: Cap, *jobs: Job, held: Any = None) -> Snapshot:
    snapshot = snapshot_of([node_of("n", 4, usd_per_slot_h=2.0)], jobs, held)
    return replace(snapshot, caps=(cap,))


@pytest.mark.parametrize(
    ("usd_per_h", "project", "low", "reason"),
    [
        (2.0, None, 1, None),
        (1.99, None, 1, Reason.BUDGET),
        (0.0, None, 1, Reason.BUDGET),
        (3.0, None, 2, Reason.BUDGET),
        (1.0, "default", 1, Reason.BUDGET),
        (1.0, "other", 1, None),
    ],
)
def test_a_budget_that_does_not_pay_for_the_smallest_size(
    usd_per_h: float, project: str | None, low: int, reason: Reason | None
) -> None:
    found = decisions(priced(Cap("team", project, usd_per_h), elastic_job(low=low)))["j"]
    assert (found.action is Action.WAIT) == (reason is not None)
    if reason is not None:
        assert found.reason is reason
        assert "budget team" in found.message


def test_the_message_has_the_price_the_limit_and_what_is_left() -> None:
    """One slot is taken for 2 $ an hour; 1 $ is left, and the next slot costs 2 $."""
    running = elastic_job("r", 1, 1, state=RUNNING)
    text = decisions(priced(Cap("all", None, 3.0), running, elastic_job("w"), held={"r": on("n", 0)}))[
        "w"
    ].message
    assert [part for part in ("$2.00", "$3.00", "$1.00") if part not in text] == []


def test_a_spent_budget_names_the_command_that_shows_its_period() -> None:
    text = decisions(priced(Cap("all", None, 0.0), elastic_job()))["j"].message
    assert "headway budget list" in text


def test_money_is_no_reason_while_slots_are_missing_too() -> None:
    running = elastic_job("r", 4, 4, state=RUNNING)
    snapshot = priced(Cap("all", None, 9.0), running, elastic_job("w"), held={"r": on("n", 0, 1, 2, 3)})
    assert decisions(snapshot)["w"].reason is Reason.WAITING_FOR_CAPACITY


def test_a_cap_counts_what_the_round_takes() -> None:
    snapshot = priced(Cap("all", None, 5.0), elastic_job("a", 1, 1), elastic_job("b", 1, 1, age_s=1.0))
    round_ = build_round(snapshot)
    found = waiting_facts(round_, Goodput().choose(round_.given, solve), [])
    assert [(cap.name, taken) for cap, taken in found.caps] == [("all", pytest.approx(4.0))]


def test_a_job_without_an_offer_is_unpaid_by_no_cap() -> None:
    case = case_of(priced(Cap("all", None, 0.0), elastic_job(low=9, high=9)))
    assert why_unpaid(case, facts(case.round.snapshot)) is None


def test_a_paid_job_is_unpaid_by_no_cap() -> None:
    case = case_of(priced(Cap("all", None, 99.0), elastic_job()))
    assert why_unpaid(case, facts(case.round.snapshot)) is None


def test_a_job_that_waits_although_nothing_excludes_it_has_a_reason() -> None:
    case = case_of(snapshot_of([node_of("n", 4)], [elastic_job()], {}, {"j": speeds((1, 100.0))}))
    why = why_wait(case, facts(case.round.snapshot))
    assert why.reason is Reason.WAITING_FOR_CAPACITY


@given(clusters())
@settings(max_examples=25)
def test_every_wait_has_a_reason_of_waits(snapshot: Snapshot) -> None:
    reasons = {
        Reason.WAITING_FOR_CAPACITY,
        Reason.NO_SUCH_DEVICE,
        Reason.NO_CONTAINER_ENGINE,
        Reason.BUDGET,
        Reason.QUOTA,
    }
    for job_id, found in decisions(snapshot).items():
        if found.action is Action.WAIT:
            assert found.reason in reasons
            assert found.message.strip(), job_id
            assert snapshot.jobs[job_id].state in {JobState.PENDING, JobState.RECOVERING}
