"""Losses that the remaining members survive in place, and losses that they do not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation
from service.domain.jobs.membership import Born
from service.domain.life.changes import SWITCHED_WITHIN_S, complete_switch
from service.domain.life.life import Life
from service.domain.life.survivals import survive_loss
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    FOUR,
    THREE,
    TWO,
    alter,
    ended,
    event_of,
    exit_of,
    history,
    job_of,
    kinds,
    life_of,
    ordered,
    ordered_members,
    orders,
    prepared,
    process_at,
    stops,
    switched,
    training,
    with_exits,
)

KILLED = {"signal": 9}


def after_loss(cluster: Cluster, *lost: Born) -> Life:
    """The life after the loss of these processes."""
    exits: dict[Born, RankExit] = {who: exit_of(who[1], signal=9) for who in lost}
    life = with_exits(life_of(cluster), exits)
    return survive_loss(life, reason=Reason.RANK_LOST, message="a rank was killed")


def test_a_job_whose_ranks_hold_parts_of_the_model_restarts() -> None:
    cluster = training(THREE)
    alter(cluster, sharded=True)
    life = after_loss(cluster, (1, 0))
    assert (life.job.switch, life.job.newest_generation) == (None, 1)
    assert kinds(life)[-1] == "fail_rank"


def with_copies(cluster: Cluster) -> None:
    """Make the job one of a sharded model whose parts have copies."""
    spec = alter(cluster, sharded=True).spec
    alter(
        cluster,
        spec=spec.model_copy(update={"elastic": spec.elastic.model_copy(update={"redundancy": "neighbour"})}),
    )


@pytest.mark.parametrize(
    ("lost", "survives"), [([(1, 0)], True), ([(1, 2)], True), ([(1, 0), (1, 1)], False)]
)
def test_a_job_with_copies_of_its_parts_survives_unless_neighbours_are_lost(
    lost: list[Born], *, survives: bool
) -> None:
    cluster = training(THREE)
    with_copies(cluster)
    life = after_loss(cluster, *lost)
    assert kinds(life)[-1] == ("lose" if survives else "fail_rank")
    assert (life.job.switch is not None) is survives


@pytest.mark.parametrize(
    ("lost", "survives"), [([(1, 3)], True), ([(1, 0), (1, 1)], True), ([(1, 1), (1, 3)], False)]
)
def test_a_job_with_replicas_survives_unless_a_part_is_lost_with_all_of_them(
    lost: list[Born], *, survives: bool
) -> None:
    cluster = training(FOUR, parallel={"fsdp": 2})
    assert job_of(cluster).progress.mesh == "replicate=2,fsdp=2,tp=1"
    progress = job_of(cluster).progress.model_copy(update={"replicates": True})
    alter(cluster, sharded=True, progress=progress)
    life = after_loss(cluster, *lost)
    assert kinds(life)[-1] == ("lose" if survives else "fail_rank")
    if survives:
        after = "replicate=1,fsdp=2,tp=1" if len(lost) == 2 else "replicate=1,fsdp=3,tp=1"
        assert {one.mesh for one in orders(life).values()} == {after}
    else:
        assert (
            "no remaining rank has a copy of a lost part of its model" in event_of(life, "fail_rank").message
        )


def test_a_second_loss_before_the_copies_are_made_anew_may_take_a_part() -> None:
    cluster = training(THREE)
    with_copies(cluster)
    first = after_loss(cluster, (1, 0))
    second = survive_loss(
        with_exits(first, {(1, 1): exit_of(1, signal=9)}), reason=Reason.RANK_LOST, message="again"
    )
    assert kinds(second)[-1] == "fail_rank"


def test_the_other_members_go_on_without_the_lost_one() -> None:
    cluster = training(THREE)
    life = after_loss(cluster, (1, 0))
    job = life.job
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.RANK_LOST)
    assert (job.generation, job.newest_generation) == (1, 2)
    assert job.switch is not None
    assert (job.switch.generation, job.switch.ordered, job.switch.lost) == (2, True, True)
    assert job.switch.deadline == life.now + timedelta(seconds=SWITCHED_WITHIN_S)
    record = life.generations[2]
    assert (record.slots, record.stores) == ({"n0": (1,), "n1": (0,)}, {})
    assert [(one.rank, one.born_generation, one.born_rank) for one in record.members] == [
        (0, 1, 1),
        (1, 1, 2),
    ]
    assert record.first_node == "n0"
    assert record.master_port == life.loaded_footprint.stores["n0", 1]
    assert set(orders(life)) == {"n0", "n1"}
    assert all(order.lost for order in orders(life).values())
    assert event_of(life, "lose").data == {"from": 3, "survivors": 2, "generation": 2, "counted": False}
    assert (kinds(life), stops(life), ended(life)) == (["lose"], [], [])


def test_a_loss_counts_only_without_progress_since_the_last_one() -> None:
    cluster = training(THREE)
    samples = job_of(cluster).progress.samples
    assert after_loss(cluster, (1, 2)).job.infrastructure_failures == 0
    alter(cluster, samples_at_loss=samples)
    life = after_loss(cluster, (1, 2))
    assert (life.job.infrastructure_failures, life.job.state) == (1, JobState.RECOVERING)
    assert event_of(life, "lose").data["counted"]
    progress = job_of(cluster).progress
    alter(cluster, progress=progress.model_copy(update={"samples": samples + 1}))
    assert after_loss(cluster, (1, 2)).job.infrastructure_failures == 0


def test_completion_of_a_loss_remembers_the_samples() -> None:
    cluster = training()
    life = complete_switch(after_loss(cluster, (1, 1)), switched(world_size=1, lost_steps=1))
    assert life.job.samples_at_loss == job_of(cluster).progress.samples
    assert event_of(life, "switch").data["lost"]
    assert event_of(life, "switch").data["how"] == "live"
    assert (life.job.state, life.job.allocation) == (JobState.RUNNING, {"n0": (0,)})


def test_out_of_retries_the_job_stops() -> None:
    cluster = training(THREE, retry={"infrastructure": 1})
    samples = job_of(cluster).progress.samples
    alter(cluster, samples_at_loss=samples, infrastructure_failures=1)
    life = after_loss(cluster, (1, 2))
    assert (life.job.state, life.job.switch) == (JobState.RECOVERING, None)
    assert life.job.infrastructure_failures == 1, "the end counts it"
    assert stops(life) == [("n0", 1, 0, "kill"), ("n1", 1, 0, "kill")]
    assert orders(life) == {}
    alter(cluster, samples_at_loss=samples - 1)
    assert after_loss(cluster, (1, 2)).job.switch is not None, "a loss after progress is free"


def test_without_survivors_the_job_stops() -> None:
    life = after_loss(training(), (1, 0), (1, 1))
    assert (life.job.state, life.job.switch, orders(life)) == (JobState.RECOVERING, None, {})
    assert stops(life) == [("n0", 1, 0, "kill")]


def test_a_script_that_follows_no_orders_stops() -> None:
    life = after_loss(training(THREE, "restart"), (1, 2))
    assert (life.job.switch, orders(life)) == (None, {})
    assert stops(life) == [("n0", 1, 0, "kill"), ("n1", 1, 0, "kill")]


def test_without_a_store_the_job_stops() -> None:
    cluster = training(THREE)
    life = with_exits(life_of(cluster), {(1, 2): exit_of(2, signal=9)})
    life = replace(life, footprint=replace(life.loaded_footprint, stores={}))
    life = survive_loss(life, reason=Reason.RANK_LOST, message="a rank was killed")
    assert (life.job.state, life.job.switch, orders(life)) == (JobState.RECOVERING, None, {})


def test_a_process_that_ended_is_no_survivor() -> None:
    """Whatever its exit: a rank that has finished follows no order."""
    cluster = training(THREE)
    life = with_exits(life_of(cluster), {(1, 0): exit_of(0, exit_code=0), (1, 1): exit_of(1, signal=9)})
    life = survive_loss(life, reason=Reason.RANK_LOST, message="rank 1 was killed")
    assert ordered_members(life) == [(1, 2)]
    assert {order.store_addr for order in orders(life).values()} == {"n1.example"}


def test_a_loss_before_the_order_drops_the_newcomers() -> None:
    life = after_loss(prepared(FOUR), (1, 1))
    assert life.job.switch is not None
    assert (life.job.switch.generation, life.job.newest_generation) == (3, 3)
    assert ordered_members(life) == [(1, 0)]
    assert stops(life) == [("n1", 2, 2, "kill")]
    assert ended(life) == [2]
    assert event_of(life, "lose").data["from"] == 2


def test_a_loss_after_the_order_concerns_the_ordered_members() -> None:
    cluster = ordered(THREE)
    life = after_loss(cluster, (2, 2))
    assert ordered_members(life) == [(1, 0), (1, 1)]
    assert event_of(life, "lose").data == {"from": 3, "survivors": 2, "generation": 3, "counted": False}
    assert (stops(life), ended(life)) == ([], [2]), "nobody trains in the ordered generation any more"
    assert set(orders(life)) == {"n0", "n1"}


def test_leavers_of_an_ordered_change_stay_known() -> None:
    """Members that leave may still run when another is lost; their later end is no second loss."""
    cluster = training(THREE, batch={"global": 32, "policy": "adaptive", "max_global": 64})
    cluster.change("a", {"n0": (0, 1)})
    switch = job_of(cluster).switch
    assert switch is not None
    alter(cluster, switch=replace(switch, left=((1, 2),), global_batch=64))
    life = after_loss(cluster, (1, 1))
    assert ordered_members(life) == [(1, 0)]
    assert life.job.switch is not None
    assert (life.job.switch.left, life.job.switch.global_batch) == (((1, 2),), 64)
    batch = orders(life)["n0"].batch
    assert batch is not None
    assert batch.global_batch == 64


def test_a_second_loss_in_a_recovery_does_not_count() -> None:
    cluster = training(FOUR)
    alter(cluster, samples_at_loss=job_of(cluster).progress.samples)
    cluster.tables.exits["a"][1, 3] = exit_of(3, signal=9)
    cluster.store(after_loss(cluster, (1, 3)))
    assert job_of(cluster).infrastructure_failures == 1
    life = after_loss(cluster, (1, 2))
    assert life.job.infrastructure_failures == 1
    assert (life.job.state, life.job.newest_generation) == (JobState.RECOVERING, 3)
    assert ordered_members(life) == [(1, 0), (1, 1)]
    assert (event_of(life, "lose").data["from"], ended(life)) == (3, [2])


@pytest.mark.parametrize("slot", [0, 1])
def test_a_killed_rank_costs_its_slot_only(slot: int) -> None:
    cluster = training(THREE)
    cluster.end(process_at(cluster, "n0", slot), **KILLED)
    cluster.settle()
    rest: Allocation = {"n0": (1 - slot,), "n1": (0,)}
    assert (job_of(cluster).state, job_of(cluster).allocation) == (JobState.RUNNING, rest)
    assert life_of(cluster).loaded_footprint.held == {1: rest}
    assert history(cluster)[-2:] == ["lose", "switch"]


def test_a_job_whose_ranks_are_all_killed_is_retried() -> None:
    cluster = training(TWO)
    for slot in (0, 1):
        cluster.end(process_at(cluster, "n0", slot), **KILLED)
    cluster.settle()
    assert (job_of(cluster).state, job_of(cluster).infrastructure_failures) == (JobState.RECOVERING, 1)
    assert cluster.tables.grants == {}
    assert history(cluster)[-1] == "recover"
