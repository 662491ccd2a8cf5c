"""Choices within guarantees: claims come first, borrowers shrink before any job stops, and nothing is wasted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.identity import ProjectQuota
from service.domain.allocation.decision.guarantees import Shared, choose_within_guarantees
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.limits.caps import choose_within_caps
from service.domain.cluster.snapshot import Snapshot, Tenant
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, speeds
from tests.unit.service.domain.contention.scenes import keeps_rows


def member(
    name: str, project: str, held: int = 0, low: int = 1, high: int = 8, **fields: Any
) -> tuple[Job, int]:
    """A job that changes in place. Every size of every job is measured, so that none waits for evidence."""
    state = {"state": RUNNING, "live": True} if held else {}
    return elastic_job(name, low, high, project=project, **{"age_s": 100.0, **state, **fields}), held


def cluster(slots: int, members: list[tuple[Job, int]], guarantees: Mapping[str, int]) -> Snapshot:
    keys = iter(range(slots))
    held = {job.id: [("n", next(keys)) for _ in range(count)] for job, count in members if count}
    projects = {name: Tenant(ProjectQuota(slots=count)) for name, count in guarantees.items()}
    points = speeds(*((size, 100.0 * size**0.8) for size in range(1, 9)))
    measured = {job.id: points for job, _ in members}
    jobs = [job for job, _ in members]
    return replace(snapshot_of([node_of("n", slots)], jobs, held, measured), projects=projects)


def shared(snapshot: Snapshot) -> tuple[Round, Shared]:
    round_ = build_round(snapshot)
    return round_, choose_within_guarantees(
        round_.given, round_.tenancy, Goodput(), round_.contest.solver(solve)
    )


def unprotected(snapshot: Snapshot) -> tuple[Round, Shared]:
    """The choices with a solver that knows no seats, so that the guarantees alone keep jobs running."""
    round_ = build_round(snapshot)
    return round_, choose_within_guarantees(round_.given, round_.tenancy, Goodput(), solve)


def sizes(snapshot: Snapshot, choose: Callable[[Snapshot], tuple[Round, Shared]] = shared) -> dict[str, int]:
    round_, found = choose(snapshot)
    slots = np.append(round_.columns.configurations.slots, 0)[found.choices.chosen].tolist()
    return {job.id: size for job, size in zip(round_.jobs, slots, strict=True)}


def test_without_claims_the_choices_are_those_of_the_policy() -> None:
    snapshot = cluster(8, [member("a", "x", 4), member("b", "y")], {})
    round_, found = shared(snapshot)
    plain = choose_within_caps(round_.given, Goodput(), round_.contest.solver(solve))
    assert found.choices.chosen.tolist() == plain.chosen.tolist()
    assert found.given_up_for == {}


def test_a_claim_gets_its_guaranteed_slots_from_a_borrower_that_shrinks() -> None:
    found = sizes(cluster(8, [member("borrower", "b", 8, priority=100), member("own", "a")], {"a": 4}))
    assert found["own"] >= 4
    assert found["borrower"] == 8 - found["own"]


def test_a_claim_larger_than_the_jobs_can_use_leaves_the_rest() -> None:
    found = sizes(cluster(8, [member("borrower", "b", 8), member("own", "a", high=2)], {"a": 6}))
    assert found == {"borrower": 6, "own": 2}


def test_a_borrower_stops_only_if_its_smallest_size_does_not_fit_beside_the_claim() -> None:
    stays = sizes(
        cluster(8, [member("borrower", "b", 8, low=4), member("own", "a", low=4, high=4)], {"a": 4})
    )
    assert stays == {"borrower": 4, "own": 4}
    stops = sizes(
        cluster(8, [member("borrower", "b", 8, low=5), member("own", "a", low=4, high=4)], {"a": 4})
    )
    assert stops == {"borrower": 0, "own": 4}


def test_of_two_borrowers_the_one_of_less_weight_stops() -> None:
    members = [
        member("heavy", "b", 4, low=4, priority=80),
        member("light", "b", 4, low=4, priority=20),
        member("own", "a", low=4, high=4),
    ]
    assert sizes(cluster(8, members, {"a": 4})) == {"heavy": 4, "light": 0, "own": 4}


def test_a_claim_too_small_for_the_smallest_size_frees_nothing() -> None:
    found = sizes(
        cluster(8, [member("borrower", "b", 8, low=8), member("own", "a", low=6, high=6)], {"a": 4})
    )
    assert found == {"borrower": 8, "own": 0}


def test_two_claims_are_both_met() -> None:
    members = [member("borrower", "c", 8), member("first", "a"), member("second", "b")]
    found = sizes(cluster(8, members, {"a": 3, "b": 3}))
    assert found["first"] >= 3
    assert found["second"] >= 3
    assert found["borrower"] >= 1


def test_jobs_that_give_up_slots_know_the_claim() -> None:
    snapshot = cluster(8, [member("borrower", "b", 8), member("own", "a")], {"a": 4})
    round_, found = shared(snapshot)
    rows = {job.id: row for row, job in enumerate(round_.jobs)}
    assert set(found.given_up_for) == {rows["borrower"]}
    claim = found.given_up_for[rows["borrower"]]
    assert (claim.project, claim.guaranteed) == ("a", 4)


def test_a_member_of_the_claiming_project_gives_nothing_up_for_it() -> None:
    members = [member("large", "a", 8, priority=0), member("own", "a", priority=100)]
    _, found = shared(cluster(8, members, {"a": 8}))
    assert found.given_up_for == {}


@pytest.mark.parametrize("guarantee", [1, 2, 3, 5, 7, 8])
def test_a_larger_guarantee_never_gives_fewer_slots(guarantee: int) -> None:
    members = [member("borrower", "b", 8, priority=90), member("own", "a", priority=10)]
    own = [sizes(cluster(8, members, {"a": count}))["own"] for count in (guarantee - 1, guarantee)]
    assert own[1] >= own[0]
    assert own[1] >= min(guarantee, 7), "the borrower keeps its smallest size of one slot"


def test_slots_that_a_claim_cannot_use_stay_with_the_borrower() -> None:
    """Three slots are guaranteed, and the job takes one, two or four: the third slot is lent again."""
    own = member("own", "a", elastic={"sizes": [1, 2, 4]}, high=4, priority=0)
    assert sizes(cluster(8, [member("borrower", "b", 8, priority=100), own], {"a": 3})) == {
        "borrower": 6,
        "own": 2,
    }


def test_a_claim_keeps_running_jobs_of_other_projects_that_the_policy_would_stop() -> None:
    """Without seats the policy gives all slots to the heavy jobs."""
    members = [
        member("heavy", "b", 4, low=4, priority=100),
        member("light", "b", 4, priority=0),
        member("own", "a", low=2, high=4, priority=100),
    ]
    plain = sizes(cluster(8, members, {}), unprotected)
    assert plain == {"heavy": 4, "light": 0, "own": 4}
    assert sizes(cluster(8, members, {"a": 2}), unprotected) == {"heavy": 4, "light": 1, "own": 3}


def test_of_two_stopped_jobs_the_one_whose_project_used_less_keeps_slots() -> None:
    """Both have the same priority; six slots are left of eight for two jobs of four."""
    members = [
        member("greedy", "b", 4, low=4, high=4),
        member("modest", "c", 4, low=4, high=4),
        member("own", "a", low=2, high=2),
    ]
    for used, stays in (({"b": 9e6, "c": 1.0}, "modest"), ({"b": 1.0, "c": 9e6}, "greedy")):
        snapshot = cluster(8, members, {"a": 2})
        projects = {name: Tenant(ProjectQuota(), used.get(name, 0.0)) for name in "bc"}
        found = sizes(replace(snapshot, projects={**snapshot.projects, **projects}))
        assert found == {"own": 2, "greedy": 0, "modest": 0, stays: 4}


@st.composite
def tenants(draw: st.DrawFn) -> Snapshot:
    """Up to five jobs of three projects on one node; guarantees may exceed the cluster."""
    slots = draw(st.integers(2, 12))
    left, members = slots, []
    for index in range(draw(st.integers(1, 5))):
        low = draw(st.sampled_from((1, 1, 2, 4)))
        high = draw(st.sampled_from((low, 4, 8)))
        high = max(low, high)
        held = (
            draw(st.integers(low, min(high, left))) if low <= min(high, left) and draw(st.booleans()) else 0
        )
        left -= held
        project = draw(st.sampled_from("abc"))
        members.append(
            member(f"j{index}", project, held, low, high, priority=draw(st.sampled_from((0, 50, 100))))
        )
    guarantees = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 8), max_size=3))
    return cluster(slots, members, guarantees)


@given(tenants())
@settings(max_examples=25)
def test_shared_choices_keep_every_row_and_are_allowed(snapshot: Snapshot) -> None:
    round_, found = shared(snapshot)
    chosen = found.choices.chosen
    assert keeps_rows(round_.given, chosen)
    rows = np.flatnonzero(chosen != NOTHING)
    assert round_.given.allowed[rows, chosen[rows]].all()
    assert (found.choices.solution.chosen == chosen).all()


@given(tenants())
@settings(max_examples=25)
def test_protected_jobs_of_a_raised_claim_have_slots(snapshot: Snapshot) -> None:
    """Unless other protected jobs have taken what is left, which only claims beyond the capacity can cause."""
    round_, found = shared(snapshot)
    guaranteed = sum(tenant.quota.slots or 0 for tenant in snapshot.projects.values())
    slots = round_.columns.configurations.slots
    if guaranteed > sum(int(one.slots.sum()) for one in round_.scope.capacities.values()):
        return
    for claim in round_.tenancy.claims:
        assert claim.unmet(found.choices.chosen, slots) == []


@given(tenants())
@settings(max_examples=20)
def test_given_up_slots_are_fewer_than_before_and_of_another_project(snapshot: Snapshot) -> None:
    round_, found = shared(snapshot)
    slots = np.append(round_.columns.configurations.slots, 0)
    first = choose_within_caps(round_.given, Goodput(), round_.contest.solver(solve)).chosen
    for row, claim in found.given_up_for.items():
        before = max(slots[first[row]], slots[round_.given.current[row]])
        assert slots[found.choices.chosen[row]] < before
        assert claim.project != round_.jobs[row].spec.project


@given(tenants())
@settings(max_examples=20)
def test_guarantees_hold_with_a_policy_that_stops_jobs(snapshot: Snapshot) -> None:
    """No running job of a project without a claim is stopped while its smallest size would still fit."""
    round_, found = unprotected(snapshot)
    given, chosen = round_.given, found.choices.chosen
    assert keeps_rows(given, chosen)
    slots = given.configurations.slots
    claims = [one for one in round_.tenancy.claims if one.is_raised(given.current, chosen, slots)]
    guaranteed = sum(tenant.quota.slots or 0 for tenant in snapshot.projects.values())
    if guaranteed <= sum(int(one.slots.sum()) for one in round_.scope.capacities.values()):
        assert all(not claim.unmet(chosen, slots) for claim in round_.tenancy.claims)
    if len(claims) != 1:
        return
    left = given.rows[0].capacity - given.rows[0].taken(chosen)
    for row in np.flatnonzero((chosen == NOTHING) & (given.current != NOTHING) & ~claims[0].members):
        least = given.rows[0].demand[given.allowed[row]].min(initial=np.inf)
        assert least > left
