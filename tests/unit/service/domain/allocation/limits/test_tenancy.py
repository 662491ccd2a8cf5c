"""Quotas: what a project is guaranteed comes back, where it ends it ends, and without quotas nothing is different."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, Plan
from service.domain.allocation.decision.plan import decide as decide_round
from service.domain.allocation.decision.quota_texts import guarantee_text, quota_usage
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.limits.tenancy import shares_by_use
from service.domain.cluster.snapshot import Measurement, SlotKey, Snapshot, Tenant
from service.domain.jobs.job import Job, size_of
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of

VISION, SPEECH, ROBOTS = "vision", "speech", "robots"
every_policy = pytest.mark.parametrize("name", POLICIES)


def decide(snapshot: Snapshot, name: str = "goodput") -> Plan:
    return decide_round(build_round(snapshot), policy(name), solve)


def job(job_id: str, project: str, least: int = 1, most: int = 8, *, held: int = 0, **fields: Any) -> Job:
    """A job that runs if it holds slots. Its speed is not measured, so that it may have any size, but for one that is restarted."""
    elastic = {"min": least, "max": most, "resize": fields.pop("resize", "live")}
    fields.setdefault("live", bool(held) and elastic["resize"] == "live")
    spec = spec_of(job_id, project=project, priority=fields.pop("priority", 50), elastic=elastic)
    state = JobState.RUNNING if held else JobState.PENDING
    return job_of(
        job_id, state, age_s=fields.pop("age_s", 100.0), spec=spec, generation=int(bool(held)), **fields
    )


def cluster(
    nodes: int, jobs: dict[Job, int] | list[tuple[Job, int]], quotas: dict[str, Tenant], *, size: int = 8
) -> Snapshot:
    """`nodes` of `size` slots, which jobs hold from the first one on, so many each."""
    pairs = list(jobs.items()) if isinstance(jobs, dict) else jobs
    keys = iter([(f"n{node}", slot) for node in range(nodes) for slot in range(size)])
    held = {job.id: [next(keys) for _ in range(count)] for job, count in pairs if count}
    made = snapshot_of(
        [node_of(f"n{index}", size) for index in range(nodes)], [one for one, _ in pairs], held
    )
    return replace(made, projects=quotas)


def quota(
    slots: int | None = None, most: int | None = None, *, weight: float = 1.0, used: float = 0.0
) -> Tenant:
    return Tenant(ProjectQuota(slots=slots, max_slots=most, weight=weight), used)


def after(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The picture a minute later, when every change is done and every job that runs was measured at its size."""
    jobs, held, measured = dict(snapshot.jobs), dict(snapshot.held), dict(snapshot.measurements)
    for one in plan.changes:
        was = jobs[one.job_id]
        held = {key: holder for key, holder in held.items() if holder != was.id}
        held |= {SlotKey(node, slot): was.id for node, slots in one.allocation.items() for slot in slots}
        jobs[was.id] = replace(
            was,
            state=JobState.RUNNING if one.allocation else JobState.PENDING,
            allocation=one.allocation,
            generation=was.generation + 1,
        )
        if one.allocation:
            size = size_of(one.allocation)
            speed = Measurement(
                "cpu", size, 100.0 * size**0.8, 100, nodes=len(one.allocation), global_batch=64
            )
            measured[was.id] = (*measured.get(was.id, ()), speed)
    later = snapshot.now + timedelta(minutes=1)
    return replace(snapshot, now=later, jobs=jobs, held=held, measurements=measured)


def settled(snapshot: Snapshot, name: str, rounds: int = 8) -> tuple[Snapshot, list[Decision]]:
    """Where a cluster has come to after so many rounds, and every change on the way."""
    changes: list[Decision] = []
    for _ in range(rounds):
        plan = decide(snapshot, name)
        changes += plan.changes
        snapshot = after(snapshot, plan)
    return snapshot, changes


def held_by(snapshot: Snapshot) -> Counter[str]:
    return Counter(snapshot.jobs[holder].spec.project for holder in snapshot.held.values())


@every_policy
def test_borrowers_shrink_and_none_is_stopped(name: str) -> None:
    borrowers = [(job(f"s{index}", SPEECH, 1, 8, held=8), 8) for index in range(2)]
    waiting = [(job("v1", VISION, 4, 8), 0), (job("v2", VISION, 2, 4), 0)]
    before = cluster(2, [*borrowers, *waiting], {VISION: quota(8)})
    found, changes = settled(before, name)
    assert all(one.action is not Action.VACATE for one in changes if one.job_id.startswith("s"))
    assert all(found.slots_held_by(one) for one in ("v1", "v2", "s0", "s1"))
    assert held_by(found)[VISION] >= 6


@every_policy
def test_a_borrower_is_stopped_where_shrinking_is_not_enough_the_one_that_counts_least_first(
    name: str,
) -> None:
    heavy = job("heavy", SPEECH, 4, 8, held=8, priority=80)
    light = job("light", SPEECH, 4, 8, held=8, priority=20)
    waiting = job("v", VISION, 8, 8)
    first = cluster(1, [(heavy, 8), (light, 8), (waiting, 0)], {VISION: quota(12)}, size=16)
    found, changes = settled(first, name, 2)
    assert len(found.slots_held_by("v")) == 8
    assert all(len(found.slots_held_by(one)) == 4 for one in ("heavy", "light")), "shrinking was enough"
    more = job("w", VISION, 4, 4)
    again = replace(found, jobs={**found.jobs, "w": replace(more, submitted_at=found.now)})
    last, changes = settled(again, name, 2)
    assert len(last.slots_held_by("w")) == 4
    assert len(last.slots_held_by("heavy")) == 4
    assert not last.slots_held_by("light")
    stopped = next(one for one in changes if one.action is Action.VACATE)
    assert stopped.reason is Reason.PREEMPTED
    assert stopped.message == (
        "its slots return to another project, which has a guarantee of 12 slots; it starts again when slots are free"
    )


@every_policy
def test_what_nobody_claims_is_borrowed(name: str) -> None:
    found, _ = settled(cluster(2, [(job("s", SPEECH, 16, 16), 0)], {VISION: quota(8)}), name)
    assert len(found.slots_held_by("s")) == 16


def test_a_guarantee_beats_priority() -> None:
    urgent = [(job(f"s{index}", SPEECH, 2, 8, held=8, priority=100), 8) for index in range(2)]
    found, _ = settled(
        cluster(2, [*urgent, (job("v", VISION, 4, 8, priority=0), 0)], {VISION: quota(8)}), "goodput"
    )
    assert len(found.slots_held_by("v")) >= 4


def test_a_guarantee_is_for_the_growth_of_its_jobs_too_as_long_as_others_can_shrink() -> None:
    borrowers = [(job(f"s{index}", SPEECH, 1, 8, held=7, priority=100), 7) for index in range(2)]
    jobs = [*borrowers, (job("v", VISION, 1, 8, held=2), 2)]
    found, changes = settled(cluster(1, jobs, {VISION: quota(8)}, size=16), "goodput")
    assert held_by(found)[VISION] == 8
    assert all(one.action is not Action.VACATE for one in changes)


def test_a_lowered_quota_makes_jobs_smaller_before_it_stops_one() -> None:
    jobs = [(job(f"s{index}", SPEECH, 1, 8, held=8), 8) for index in range(2)]
    for name in POLICIES:
        found, _ = settled(cluster(2, jobs, {SPEECH: quota(most=4)}), name, 3)
        assert held_by(found)[SPEECH] <= 4
        assert all(found.slots_held_by(one.id) for one, _ in jobs), name


def test_a_job_that_never_changes_does_not_start_on_what_is_guaranteed_to_others() -> None:
    rigid = job("s", SPEECH, 10, 10, resize="never")
    (waits,) = decide(cluster(2, [(rigid, 0)], {VISION: quota(8)})).decisions
    assert waits.reason is Reason.QUOTA
    assert "(elastic.resize: never)" in waits.message
    smaller = job("s", SPEECH, 8, 8, resize="never")
    (starts,) = decide(cluster(2, [(smaller, 0)], {VISION: quota(8)})).decisions
    assert starts.action is Action.START


def test_more_is_promised_than_there_is() -> None:
    jobs = [(job(f"v{index}", VISION, 1, 8), 0) for index in range(2)]
    jobs += [(job(f"s{index}", SPEECH, 1, 8), 0) for index in range(2)]
    found, _ = settled(cluster(1, jobs, {VISION: quota(16), SPEECH: quota(16)}), "goodput")
    assert held_by(found) == {VISION: 4, SPEECH: 4}


def test_who_used_less_is_preferred_and_nobody_starves() -> None:
    jobs = [(job("a", VISION, 8, 8), 0), (job("b", SPEECH, 8, 8), 0)]
    for heavy, gets in ((VISION, "b"), (SPEECH, "a")):
        found, _ = settled(cluster(1, jobs, {heavy: quota(used=1e9), ROBOTS: quota(1)}), "goodput", 1)
        assert found.slots_held_by(gets)
    waited = [(job("a", VISION, 8, 8, age_s=86_400.0), 0), (job("b", SPEECH, 8, 8, age_s=0.0), 0)]
    found, _ = settled(cluster(1, waited, {VISION: quota(used=1e12), ROBOTS: quota(1)}), "goodput", 1)
    assert found.slots_held_by("a"), "who has waited for a day has its turn, whatever its project has used"


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(st.floats(0.01, 100), st.floats(0, 1e12))))
def test_shares_are_bounded_and_even_where_use_is_as_due(projects: dict[str, tuple[float, float]]) -> None:
    tenants = {name: quota(weight=weight, used=used) for name, (weight, used) in projects.items()}
    shares = shares_by_use(tenants, [*"abcd"])
    assert shares is None or ((shares >= 0.5) & (shares <= 2.0)).all()
    even = {name: quota(weight=weight, used=weight * 3600) for name, (weight, _) in projects.items()}
    shares = shares_by_use(even, sorted(even))
    assert shares is None or shares == pytest.approx(1.0)


def test_sentences_name_the_own_project_and_numbers_and_no_other_project() -> None:
    held = [(job("s", SPEECH, 8, 8, held=8), 8), (job("v", VISION, 8, 8, held=8), 8)]
    full = cluster(2, [*held, (job("w", VISION, 4, 8), 0)], {VISION: quota(8, 8), SPEECH: quota(4)})
    waits = next(one for one in decide(full).decisions if one.job_id == "w")
    assert waits.reason is Reason.QUOTA
    assert waits.message == (
        "project vision holds 8 of its maximum of 8 slots, and this job needs at least 4; "
        "it starts when other jobs of the project end or shrink, or when max_slots is raised"
    )
    lent = cluster(
        2, [(job("s", SPEECH, 1, 16, held=12), 12), (job("v", VISION, 4, 8, held=4), 4)], {VISION: quota(8)}
    )
    assert guarantee_text(lent, VISION) == (
        "project vision holds 4 of its 8 guaranteed slots; 4 are lent to another project and return as jobs there shrink"
    )
    stands = quota_usage(lent, SPEECH)
    assert (stands.held, stands.borrowed, quota_usage(lent, VISION).borrowers) == (12, 12, (SPEECH,))
    change = next(one for one in decide(lent).decisions if one.job_id == "s")
    assert "slots return to another project, which has a guarantee of 8 slots" in change.message
    for one in (waits, change):
        other = VISION if one.job_id == "s" else SPEECH
        assert other not in one.message
