"""Usage of quotas: slots held, borrowed and lent, and the quota that keeps a job waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import Reason
from service.domain.allocation.decision.quota_texts import (
    QuotaUsage,
    guarantee_text,
    quota_usage,
    quota_use,
    why_above_quota,
    why_at_quota,
    why_given_up,
)
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.cluster.snapshot import Snapshot, Tenant
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job

PROJECTS = ("mine", "other", "third")


def cluster(slots: int, held: Mapping[str, int], quotas: Mapping[str, int], **maximums: int) -> Snapshot:
    """A node of `slots`, of which every project's job holds some. `quotas` are guarantees."""
    jobs = [
        elastic_job(project, project=project, high=8, state=RUNNING)
        for project, count in held.items()
        if count
    ]
    keys = iter(range(slots))
    pairs = {project: [("n", next(keys)) for _ in range(count)] for project, count in held.items() if count}
    projects = {
        project: Tenant(ProjectQuota(slots=quotas.get(project), max_slots=maximums.get(project)))
        for project in {*quotas, *maximums}
    }
    return replace(snapshot_of([node_of("n", slots)], jobs, pairs), projects=projects)


@pytest.mark.parametrize(
    ("slots", "held", "quotas", "usage"),
    [
        (8, {}, {}, (0, 0, 0, ())),
        (8, {"mine": 3}, {"mine": 4}, (3, 0, 0, ())),
        (8, {"mine": 4}, {"mine": 4}, (4, 0, 0, ())),
        (8, {"mine": 6}, {"mine": 4}, (6, 2, 0, ())),
        (8, {"mine": 6}, {}, (6, 6, 0, ())),
        # It lacks three slots. One is free, so two are lent to the project that holds eight beyond its guarantee.
        (10, {"mine": 1, "other": 8}, {"mine": 4}, (1, 0, 2, ("other",))),
        # Free slots are not lent.
        (8, {"mine": 1, "other": 2}, {"mine": 4}, (1, 0, 0, ("other",))),
        # Only slots beyond the other project's own guarantee count as borrowed.
        (8, {"other": 8}, {"mine": 8, "other": 6}, (0, 0, 2, ("other",))),
        # The largest borrower comes first, and equal ones by name.
        (8, {"other": 3, "third": 5}, {"mine": 4}, (0, 0, 4, ("third", "other"))),
        (8, {"third": 4, "other": 4}, {"mine": 4}, (0, 0, 4, ("other", "third"))),
    ],
)
def test_the_usage_of_a_project(
    slots: int, held: dict[str, int], quotas: dict[str, int], usage: tuple[int, int, int, tuple[str, ...]]
) -> None:
    expected = QuotaUsage(held=usage[0], borrowed=usage[1], lent=usage[2], borrowers=usage[3])
    assert quota_usage(cluster(slots, held, quotas), "mine") == expected


@given(
    st.integers(1, 24),
    st.dictionaries(st.sampled_from(PROJECTS), st.integers(0, 8), max_size=3),
    st.dictionaries(st.sampled_from(PROJECTS), st.integers(0, 8), max_size=3),
)
@settings(max_examples=30)
def test_usage_is_consistent(free: int, held: dict[str, int], quotas: dict[str, int]) -> None:
    snapshot = cluster(sum(held.values()) + free, held, quotas)
    usages = {project: quota_usage(snapshot, project) for project in PROJECTS}
    assert sum(one.held for one in usages.values()) == sum(held.values())
    for project, one in usages.items():
        guarantee = quotas.get(project, 0)
        assert one.borrowed == max(0, one.held - guarantee)
        assert not (one.borrowed and one.lent), "a borrower has lent nothing"
        assert one.held + one.lent <= max(guarantee, one.held)
        assert one.lent <= sum(usages[other].borrowed for other in one.borrowers)
        assert project not in one.borrowers


@pytest.mark.parametrize(
    ("held", "quotas", "parts"),
    [
        ({"mine": 6}, {}, None),
        ({"mine": 6}, {"mine": 4}, ["4 guaranteed slots", "borrows 2"]),
        ({"mine": 3}, {"mine": 4}, ["3 of its 4 guaranteed slots"]),
        ({"mine": 1}, {"mine": 1}, ["1 of its 1 guaranteed slot"]),
        ({"other": 8}, {"mine": 4}, ["0 of its 4 guaranteed slots", "4 are lent to another project"]),
        ({"other": 4, "third": 4}, {"mine": 4}, ["4 are lent to other projects"]),
    ],
)
def test_the_text_of_a_guarantee(
    held: dict[str, int], quotas: dict[str, int], parts: list[str] | None
) -> None:
    text = guarantee_text(cluster(8, held, quotas), "mine")
    if parts is None:
        assert text == ""
        return
    assert [part for part in parts if part not in text] == []
    assert "project other" not in text
    assert "third" not in text


def test_the_reason_of_a_return_names_the_guarantee_and_no_project() -> None:
    round_ = build_round(claimed())
    (claim,) = round_.tenancy.claims
    text = why_given_up(claim)
    assert "4 slots" in text
    assert "mine" not in text


def claimed() -> Snapshot:
    """Another project holds all eight slots; a job of `mine`, with four guaranteed, waits."""
    snapshot = cluster(8, {"other": 8}, {"mine": 4})
    waiting = elastic_job("w", project="mine", high=4)
    return replace(snapshot, jobs={**snapshot.jobs, "w": waiting})


def test_only_rows_that_limit_some_jobs_count() -> None:
    demand = np.array([1.0, 2.0])
    rows = [
        Row(name="slots/cpu", capacity=9.0, demand=demand),
        Row(name="quota/a", capacity=9.0, demand=demand, jobs=np.array([True, False, True])),
        Row(name="quota/b", capacity=9.0, demand=demand, jobs=np.array([False, True, False])),
    ]
    assert quota_use(rows, np.array([1, 1, 0])) == {"quota/a": 3.0, "quota/b": 2.0}
    assert quota_use(rows, np.array([NOTHING] * 3)) == {"quota/a": 0.0, "quota/b": 0.0}


def capped(most: int, held: int = 2, low: int = 1, **fields: object) -> tuple[Snapshot, int]:
    """A job of `mine` holds slots and another one waits; the project may hold `most`. The second is the row."""
    snapshot = cluster(8, {"mine": held}, {}, mine=most)
    waiting = elastic_job("w", low, 4, project="mine", age_s=0.0, **fields)
    return replace(snapshot, jobs={**snapshot.jobs, "w": waiting}), 1


@pytest.mark.parametrize(
    ("most", "held", "low", "waits"),
    [
        (2, 2, 1, True),
        (3, 2, 1, False),
        (3, 2, 2, True),
        (4, 2, 2, False),
        (1, 2, 1, True),
    ],
)
def test_a_job_waits_for_its_quota_if_its_smallest_size_does_not_fit(
    most: int, held: int, low: int, waits: bool
) -> None:
    snapshot, row = capped(most, held, low)
    round_ = build_round(snapshot)
    taken = quota_use(round_.tenancy.rows, round_.given.current)
    why = why_at_quota(round_, row, taken)
    assert (why is not None) == waits
    if why is not None:
        assert why.reason is Reason.QUOTA
        assert f"holds {held} of its maximum of {most} slot" in why.message
        assert f"at least {low};" in why.message


def test_slots_of_jobs_in_transition_count_for_the_quota() -> None:
    snapshot, _ = capped(4, 2, 2)
    jobs = {**snapshot.jobs, "mine": replace(snapshot.jobs["mine"], state="RESIZING")}
    round_ = build_round(replace(snapshot, jobs=jobs))
    assert [row.capacity for row in round_.tenancy.rows if row.name == "quota/mine"] == [2.0]
    assert why_at_quota(round_, 0, {"quota/mine": 0.0}) is None
    why = why_at_quota(round_, 0, {"quota/mine": 1.0})
    assert why is not None
    assert "holds 3 of its maximum of 4" in why.message


def test_a_job_that_may_have_nothing_waits_for_no_quota() -> None:
    snapshot, row = capped(1)
    impossible = replace(
        snapshot, jobs={**snapshot.jobs, "w": elastic_job("w", 9, 9, project="mine", age_s=0.0)}
    )
    assert why_at_quota(build_round(impossible), row, {"quota/mine": 9.0}) is None


@pytest.mark.parametrize(("resize", "waits"), [("never", True), ("restart", False)])
def test_guaranteed_slots_of_others_are_closed_to_jobs_that_never_change(resize: str, waits: bool) -> None:
    job = elastic_job("w", project="mine", elastic={"resize": resize})
    projects = {"other": Tenant(ProjectQuota(slots=4))}
    round_ = build_round(replace(snapshot_of([node_of("n", 4)], [job]), projects=projects))
    why = why_at_quota(round_, 0, quota_use(round_.tenancy.rows, round_.given.current))
    assert (why is not None) == waits
    if why is not None:
        assert why.reason is Reason.QUOTA
        assert "other " not in why.message.replace("to other projects", "")


@pytest.mark.parametrize(
    ("most", "held", "above"), [(None, 4, False), (4, 4, False), (3, 4, True), (0, 1, True)]
)
def test_a_project_above_a_lowered_maximum_is_told(most: int | None, held: int, above: bool) -> None:
    snapshot = cluster(8, {"mine": held}, {}, **({} if most is None else {"mine": most}))
    text = why_above_quota(snapshot, "mine")
    assert bool(text) == above
    if above:
        assert f"{held} slots" in text
        assert f"maximum of {most}" in text


def test_a_maximum_that_is_not_reached_is_not_blamed_for_slots_guaranteed_to_others() -> None:
    job = elastic_job("w", project="mine", elastic={"resize": "never"})
    projects = {"other": Tenant(ProjectQuota(slots=4)), "mine": Tenant(ProjectQuota(max_slots=3))}
    round_ = build_round(replace(snapshot_of([node_of("n", 4)], [job]), projects=projects))
    why = why_at_quota(round_, 0, quota_use(round_.tenancy.rows, round_.given.current))
    assert why is not None
    assert "maximum" not in why.message
