from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.run_facts import MemoryUse
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobProgress, JobState
from headway.contract.views.progress import LossProgress
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.snapshot import EndedRun, Measurement, Served, SlotKey, Snapshot
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S
from service.domain.jobs.job import Job
from service.simulation.changes import ChangedSnapshot
from service.simulation.model.world import PriorService
from service.simulation.snapshots import BelievedWorld, believed_world, sampled, settled
from tests.unit.service.builders import NOW, clusters, job_of, node_of, snapshot_of, spec_of

HORIZON_S = 86_400.0


def measured(slots: int, samples_per_s: float, kind: str = "cpu") -> Measurement:
    step_s = 32 / samples_per_s
    return Measurement(
        kind,
        slots,
        samples_per_s,
        500,
        global_batch=32,
        local_batch=32 // slots,
        step_s=step_s,
        sync_s=0.1 * step_s if slots > 1 else 0.0,
    )


def name(job_id: str) -> str:
    """Return a job name of the class `train`, which ends before the number."""
    return f"train-{int(job_id, 36)}"


def train(job_id: str, state: JobState = JobState.PENDING, **fields: Any) -> Job:
    elastic = fields.pop("elastic", {"min": 1, "max": 4})
    spec = spec_of(name(job_id), batch={"global": 32}, elastic=elastic)
    return job_of(job_id, state, spec=spec, age_s=fields.pop("age_s", 100.0), **fields)


def known(*jobs: Job, held: dict[str, list[tuple[str, int]]] | None = None, slots: int = 4) -> Snapshot:
    """Return one node and jobs of a class that processes 10 samples a second on a slot, and 19 on two."""
    found = snapshot_of([node_of("n1", slots)], jobs, held)
    return replace(found, class_measurements={"default/train": (measured(1, 10.0), measured(2, 19.0))})


def picture(snapshot: Snapshot, ended: tuple[float, ...] = (), **changed: Any) -> BelievedWorld:
    return believed_world(
        ChangedSnapshot(snapshot=snapshot, **changed), {"default/train": ended}, horizon_s=HORIZON_S
    )


def test_a_job_that_ends_by_progress_has_the_rest_of_it_left() -> None:
    made = {"progress": 250.0, "total_progress": 1000.0}
    job = train(
        "a", JobState.RUNNING, progress=JobProgress(samples=400, total_samples=1000, **made), live=True
    )
    found = picture(known(job, held={"a": [("n1", 0)]}))
    (application,) = found.world.applications
    assert application.boundaries.tolist() == [0.0, 750.0]


def test_what_was_learned_is_the_truth_of_the_world() -> None:
    progress = JobProgress(samples=400, total_samples=1000)
    job = train("a", JobState.RUNNING, progress=progress, live=True)
    found = picture(known(job, held={"a": [("n1", 0), ("n1", 1)]}))
    (arrival,), (application,) = found.world.arrivals, found.world.applications
    assert found.world.configurations.slots[arrival.holds] == 2
    assert (arrival.submit_s, arrival.declares_length, arrival.weight) == (-100.0, True, 1.0)
    assert application.boundaries.tolist() == [0.0, 600.0]
    one, two = application.goodput[0, :2]
    assert one == pytest.approx(10.0, rel=0.1)
    assert two == pytest.approx(19.0, rel=0.1)
    assert found.world.rules.live_pause_s == LIVE_CHANGE_S
    assert found.world.rules.give_up_s == HORIZON_S + 100.0
    assert (found.names, found.endless.tolist(), found.warnings) == ((name("a"),), [False], ())


def test_a_job_that_goes_half_way_is_as_fast_as_its_depth_lets_it() -> None:
    """Both rely on the class: without synchronisation the second would be 1 / 0.8 times as fast on two slots."""
    partial = {"min": 1, "max": 4, "partial_backprop": {"min_depth": 0.5}}
    world = picture(known(train("a"), train("b", elastic=partial))).world
    whole, half = (world.applications[arrival.application].goodput[0] for arrival in world.arrivals)
    assert half[0] == pytest.approx(whole[0], rel=1e-6)
    assert 1.15 < half[1] / whole[1] < 1 / 0.8


def test_what_jobs_had_and_what_the_policy_remembers_goes_on() -> None:
    progress = JobProgress(samples=640)
    ran = train("a", JobState.RUNNING, live=True, generation=3, age_s=7200.0, progress=progress)
    late = train("late", age_s=0.0)
    snapshot = replace(
        known(ran, late, held={"a": [("n1", 0)]}),
        served={"a": Served(seconds={"cpu": 7000.0}, slot_s=9000.0)},
        policy_state={"budget": {"spent_usd": 2.0}},
        ended_runs=(EndedRun("default/train", 900.0, 90.0, converged_samples=300.0, run="python train.py"),),
    )
    world = picture(snapshot, after_s={"late": 50.0}).world
    assert world.arrivals[0].before == PriorService(
        served_s=(7000.0,), served_slot_s=9000.0, changes=2, waited_s=0.0, done=640.0
    )
    assert world.ended == {"default/train": ((900.0, 90.0, 3.0),)}
    assert world.arrivals[1].before is None
    assert world.policy_state == {"budget": {"spent_usd": 2.0}}


def test_loss_curves_go_on_in_the_unit_of_the_work() -> None:
    curved = train("a", progress=JobProgress(samples=640, loss_curve=LossProgress(converged_work=3200.0)))
    world = picture(known(curved, train("b"))).world
    (first, second), before = world.applications, world.arrivals[0].before
    assert first.converged is not None
    assert before is not None
    assert (first.converged / before.done).tolist() == [5.0, 5.0]
    assert second.converged is None
    assert sampled(picture(known(curved)), 1).applications[0].converged == pytest.approx(first.converged)


def test_work_that_no_script_says_is_that_of_the_class_or_has_no_end() -> None:
    job = train("a", progress=JobProgress(samples=400))
    of_class = picture(known(job), ended=(1000.0,) * 8)
    assert of_class.world.applications[0].boundaries[-1] == pytest.approx(600.0, rel=0.3)
    assert not of_class.world.arrivals[0].declares_length
    assert of_class.work_spread[0] > 0
    said = picture(known(job), samples={"a": 5400})
    assert said.world.applications[0].boundaries[-1] == 5000.0
    assert said.world.arrivals[0].declares_length
    unknown = picture(known(job))
    goodput, end = unknown.world.applications[0].goodput.max(), unknown.world.applications[0].boundaries[-1]
    assert unknown.endless.tolist() == [True]
    assert end / goodput > HORIZON_S
    assert name("a") in unknown.warnings[0]


def test_a_job_that_was_never_measured_has_no_end_either() -> None:
    job = train("a", progress=JobProgress(total_samples=1000))
    found = picture(replace(known(job), class_measurements={}))
    assert found.endless.tolist() == [True]
    assert "neither it nor its class was measured" in found.warnings[0]


def test_jobs_that_come_later_come_last() -> None:
    jobs = [train("late", age_s=0.0), train("old"), train("new", age_s=0.0)]
    found = picture(known(*jobs), after_s={"late": 50.0, "new": 0.0})
    assert [one.id for one in found.world.arrivals] == ["old", "new", "late"]
    assert [one.submit_s for one in found.world.arrivals] == [-100.0, 0.0, 50.0]
    assert found.world.rules.give_up_s == HORIZON_S - 50.0


def test_a_job_that_can_never_run_is_said_and_left_out() -> None:
    found = picture(known(train("big", elastic={"min": 9, "max": 9}), train("a")))
    assert [one.id for one in found.world.arrivals] == ["a"]
    assert found.world.rejected[0][0] == name("big")
    assert any(f"{name('big')} can never run: it needs at least 9 slots" in one for one in found.warnings)


def test_sizes_that_do_not_cut_up_nodes_count_as_the_next_larger() -> None:
    nodes = [node_of("n1", 4), node_of("n2", 4)]
    job = train("odd", JobState.RUNNING, elastic={"min": 3, "max": 3})
    snapshot = replace(
        snapshot_of(nodes, [job], {"odd": [("n1", 0), ("n1", 1), ("n1", 2)]}),
        class_measurements={"default/train": (measured(1, 10.0),)},
    )
    found = picture(snapshot)
    (application,) = found.world.applications
    assert found.world.configurations.slots[application.goodput[0] > 0].tolist() == [4]
    assert found.world.configurations.slots[found.world.arrivals[0].holds] == 4


def test_a_sharded_job_has_the_sizes_of_its_meshes_that_fit_its_devices() -> None:
    """A part of the model needs 60 bytes on 4 slots, and the rest 30, of 100 bytes: 120 and 30 are too much on 2."""
    memory = MemoryUse(peak_bytes=90, shard_bytes=60, device_bytes=100, fsdp=2, samples=8)
    progress = JobProgress(
        samples=400, total_samples=1000, mesh="fsdp=2,tp=2", memory=memory, global_batch=32
    )
    fields = {"batch": {"global": 32, "max_local": 8}, "elastic": {"min": 1, "max": 6}, "parallel": {"tp": 2}}
    held = {"a": [("n1", slot) for slot in range(4)]}
    for known_memory, sizes in ((None, [2, 4, 6]), (memory, [4, 6])):
        job = job_of(
            "a",
            JobState.RUNNING,
            spec=spec_of(name("a"), **fields),
            age_s=100.0,
            progress=progress.model_copy(update={"memory": known_memory}),
            live=True,
            sharded=True,
        )
        world = picture(known(job, held=held, slots=6)).world
        ((runs,),) = [one.goodput > 0 for one in world.applications]
        assert world.configurations.slots[runs].tolist() == sizes


def test_each_market_has_its_price_and_a_job_on_both_goes_on_with_what_there_is() -> None:
    nodes = [
        replace(node_of("n1", 1), usd_per_slot_h=2.0),
        replace(node_of("n2", 4), market=Market.SPOT, usd_per_slot_h=0.5),
    ]
    elastic = {"min": 1, "max": 8}
    spec = spec_of(name("a"), batch={"global": 32}, elastic=elastic, market="mixed")
    job = job_of("a", JobState.RUNNING, spec=spec, age_s=100.0)
    held = {"a": [("n1", 0), *(("n2", slot) for slot in range(4))]}
    world = picture(snapshot_of(nodes, [job], held)).world
    assert {kind.name: kind.usd_per_slot_h for kind in world.kinds} == {"cpu": 2.0, "cpu (spot)": 0.5}
    holds = world.arrivals[0].holds
    assert world.configurations.slots[holds] == 4
    assert world.configurations.usd_per_h[holds] == 2.0


def test_restarts_where_most_jobs_do_not_change_in_place() -> None:
    elastic = {"min": 1, "max": 4, "resize": "restart"}
    found = picture(known(*(train(name, elastic=elastic) for name in "ab"), train("c")))
    assert found.world.rules.live_pause_s is None
    assert found.world.applications[0].restart_s == RESTART_S


def test_what_is_under_way_is_done() -> None:
    """A moving job is at its target, a stopping or paused job is absent, and other jobs wait or stay."""
    jobs = [
        train("moves", JobState.RESIZING, target={"n1": (1,)}),
        train("stops", JobState.CANCELLING),
        train("paused", JobState.PAUSED),
        train("pausing", JobState.RUNNING, pause_requested=True),
        train("recovers", JobState.RECOVERING),
        train("fixed", JobState.RUNNING, elastic={"min": 1, "max": 4, "resize": "never"}),
        train("lost", JobState.RUNNING),
        train("reclaimed", JobState.RUNNING),
    ]
    held = {
        "moves": [("n1", 0), ("n1", 1)],
        "stops": [("n1", 2)],
        "pausing": [("n1", 3)],
        "fixed": [("n2", 0)],
        "lost": [("n3", 0)],
        "reclaimed": [("n4", 0)],
    }
    nodes = [
        node_of("n1", 4),
        node_of("n2", 2, state=NodeState.CORDONED),
        node_of("n3", state=NodeState.LOST),
        replace(node_of("n4", 1), market=Market.SPOT, reclaim_at=NOW),
    ]
    calm, left_out = settled(snapshot_of(nodes, jobs, held))
    assert set(calm.jobs) == {"moves", "recovers", "fixed", "lost", "reclaimed"}
    assert dict(calm.held) == {SlotKey("n1", 1): "moves", SlotKey("n2", 0): "fixed"}
    assert {job: one.state for job, one in calm.jobs.items()} == {
        "moves": JobState.RUNNING,
        "recovers": JobState.PENDING,
        "fixed": JobState.RUNNING,
        "lost": JobState.PENDING,
        "reclaimed": JobState.PENDING,
    }
    assert calm.jobs["fixed"].sizes == (1,)
    assert {node.id: len(node.slots) for node in calm.nodes.values()} == {"n1": 4, "n2": 1}
    assert left_out == (
        f"{name('paused')} is paused and is not simulated",
        f"{name('pausing')} is paused and is not simulated",
    )


def test_draws_are_of_a_job_and_a_seed() -> None:
    both = picture(known(train("a"), train("b")), ended=(500.0, 1000.0, 2000.0))
    alone = picture(known(train("b")), ended=(500.0, 1000.0, 2000.0))
    assert sampled(both, 0) == both.world
    first, second = sampled(both, 1), sampled(both, 2)
    ends = [[one.boundaries[-1] for one in world.applications] for world in (both.world, first, second)]
    assert len({end for row in ends for end in row}) == 5  # Seed 0 keeps the median of both.
    assert sampled(alone, 1).applications[0].boundaries[-1] == ends[1][1]
    assert (first.seed, second.seed) == (1, 2)


@settings(max_examples=12)
@given(clusters(), st.integers(0, 3))
def test_every_cluster_has_a_world(snapshot: Snapshot, seed: int) -> None:
    """For any snapshot, no error is raised, capacity is not exceeded, and jobs hold only columns they can run on."""
    found = picture(snapshot)
    world = sampled(found, seed)
    assert len(found.names) == len(world.arrivals) == len(world.applications) == len(found.endless)
    held = np.zeros(len(world.kinds))
    for arrival in world.arrivals:
        application = world.applications[arrival.application]
        assert np.isfinite(application.goodput).all()
        assert (application.goodput >= 0).all()
        assert application.goodput.any()
        assert np.isfinite(application.boundaries[-1])
        assert application.boundaries[-1] > 0
        if arrival.holds != NOTHING:
            assert application.goodput[0, arrival.holds] > 0
            held[world.configurations.kind[arrival.holds]] += world.configurations.slots[arrival.holds]
    assert (held <= [kind.slots for kind in world.kinds]).all()
    assert world.rules.give_up_s > 0
