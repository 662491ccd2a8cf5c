"""Run times, waits and evidence of a snapshot's jobs, as the rules for competing jobs read them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from headway.contract.agents import NodeState
from headway.contract.run_facts import ImposedChange
from headway.contract.values.markets import Market
from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.configurations.masks import measured_configurations
from service.domain.allocation.configurations.scope import scope_of
from service.domain.allocation.limits.tenancy import Tenancy, tenancy_of
from service.domain.cluster.contention_rules import ContentionRules
from service.domain.cluster.snapshot import MeasuredRestart, Measurement, Snapshot, Tenant
from service.domain.contention.evidence import Evidence
from service.domain.contention.guaranteed_jobs import Tenure
from service.domain.contention.tenure import evidence_of, min_run_s, reported_left_s, tenure_of
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of

RUNNING = JobState.RUNNING


def seconds_ago(seconds: float) -> Any:
    return NOW - timedelta(seconds=seconds)


def one(state: JobState = RUNNING, slots: int = 2, **fields: Any) -> Snapshot:
    """A job with the first slots of a node of four."""
    elastic = {"min": 1, "max": 4, **fields.pop("elastic", {})}
    spec = spec_of("j", elastic=elastic, **fields.pop("spec", {}))
    job = job_of("j", state, age_s=fields.pop("age_s", 600.0), spec=spec, **fields)
    held = {"j": [("n", slot) for slot in range(slots)]} if state is not JobState.PENDING else {}
    return snapshot_of([node_of("n", 4)], [job], held)


def tenure(snapshot: Snapshot) -> Tenure:
    return tenure_of(scope_of(snapshot))


@pytest.mark.parametrize(
    ("start_s", "stop_s", "least_s", "seconds"),
    [
        # 20 times three seconds, the usual cost of a restart.
        (None, None, 0.0, 60.0),
        (None, None, 90.0, 90.0),
        (10.0, 5.0, 60.0, 300.0),
        (0.1, 0.1, 60.0, 60.0),
    ],
)
def test_the_minimum_run_time_covers_twenty_restarts(
    start_s: float | None, stop_s: float | None, least_s: float, seconds: float
) -> None:
    assert min_run_s(job_of(progress=JobProgress(start_s=start_s, stop_s=stop_s)), least_s) == seconds


def test_a_stop_measured_only_for_an_ended_job_counts_for_the_minimum_run_time() -> None:
    running = one(progress=JobProgress(start_s=300.0))
    ended = replace(running, restarts=(MeasuredRestart(stop_s=60.0, start_s=300.0),))
    assert tenure(ended).min_run_s.tolist() == [7200.0]
    assert np.array_equal(tenure(ended).restart_s, [360.0])


def test_a_run_is_counted_from_its_begin_not_from_its_last_change() -> None:
    changed = one(age_s=50.0, progress=JobProgress(run_since=seconds_ago(700)))
    assert tenure(changed).run_s.tolist() == [700.0]
    assert tenure(one(age_s=50.0)).run_s.tolist() == [50.0]


def test_a_waiting_job_has_not_run() -> None:
    assert tenure(one(JobState.PENDING, age_s=50.0)).run_s.tolist() == [0.0]


def test_a_clock_that_was_set_back_gives_no_negative_run_time() -> None:
    assert tenure(one(age_s=-50.0)).run_s.tolist() == [0.0]


@pytest.mark.parametrize(
    ("fields", "pinned", "rigid", "forced"),
    [
        ({}, False, False, False),
        ({"pinned_size": 2}, True, False, False),
        ({"pinned_size": 3}, False, False, False),
        ({"state": JobState.PENDING, "elastic": {"resize": "never"}}, False, True, False),
        ({"state": JobState.PENDING, "pinned_size": 2}, False, False, False),
    ],
)
def test_the_protection_of_a_job(fields: dict[str, Any], pinned: bool, rigid: bool, forced: bool) -> None:
    found = tenure(one(**fields))
    flags = (found.pinned, found.rigid, found.forced)
    assert [flag.tolist() for flag in flags] == [[pinned], [rigid], [forced]]


def test_a_job_that_must_leave_a_slot_is_forced() -> None:
    snapshot = one()
    nodes = {"n": node_of("n", 4, state=NodeState.DRAINING)}
    assert tenure(replace(snapshot, nodes=nodes)).forced.tolist() == [True]
    cordoned = {"n": node_of("n", 4, state=NodeState.CORDONED)}
    assert tenure(replace(snapshot, nodes=cordoned)).forced.tolist() == [False]


def test_only_the_changes_of_the_last_ten_minutes_cost() -> None:
    imposed = [
        ImposedChange(at=seconds_ago(age_s), cost_s=cost_s)
        for age_s, cost_s in ((700, 9.0), (500, 2.0), (1, 0.5))
    ]
    assert tenure(one(progress=JobProgress(imposed=imposed))).recent_s.tolist() == [2.5]


def test_priority_and_rules_are_those_of_the_job_and_the_cluster() -> None:
    rules = ContentionRules(min_run_s=120.0, max_wait_s=77.0)
    found = tenure(replace(one(spec={"priority": 70}), contention=rules))
    assert (found.priority.tolist(), found.min_run_s.tolist(), found.max_wait_s) == ([70.0], [120.0], 77.0)


@pytest.mark.parametrize(
    ("state", "fields", "coming"),
    [
        # In transition with four slots, of which its minimum is one.
        (JobState.RESIZING, {}, 3.0),
        (JobState.CANCELLING, {}, 3.0),
        (JobState.RESIZING, {"elastic": {"min": 4}}, 0.0),
        (JobState.STARTING, {"elastic": {"resize": "never"}}, 0.0),
        # A job that the round decides about is not in transition.
        (RUNNING, {}, 0.0),
    ],
)
def test_slots_beyond_the_minimum_of_a_job_in_transition_come_back(
    state: JobState, fields: dict[str, Any], coming: float
) -> None:
    assert tenure(one(state, slots=4, **fields)).coming.tolist() == [coming]


@pytest.mark.parametrize(
    ("state", "held", "fields", "leaving"),
    [
        (JobState.CANCELLING, 2, {}, 2.0),
        (JobState.RESIZING, 2, {}, 2.0),
        (JobState.RESIZING, 3, {"target": {"n": (0,)}}, 2.0),
        # A generation that has left one of its slots ends.
        (RUNNING, 1, {"allocation": {"n": (0, 1)}}, 1.0),
        (RUNNING, 2, {}, 0.0),
        (JobState.STARTING, 2, {}, 0.0),
    ],
)
def test_slots_that_a_job_does_not_keep_are_being_left(
    state: JobState, held: int, fields: dict[str, Any], leaving: float
) -> None:
    snapshot = one(state, slots=held)
    jobs = {"j": replace(snapshot.jobs["j"], **fields)}
    found = tenure(replace(snapshot, jobs=jobs)).leaving
    assert found is not None
    assert found.tolist() == [leaving]


def test_slots_come_back_to_the_pool_in_which_they_lie() -> None:
    nodes = [node_of("a", 2), node_of("b", 4, kind="h100"), node_of("c", 2, market=Market.SPOT)]
    spec = spec_of("j", elastic={"min": 1, "max": 4})
    jobs = [job_of("j", JobState.RESIZING, spec=spec)]
    held = {"j": [("b", slot) for slot in range(3)]}
    scope = scope_of(snapshot_of(nodes, jobs, held))
    assert dict(zip(scope.capacities, tenure_of(scope).coming.tolist(), strict=True)) == {
        "cpu": 0.0,
        "cpu (spot)": 0.0,
        "h100": 2.0,
    }


def test_slots_that_are_gone_or_held_by_no_known_job_do_not_come_back() -> None:
    snapshot = one(JobState.RESIZING, slots=4)
    gone = replace(snapshot, nodes={"n": replace(node_of("n", 4), slots={9: "cpu"})})
    assert tenure(gone).coming.tolist() == [0.0]
    assert tenure(replace(snapshot, jobs={})).coming.tolist() == [0.0]


def evidence(snapshot: Snapshot) -> Evidence:
    scope = scope_of(snapshot)
    tenancy = tenancy_of(
        snapshot,
        scope.jobs,
        scope.columns,
        scope.capacities,
        np.ones((len(scope.jobs), len(scope.columns.parts)), dtype=np.bool_),
        scope.current,
    )
    return evidence_of(scope, measured_configurations(scope), tenancy)


def known_sizes(snapshot: Snapshot) -> list[int]:
    slots = scope_of(snapshot).columns.configurations.slots
    return slots[evidence(snapshot).known[0]].tolist()


def test_sizes_of_the_job_and_of_its_class_are_known() -> None:
    snapshot = one()
    own = {"j": (Measurement("cpu", 2, 100.0, 50),)}
    of_class = {
        "default/j": (Measurement("cpu", 4, 100.0, 50),),
        "default/x": (Measurement("cpu", 1, 9.0, 50),),
    }
    assert known_sizes(snapshot) == []
    assert known_sizes(replace(snapshot, measurements=own)) == [2]
    assert known_sizes(replace(snapshot, measurements=own, class_measurements=of_class)) == [2, 4]


@pytest.mark.parametrize(
    ("fields", "exempt"),
    [
        ({"age_s": 5.0}, False),
        ({"pinned_size": 2}, True),
        # It has run for a long time without a measurement.
        ({"age_s": 600.0}, True),
        ({"state": JobState.PENDING}, False),
        ({"state": JobState.PENDING, "elastic": {"resize": "never"}}, True),
    ],
)
def test_a_job_that_is_not_explored_is_exempt(fields: dict[str, Any], exempt: bool) -> None:
    assert evidence(one(**fields)).exempt.tolist() == [exempt]


def test_members_of_a_project_with_a_claim_are_entitled() -> None:
    """`j` waits in a project with a guarantee whose slots another project holds."""
    other = job_of("x", RUNNING, age_s=600, spec=spec_of("x", project="other", elastic={"min": 1, "max": 4}))
    waiting = job_of("j", spec=spec_of("j", project="own"))
    snapshot = snapshot_of([node_of("n", 4)], [other, waiting], {"x": [("n", slot) for slot in range(4)]})
    assert evidence(snapshot).entitled.tolist() == [False, False]
    projects = {"own": Tenant(ProjectQuota(slots=2)), "other": Tenant(ProjectQuota())}
    claimed = evidence(replace(snapshot, projects=projects))
    jobs = scope_of(snapshot).jobs
    assert {job.id: bool(flag) for job, flag in zip(jobs, claimed.entitled, strict=True)} == {
        "x": False,
        "j": True,
    }


def test_nodes_count_with_slots_that_a_round_may_grant() -> None:
    nodes = [node_of("a"), node_of("b"), node_of("d", state=NodeState.DRAINING), node_of("g", kind="h100")]
    starting = job_of("s", JobState.STARTING, spec=spec_of("s", elastic={"min": 2, "max": 2}))
    snapshot = snapshot_of(nodes, [job_of("j"), starting], {"s": [("b", 0), ("b", 1)]})
    found = evidence(snapshot)
    assert dict(zip(scope_of(snapshot).capacities, found.nodes.tolist(), strict=True)) == {
        "cpu": 1,
        "h100": 1,
    }


def test_a_round_without_jobs_has_empty_evidence() -> None:
    scope = scope_of(snapshot_of([node_of("n")]))
    found = evidence_of(scope, measured_configurations(scope), Tenancy())
    assert found.entitled.shape == found.exempt.shape == (0,)
    assert tenure_of(scope).run_s.shape == (0,)


@pytest.mark.parametrize(
    ("rules", "epoch", "age_s", "leased"),
    [
        (ContentionRules(), 0, 1.0, None),
        (ContentionRules(lease_s=360.0), None, 359.0, True),
        (ContentionRules(lease_s=360.0), None, 360.0, False),
        # An epoch has 9,000 / (2 + 1/2) = 3,600 samples, for which 36 s are needed.
        (ContentionRules(whole_epochs=True), 2, 35.0, True),
        (ContentionRules(whole_epochs=True), 2, 37.0, False),
        (ContentionRules(whole_epochs=True), None, 1.0, False),
    ],
)
def test_a_lease_lasts_from_the_last_change(
    rules: ContentionRules, epoch: int | None, age_s: float, leased: bool | None
) -> None:
    progress = JobProgress(epoch=epoch, samples=9000, samples_per_s=100.0)
    found = tenure(replace(one(age_s=age_s, progress=progress), contention=rules)).leased
    assert (found is None) == (leased is None)
    assert found is None or found.tolist() == [leased]


@pytest.mark.parametrize(
    ("state", "told", "left_s"),
    [
        (JobState.RUNNING, {"samples": 800, "total_samples": 1000, "samples_per_s": 100.0}, 2.0),
        (JobState.RUNNING, {"samples": 1200, "total_samples": 1000, "samples_per_s": 100.0}, 0.0),
        (JobState.RUNNING, {"samples": 800, "total_samples": 1000}, math.inf),
        (JobState.RUNNING, {"samples": 800, "samples_per_s": 100.0}, math.inf),
        (JobState.PENDING, {"samples": 800, "total_samples": 1000, "samples_per_s": 100.0}, math.inf),
        (
            JobState.RUNNING,
            {"progress": 600.0, "total_progress": 1000.0, "samples_per_s": 100.0, "efficiency": 0.5},
            8.0,
        ),
    ],
)
def test_a_running_job_tells_when_it_ends(state: JobState, told: dict[str, float], left_s: float) -> None:
    job = job_of("job", state, progress=JobProgress.model_validate(told))
    assert reported_left_s(job) == pytest.approx(left_s)
