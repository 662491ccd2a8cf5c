"""Invariants of every round, for any cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.spec import Resize
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.eligibility import is_movable, is_waiting
from service.domain.allocation.decision.plan import Action, Decision, Plan
from service.domain.allocation.decision.plan import decide as decide_round
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Node, SlotKey, Snapshot
from service.domain.jobs.job import Allocation, Job, size_of
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import clusters, job_of, jobs_of, node_of, nodes_of, snapshot_of, spec_of


def decide(snapshot: Snapshot) -> Plan:
    return decide_round(build_round(snapshot), Goodput(), solve)


def keys_of(allocation: Allocation) -> set[SlotKey]:
    return {SlotKey(node, slot) for node, slots in allocation.items() for slot in slots}


def check(snapshot: Snapshot, plan: Plan) -> None:
    deciding = {
        job.id for job in snapshot.jobs.values() if is_waiting(job, snapshot) or is_movable(job, snapshot)
    }
    assert sorted(one.job_id for one in plan.decisions) == sorted(deciding), "one decision for each"
    granted: Counter[SlotKey] = Counter()
    for one in plan.decisions:
        check_decision(snapshot, one)
        if one.action in {Action.START, Action.CHANGE}:
            granted.update(keys_of(one.allocation))
    assert all(count == 1 for count in granted.values()), "no slot in two decisions"
    assert plan.solution.bound >= plan.solution.objective - 1e-6


def check_decision(snapshot: Snapshot, one: Decision) -> None:
    job = snapshot.jobs[one.job_id]
    held = set(snapshot.slots_held_by(job.id))
    assert one.message.strip()
    match one.action:
        case Action.START:
            assert not held
            check_allocation(snapshot, job, held, one.allocation)
        case Action.CHANGE:
            assert held
            assert job.state is JobState.RUNNING
            assert job.spec.elastic.resize is not Resize.NEVER
            assert keys_of(one.allocation) != held
            check_allocation(snapshot, job, held, one.allocation)
        case Action.VACATE:
            assert held
            assert not one.allocation
        case Action.KEEP:
            assert keys_of(one.allocation) == held
        case Action.WAIT:
            assert not held
            assert not one.allocation


def check_allocation(snapshot: Snapshot, job: Job, held: set[SlotKey], allocation: Allocation) -> None:
    keys = keys_of(allocation)
    for key in keys:
        node = snapshot.nodes[key.node_id]
        assert key.slot in node.slots, "a slot that its node has"
        assert key in held or key not in snapshot.held, "a slot that is free, or the job's own"
        assert node.keeps_jobs if key in held else node.takes_jobs
        pool = snapshot.pool_of(key)
        assert pool is not None
        assert pool.serves(job.spec), "a device and a market that the job takes"
    assert len({snapshot.kind_of(key) for key in keys}) == 1
    assert size_of(allocation) in {*job.sizes, len(held)}
    if not held:
        assert size_of(allocation) in job.sizes
    assert all(allocation.values()), "no node without a slot"


@given(clusters())
@settings(max_examples=40)
def test_every_plan_is_safe(snapshot: Snapshot) -> None:
    check(snapshot, decide(snapshot))


@given(clusters())
@settings(max_examples=20)
def test_the_same_picture_gives_the_same_plan(snapshot: Snapshot) -> None:
    backwards = replace(
        snapshot,
        nodes=dict(reversed(snapshot.nodes.items())),
        jobs=dict(reversed(snapshot.jobs.items())),
        held=dict(reversed(snapshot.held.items())),
        measurements=dict(reversed(snapshot.measurements.items())),
        served=dict(reversed(snapshot.served.items())),
    )
    first, again = (decide(one) for one in (snapshot, backwards))
    assert first.decisions == again.decisions


@given(st.lists(st.integers(0, 3).flatmap(nodes_of), max_size=3), st.data())
@settings(max_examples=25)
def test_a_lone_job_that_fits_is_started(nodes: list[Node], data: st.DataObject) -> None:
    job = data.draw(jobs_of("j", states=(JobState.PENDING,)))
    job = replace(job, state=JobState.PENDING, retry_at=None, pause_requested=False)
    snapshot = snapshot_of(nodes, [job])
    free = Counter(snapshot.pool_of(key) for key in snapshot.free)
    room = max((count for pool, count in free.items() if pool and pool.serves(job.spec)), default=0)
    (decision,) = decide(snapshot).decisions
    fitting = [size for size in job.sizes if size <= room]
    mixed = job.spec.market == "mixed"
    assert decision.action is (Action.START if fitting else Action.WAIT) or (mixed and not fitting)
    if fitting and not mixed:
        rigid = job.spec.elastic.resize is Resize.NEVER
        assert size_of(decision.allocation) == (max(fitting) if rigid else min(fitting))


@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.integers(1, 3), st.integers(0, 20))
@settings(max_examples=40)
def test_a_lone_job_of_a_size_that_never_changes_starts_on_its_maximum_or_on_all_slots(
    nodes: list[int], low: int, more: int
) -> None:
    """Nodes of several sizes: a maximum that is neither a power of two nor a number of whole nodes is offered too."""
    elastic = {"min": low, "max": low + more, "resize": "never"}
    machines = [node_of(f"n{index}", slots=slots) for index, slots in enumerate(nodes)]
    snapshot = snapshot_of(machines, [job_of("j", spec=spec_of("j", elastic=elastic))])
    (decision,) = decide(snapshot).decisions
    room = sum(nodes)
    assert size_of(decision.allocation) == (min(low + more, room) if low <= room else 0)


def apply(snapshot: Snapshot, plan: Plan, samples_per_s: dict[str, list[float]]) -> Snapshot:
    """The picture an hour later, when every change is done and measured."""
    jobs, held = dict(snapshot.jobs), dict(snapshot.held)
    measurements = dict(snapshot.measurements)
    later = snapshot.now + timedelta(hours=1)
    for one in plan.changes:
        job = jobs[one.job_id]
        held = {key: holder for key, holder in held.items() if holder != job.id}
        held |= dict.fromkeys(keys_of(one.allocation), job.id)
        state = JobState.RUNNING if one.allocation else JobState.PENDING
        since = snapshot.now if one.allocation else later
        jobs[job.id] = replace(job, state=state, state_since=since, allocation=one.allocation)
        if one.allocation:
            size = size_of(one.allocation)
            kind = snapshot.kind_of(next(iter(keys_of(one.allocation))))
            point = Measurement(kind, size, samples_per_s[job.id][size], 100)
            measurements[job.id] = (*measurements.get(job.id, ()), point)
    return replace(snapshot, now=later, jobs=jobs, held=held, measurements=measurements)


@given(st.data(), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=20)
def test_a_cluster_left_to_itself_comes_to_rest(data: st.DataObject, count: int, nodes: int) -> None:
    """Changes cost training time, so with nothing new they must end: no job swings between sizes."""
    machines = [data.draw(nodes_of(index)) for index in range(nodes)]
    jobs, speeds = [], {}
    for index in range(count):
        job = data.draw(jobs_of(f"j{index}"))
        jobs.append(job_of(job.id, JobState.PENDING, spec=job.spec, pinned_size=job.pinned_size))
        gains = data.draw(st.lists(st.floats(0.5, 2.0), min_size=16, max_size=16))
        speeds[job.id] = [100.0 * size**0.8 * gains[size] for size in range(16)]
    snapshot = snapshot_of(machines, jobs)
    for _ in range(40):
        plan = decide(snapshot)
        check(snapshot, plan)
        if not plan.changes:
            return
        snapshot = apply(snapshot, plan, speeds)
        waiting = [job for job in snapshot.jobs.values() if job.state is JobState.PENDING]
        fresh = {job.id: replace(job, state_since=snapshot.now) for job in waiting}
        snapshot = replace(snapshot, jobs={**snapshot.jobs, **fresh})
    raise AssertionError(f"still changing: {plan.changes}")


@given(clusters())
@settings(max_examples=20)
def test_a_pinned_job_is_given_no_third_size(snapshot: Snapshot) -> None:
    for one in decide(snapshot).decisions:
        job = snapshot.jobs[one.job_id]
        if job.pinned_size is not None and one.action in {Action.START, Action.CHANGE}:
            held = len(snapshot.slots_held_by(job.id))
            assert size_of(one.allocation) in {job.pinned_size, held} - {0}


def test_thousands_of_identical_jobs_in_a_queue() -> None:
    """The queue may be long: the round is not."""
    spec = spec_of("same", elastic={"min": 1, "max": 8, "sizes": "pow2"})
    jobs = [job_of(f"j{index:05}", spec=spec) for index in range(3_000)]
    snapshot = snapshot_of([node_of("n", slots=8)], jobs)
    plan = decide(snapshot)
    assert plan.solution.gap <= 1e-3
    assert len(plan.changes) == 8
    assert len(plan.decisions) == 3_000


def test_nothing_at_all() -> None:
    assert decide(snapshot_of()).decisions == ()
