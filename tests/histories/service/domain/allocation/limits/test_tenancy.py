"""Quotas hold in any cluster, over rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.cluster.snapshot import Snapshot, Tenant
from service.domain.jobs.job import Job
from service.domain.policies.registry import POLICIES
from tests.unit.service.builders import clusters
from tests.unit.service.domain.allocation.limits.test_tenancy import (
    ROBOTS,
    SPEECH,
    VISION,
    after,
    cluster,
    decide,
    held_by,
    job,
    quota,
    settled,
)


@st.composite
def tenancies(draw: st.DrawFn) -> Snapshot:
    """Two to four nodes of four slots, jobs of three projects, some of which run, and quotas that can be kept."""
    nodes = draw(st.integers(2, 4))
    free = 4 * nodes
    jobs = []
    for index in range(draw(st.integers(1, 7))):
        least = draw(st.sampled_from([1, 1, 2, 3, 4]))
        most = draw(st.integers(least, 8))
        held = draw(st.integers(least, most)) if free >= most and draw(st.booleans()) else 0
        free -= held
        project = draw(st.sampled_from([VISION, SPEECH, ROBOTS]))
        resize = draw(st.sampled_from(["live", "live", "restart"]))
        priority = draw(st.sampled_from([0, 50, 50, 100]))
        jobs.append(
            (job(f"j{index}", project, least, most, held=held, resize=resize, priority=priority), held)
        )
    left = 4 * nodes
    quotas = {}
    for project in (VISION, SPEECH, ROBOTS):
        guaranteed = draw(st.one_of(st.none(), st.integers(0, left)))
        left -= guaranteed or 0
        beyond = draw(st.one_of(st.none(), st.integers(0, 4)))
        at_most = None if beyond is None else (guaranteed or 0) + beyond
        used = draw(st.sampled_from([0.0, 1.0, 1e6]))
        quotas[project] = quota(guaranteed, at_most, weight=draw(st.sampled_from([0.5, 1.0, 4.0])), used=used)
    return cluster(nodes, jobs, quotas, size=4)


def least_within(snapshot: Snapshot, project: str) -> list[Job]:
    """The jobs of a project whose smallest sizes are within its guarantee: by priority, then those that run."""
    slots = snapshot.projects[project].quota.slots or 0
    jobs = [one for one in snapshot.jobs.values() if one.spec.project == project]
    within = []
    for one in sorted(jobs, key=lambda one: (-one.spec.priority, not snapshot.slots_held_by(one.id), one.id)):
        if min(one.sizes) <= slots:
            slots -= min(one.sizes)
            within.append(one)
    return within


@given(clusters(), st.sampled_from(list(POLICIES)))
@settings(max_examples=30)
def test_quotas_that_say_nothing_change_nothing(snapshot: Snapshot, name: str) -> None:
    plain = decide(snapshot, name)
    silent = {one.spec.project: Tenant() for one in snapshot.jobs.values()}
    told = decide(replace(snapshot, projects=silent), name)
    assert told.decisions == plain.decisions
    assert told.solution.objective == plain.solution.objective


@given(tenancies(), st.sampled_from(list(POLICIES)))
@settings(max_examples=25)
def test_no_project_has_more_than_it_may_have_at_most(snapshot: Snapshot, name: str) -> None:
    found, _ = settled(snapshot, name, 3)
    for project, slots in held_by(found).items():
        most = found.projects[project].quota.max_slots
        assert most is None or slots <= most


@given(tenancies(), st.sampled_from(list(POLICIES)))
@settings(max_examples=25)
def test_nobody_loses_the_least_that_is_within_a_guarantee(snapshot: Snapshot, name: str) -> None:
    plan = decide(snapshot, name)
    protected = {one.id for project in snapshot.projects for one in least_within(snapshot, project)}
    gets = tuple(zip(plan.round.jobs, plan.choices.chosen.tolist(), strict=True))
    slots = plan.round.columns.configurations.slots
    of_project: Counter[str] = Counter()
    for one, column in gets:
        of_project[one.spec.project] += int(slots[column]) if column >= 0 else 0
    for one, column in gets:
        if one.id in protected and snapshot.slots_held_by(one.id) and column < 0:
            assert of_project[one.spec.project] >= (snapshot.projects[one.spec.project].quota.slots or 0)


@given(tenancies(), st.sampled_from(list(POLICIES)))
@settings(max_examples=12)
def test_a_project_within_its_guarantee_gets_its_jobs_started(snapshot: Snapshot, name: str) -> None:
    """Within a few rounds. Which of its jobs have what is guaranteed to it, and for how long, is the policy's affair."""
    due = {project: {one.id for one in least_within(snapshot, project)} for project in snapshot.projects}
    for _ in range(8):
        held = held_by(snapshot)
        for project, jobs in due.items():
            full = held[project] >= (snapshot.projects[project].quota.slots or 0)
            jobs.difference_update([one for one in jobs if full or snapshot.slots_held_by(one)])
        snapshot = after(snapshot, decide(snapshot, name))
    assert not any(due.values())
