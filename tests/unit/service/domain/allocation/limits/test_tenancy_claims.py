"""Quotas as rows, claims on guaranteed slots, and weights by past usage, without a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.limits.tenancy import GuaranteeClaim, Tenancy, shares_by_use, tenancy_of
from service.domain.cluster.snapshot import Snapshot, Tenant
from service.domain.jobs.job import Job
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of
from tests.unit.service.domain.allocation.limits.scenes import FIRM, OTHER, columns_in, pool_of, rooms_of
from tests.unit.service.domain.policies.rounds import a_round

N = NOTHING
SLOTS = np.array([1, 2, 4])


def quota(
    slots: int | None = None, most: int | None = None, *, weight: float = 1.0, used: float = 0.0
) -> Tenant:
    return Tenant(ProjectQuota(slots=slots, max_slots=most, weight=weight), used)


def job(job_id: str, project: str, least: int = 1, most: int = 4, **fields: Any) -> Job:
    elastic = {"min": least, "max": most, "resize": fields.pop("resize", "restart")}
    spec = spec_of(job_id, project=project, elastic=elastic, **fields.pop("spec", {}))
    return job_of(job_id, fields.pop("state", JobState.PENDING), spec=spec, **fields)


def settled(*jobs: tuple[Job, int], projects: dict[str, Tenant]) -> Snapshot:
    """A cluster whose jobs hold so many slots of one large node each."""
    slots = iter(range(1000))
    held = {one.id: [("n", next(slots)) for _ in range(count)] for one, count in jobs if count}
    return replace(snapshot_of([node_of("n", 64)], [one for one, _ in jobs], held), projects=projects)


def tenancy(
    snapshot: Snapshot, jobs: list[Job], *, room: int = 8, current: list[int] | None = None
) -> tuple[Tenancy, Columns]:
    """The quotas of a round about these jobs, on one pool. `current` has the slots that each holds."""
    rooms = rooms_of(pool_of(FIRM, room))
    columns = columns_in(rooms, *jobs)
    sizes = columns.configurations.slots
    allowed = np.array([[size in one.spec.elastic.allowed_sizes() for size in sizes] for one in jobs])
    held = [0] * len(jobs) if current is None else current
    at = np.array([int(np.flatnonzero(sizes == size)[0]) if size else N for size in held], dtype=np.int64)
    return tenancy_of(snapshot, jobs, columns, rooms, allowed.reshape(len(jobs), len(sizes)), at), columns


def test_without_projects_there_are_no_quotas() -> None:
    found, _ = tenancy(settled(projects={}), [job("a", "red")])
    assert found == Tenancy()
    assert not found.too_large(a_round([[1.0]], [1], capacity=1)).any()


@pytest.mark.parametrize(
    ("most", "held", "left"),
    [(8, 0, 8.0), (8, 3, 5.0), (8, 8, 0.0), (8, 9, 0.0), (0, 0, 0.0), (None, 0, None)],
)
def test_a_maximum_is_a_row_less_what_jobs_outside_the_round_hold(
    most: int | None, held: int, left: float | None
) -> None:
    outside = (job("old", "red", state=JobState.STARTING), held)
    snapshot = settled(outside, projects={"red": quota(most=most), "blue": quota()})
    found, columns = tenancy(snapshot, [job("a", "red"), job("b", "blue")])
    if left is None:
        assert found.rows == ()
        return
    (row,) = found.rows
    assert (row.name, row.capacity) == ("quota/red", left)
    assert row.jobs is not None
    assert row.jobs.tolist() == [True, False]
    assert row.demand.tolist() == columns.configurations.slots.tolist()


def test_rows_come_in_the_order_of_projects_and_name_them() -> None:
    snapshot = settled(projects={"red": quota(most=4), "blue": quota(most=2)})
    found, _ = tenancy(snapshot, [job("a", "red")])
    assert [row.name for row in found.rows] == ["quota/blue", "quota/red"]
    assert {name: found.projects[name] for name in ("quota/blue", "quota/red", "firm/red")} == {
        "quota/blue": "blue",
        "quota/red": "red",
        "firm/red": "red",
    }


@pytest.mark.parametrize(
    ("guaranteed", "held", "left"),
    [(6, 0, 2.0), (6, 1, 1.0), (6, 5, 0.0), (99, 0, 0.0), (0, 0, None), (None, 0, None)],
)
def test_jobs_of_fixed_size_stay_off_what_is_guaranteed_to_others(
    guaranteed: int | None, held: int, left: float | None
) -> None:
    """A row limits rigid jobs to what 8 slots leave beyond the guarantee and the rigid jobs outside the round."""
    rigid = job("old", "blue", state=JobState.STARTING, resize="never")
    snapshot = settled((rigid, held), projects={"red": quota(guaranteed)})
    jobs = [job("r", "red", resize="never"), job("b", "blue", resize="never"), job("e", "blue")]
    found, _ = tenancy(snapshot, jobs)
    firm = [row for row in found.rows if row.name == "firm/red"]
    assert [row.capacity for row in firm] == ([] if left is None else [left])
    for row in firm:
        assert row.jobs is not None
        assert row.jobs.tolist() == [False, True, False]


@pytest.mark.parametrize(
    "old",
    [
        job("old", "blue", state=JobState.STARTING),  # it can shrink
        job("old", "red", state=JobState.STARTING, resize="never"),  # it is of the project itself
    ],
)
def test_only_rigid_jobs_of_others_take_from_the_rest(old: Job) -> None:
    snapshot = settled((old, 2), projects={"red": quota(6)})
    found, _ = tenancy(snapshot, [job("b", "blue", resize="never")])
    assert [row.capacity for row in found.rows] == [2.0]


def test_without_rigid_jobs_of_others_there_is_no_such_row() -> None:
    snapshot = settled(projects={"red": quota(6)})
    assert tenancy(snapshot, [job("b", "blue"), job("r", "red", resize="never")])[0].rows == ()


def claims(snapshot: Snapshot, jobs: list[Job], **fields: Any) -> dict[str, GuaranteeClaim]:
    return {one.project: one for one in tenancy(snapshot, jobs, **fields)[0].claims}


@pytest.mark.parametrize(
    ("guaranteed", "outside", "most", "wanted"),
    [
        (6, 0, 4, 4),  # its job cannot take more
        (3, 0, 4, 3),
        (6, 4, 4, 2),  # a job outside the round holds the rest
        (6, 6, 4, 0),
        (6, 7, 4, 0),
        (0, 0, 4, 0),
        (None, 0, 4, 0),
    ],
)
def test_a_claim_is_for_what_its_jobs_can_take_of_the_guarantee(
    guaranteed: int | None, outside: int, most: int, wanted: int
) -> None:
    old = (job("old", "red", state=JobState.STARTING), outside)
    snapshot = settled(old, projects={"red": quota(guaranteed)})
    found = claims(snapshot, [job("a", "red", 1, most), job("b", "blue")])
    assert {name: one.wanted for name, one in found.items()} == ({"red": wanted} if wanted else {})
    for one in found.values():
        assert (one.guaranteed, one.open) == (guaranteed, (guaranteed or 0) - outside)


def test_claims_beyond_the_capacity_are_reduced_in_proportion() -> None:
    snapshot = settled(projects={"red": quota(12), "blue": quota(4)})
    jobs = [job("r", "red", 1, 12), job("b", "blue", 1, 4)]
    enough = claims(snapshot, jobs, room=16)
    assert {name: one.wanted for name, one in enough.items()} == {"red": 12, "blue": 4}
    half = claims(snapshot, [replace(jobs[0], spec=job("r", "red", 1, 8).spec), jobs[1]], room=8)
    assert {name: one.wanted for name, one in half.items()} == {"red": 5, "blue": 2}, "8 and 4 of 8 slots"
    assert half["red"].open == 8, "the guarantee is larger than the room"


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=4))
@settings(max_examples=40)
def test_all_claims_together_are_at_most_the_capacity(room: int, guarantees: list[tuple[int, int]]) -> None:
    projects = {f"p{index}": quota(slots) for index, (slots, _) in enumerate(guarantees)}
    jobs = [job(f"j{index}", f"p{index}", 1, most) for index, (_, most) in enumerate(guarantees)]
    found = claims(settled(projects=projects), jobs, room=room)
    assert sum(one.wanted for one in found.values()) <= room
    for index, (slots, most) in enumerate(guarantees):
        if f"p{index}" in found:
            assert 0 <= found[f"p{index}"].wanted <= min(slots, most)
            assert 0.0 <= found[f"p{index}"].lent.capacity <= room


def test_protected_jobs_fit_the_guarantee_by_priority_then_running_ones_first() -> None:
    jobs = [
        job("low", "red", 2, 4, spec={"priority": 10}),
        job("waits", "red", 2, 4),
        job("runs", "red", 2, 4, state=JobState.RUNNING),
        job("high", "red", 2, 4, spec={"priority": 90}),
        job("other", "blue", 1, 4, spec={"priority": 100}),
    ]
    held = [0, 0, 2, 0, 0]

    def protected(guaranteed: int) -> list[str]:
        claim = claims(settled(projects={"red": quota(guaranteed)}), jobs, room=32, current=held)["red"]
        return [one.id for one, is_in in zip(jobs, claim.protected, strict=True) if is_in]

    assert protected(1) == []
    assert protected(2) == ["high"]
    assert protected(4) == ["runs", "high"]
    assert protected(7) == ["waits", "runs", "high"]
    assert protected(8) == ["low", "waits", "runs", "high"]


def test_a_smaller_job_is_protected_in_place_of_one_that_does_not_fit() -> None:
    jobs = [job("wide", "red", 4, 4, spec={"priority": 90}), job("small", "red", 1, 4)]
    claim = claims(settled(projects={"red": quota(3)}), jobs)["red"]
    assert claim.protected.tolist() == [False, True]
    assert claim.least.tolist() == [4.0, 1.0]


@pytest.mark.parametrize(
    ("held", "lent"),
    [
        ([0, 0, 0], 4.0),  # nobody borrows: 8 slots less the claim of 4
        ([0, 4, 0], 4.0),
        ([0, 4, 4], 4.0),  # both can shrink to 1 slot
    ],
)
def test_others_may_borrow_what_the_claim_leaves(held: list[int], lent: float) -> None:
    jobs = [job("a", "red"), job("b", "blue"), job("c", "blue")]
    claim = claims(settled(projects={"red": quota(4)}), jobs, current=held)["red"]
    assert claim.lent.capacity == lent
    assert claim.lent.name == "lent/red"
    assert claim.lent.jobs is not None
    assert claim.lent.jobs.tolist() == [False, True, True]


def test_running_borrowers_are_stopped_only_for_the_protected_part() -> None:
    """A claim of 6 slots of 8; two borrowers cannot run on less than 3 each, and 1 slot protects the job."""
    jobs = [job("a", "red", 1, 6), job("b", "blue", 3, 4), job("c", "blue", 3, 4)]
    snapshot = settled(projects={"red": quota(6)})
    assert claims(snapshot, jobs, current=[0, 4, 4])["red"].lent.capacity == 6.0
    assert claims(snapshot, jobs, current=[0, 4, 0])["red"].lent.capacity == 3.0, "one of them only waits"
    assert claims(snapshot, jobs)["red"].lent.capacity == 2.0
    wide = [job("a", "red", 6, 6), *jobs[1:]]
    assert claims(snapshot, wide, current=[0, 4, 4])["red"].lent.capacity == 2.0, "all 6 are protected"


def test_slots_that_the_jobs_of_a_project_cannot_use_are_not_claimed() -> None:
    """The project's job runs on one kind only: its claim concerns that kind, and no borrower on the other."""
    jobs = [
        job("a", "red", spec={"resources": {"devices": ["a100"]}}),
        job("b", "blue", spec={"resources": {"devices": ["a100"]}}),
        job("c", "blue", 3, spec={"resources": {"devices": ["h100"]}}),
    ]
    rooms = rooms_of(pool_of(FIRM, 6), pool_of(OTHER, 8))
    columns = columns_in(rooms, *jobs)
    kinds = [columns.by_kind.kinds[kind] for kind in columns.by_kind.kind]
    allowed = np.array(
        [
            [
                kind in one.spec.resources.devices and one.spec.elastic.min <= size <= 4
                for kind, size in zip(kinds, columns.configurations.slots, strict=True)
            ]
            for one in jobs
        ]
    )
    on_h100 = np.array([kind == "h100" for kind in kinds])
    runs = int(np.flatnonzero(on_h100 & (columns.configurations.slots == 4))[0])
    current = np.array([N, N, runs])
    found = tenancy_of(settled(projects={"red": quota(4)}), jobs, columns, rooms, allowed, current)
    (claim,) = found.claims
    assert (claim.lent.demand[on_h100] == 0).all()
    assert claim.lent.demand[~on_h100].tolist() == columns.configurations.slots[~on_h100].tolist()
    assert (claim.wanted, claim.open, claim.lent.capacity) == (4, 4, 2.0)


def claim_of(*, wanted: int = 4, opened: int = 4, lent: float = 2.0) -> GuaranteeClaim:
    """Jobs 0 and 1 are of the project, both protected at one slot; jobs 2 and 3 borrow."""
    return GuaranteeClaim(
        project="red",
        guaranteed=4,
        open=opened,
        wanted=wanted,
        members=np.array([True, True, False, False]),
        protected=np.array([True, True, False, False]),
        least=np.ones(4),
        lent=Row(
            name="lent/red", capacity=lent, demand=SLOTS * 1.0, jobs=np.array([False, False, True, True])
        ),
    )


@pytest.mark.parametrize(
    ("chosen", "taken", "unmet", "short"),
    [
        ([N, N, N, N], 0, [0, 1], True),
        ([0, N, N, N], 1, [1], True),
        ([2, N, N, N], 4, [], False),  # it has its guarantee, with one job
        ([0, 0, N, N], 2, [], False),
        ([0, 0, 1, N], 2, [], False),  # others take no more than they may
        ([0, 0, 1, 0], 2, [], True),  # others take 3 of 2
        ([1, 1, 1, 2], 4, [], False),  # it has all that it wants
        ([N, N, 2, 2], 0, [0, 1], True),
    ],
)
def test_a_claim_is_short_without_slots_for_a_job_or_while_others_take_too_much(
    chosen: list[int], taken: int, unmet: list[int], short: bool
) -> None:
    claim, choice = claim_of(), np.array(chosen)
    assert claim.taken(choice, SLOTS) == taken
    assert claim.unmet(choice, SLOTS) == unmet
    assert claim.is_short(choice, SLOTS) is short


@pytest.mark.parametrize(
    ("current", "chosen", "raised"),
    [
        ([0, 0, N, N], [0, 0, N, N], False),
        ([0, 0, N, N], [1, 0, N, N], True),  # it grows within its claim
        ([1, 0, N, N], [0, 0, N, N], False),  # it shrinks
        ([1, 1, N, N], [2, 2, N, N], False),  # beyond what it wants
        ([0, 0, 1, N], [0, 0, 1, 0], True),  # it is short
    ],
)
def test_a_claim_is_raised_while_its_project_gains_slots_or_lacks_them(
    current: list[int], chosen: list[int], raised: bool
) -> None:
    assert claim_of().is_raised(np.array(current), np.array(chosen), SLOTS) is raised


@pytest.mark.parametrize(("slots", "capacity"), [(0, 6.0), (1, 5.0), (4, 2.0), (9, 2.0)])
def test_others_may_take_what_the_project_does_not(slots: int, capacity: float) -> None:
    claim = claim_of()
    assert claim.lending(slots).capacity == capacity
    assert claim.lending(slots).name == claim.lent.name
    assert claim.lent.capacity == 2.0


@pytest.mark.parametrize(
    ("most", "current", "above"),
    [(4, [1, 1, 2], False), (3, [1, 1, 2], True), (3, [1, 0, 2], False), (0, [N, N, 2], False)],
)
def test_jobs_of_a_project_above_its_maximum_are_too_large(
    most: int, current: list[int], above: bool
) -> None:
    members = np.array([True, True, False])
    rows = (
        Row(name="quota/red", capacity=float(most), demand=SLOTS * 1.0, jobs=members),
        Row(name="firm/red", capacity=0.0, demand=SLOTS * 1.0, jobs=~members),
    )
    given = a_round(np.ones((3, 3)), SLOTS, capacity=99, current=np.array(current))
    assert Tenancy(rows=rows).too_large(given).tolist() == (members & above).tolist()


@pytest.mark.parametrize(
    ("tenants", "projects", "shares"),
    [
        # Equal weights: half of all usage is due to each.
        ({"a": quota(used=1.0), "b": quota(used=1.0)}, "ab", [1.0, 1.0]),
        ({"a": quota(used=3.0), "b": quota(used=1.0)}, "ab", [2.0**-0.5, 2.0**0.5]),
        ({"a": quota(used=1.0)}, "ab", [0.5, 2.0]),
        ({"a": quota(used=1.0)}, "aba", [0.5, 2.0, 0.5]),
        # Three quarters are due to a, and it has used them.
        ({"a": quota(weight=3.0, used=3.0), "b": quota(used=1.0)}, "ab", [1.0, 1.0]),
        # With a small weight the factor is bounded: 2 ** (1 - 1 / 0.01) would be tiny.
        ({"a": quota(weight=1.0, used=1.0), "b": quota(weight=99.0)}, "ab", [0.5, 2.0]),
        # One project, no usage, or no jobs: there is nothing to compare.
        ({"a": quota(used=1.0)}, "aa", None),
        ({"a": quota(), "b": quota()}, "ab", None),
        ({"a": quota(used=1.0)}, "", None),
        # The usage of a project without jobs in the round does not count.
        ({"a": quota(used=1.0), "b": quota(used=1.0), "c": quota(used=98.0)}, "ab", [1.0, 1.0]),
    ],
)
def test_weights_follow_past_usage(
    tenants: dict[str, Tenant], projects: str, shares: list[float] | None
) -> None:
    """By hand from the fair-share factor of batch schedulers, 2 ** (1 - used / due), within 1/2 and 2."""
    found = shares_by_use(tenants, list(projects))
    assert (found is None) == (shares is None)
    assert found is None or found.tolist() == pytest.approx(shares)


@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 1e6)), min_size=2, max_size=4), st.floats(0, 1e6)
)
@settings(max_examples=40)
def test_more_usage_never_raises_a_projects_own_weight(
    tenants: list[tuple[float, float]], more: float
) -> None:
    names = [f"p{index}" for index in range(len(tenants))]
    before = {
        name: quota(weight=weight, used=used) for name, (weight, used) in zip(names, tenants, strict=True)
    }
    after = before | {"p0": replace(before["p0"], used_slot_s=before["p0"].used_slot_s + more)}
    few, many = shares_by_use(before, names), shares_by_use(after, names)
    if few is not None and many is not None:
        assert many[0] <= few[0] + 1e-9
        assert (many[1:] >= few[1:] - 1e-9).all()
