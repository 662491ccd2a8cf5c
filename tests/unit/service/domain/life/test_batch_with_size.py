"""A change of the size and a start carry a batch: one change, which every kind of change keeps."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.agents import BatchOrder
from headway.contract.runtime import BatchChanged
from headway.contract.views.jobs import Reason
from service.domain.jobs.job import Allocation
from service.domain.life.changes import ChangeInPlace, complete_switch, newcomer_ready, prepare
from service.domain.life.ends import Aftermath, go_on
from service.domain.life.life import Life
from service.domain.life.messages import message_taken
from service.domain.life.requests import cancel
from service.domain.life.starts import fail_rank, start_generation, vacate
from service.domain.life.survivals import survive_loss
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    FOUR,
    JOB,
    THREE,
    TWO,
    alter,
    event_of,
    exit_of,
    job_of,
    life_of,
    orders,
    ready,
    runs,
    switched,
    training,
    waiting,
    with_exits,
)

BATCH = {"policy": "adaptive", "global": 32, "max_global": 1024}


def adaptive(slots: Allocation = TWO, resize: str = "live", batch: int = 32) -> Cluster:
    """A job that trains with this batch."""
    cluster = training(slots, resize, batch=BATCH)
    alter(cluster, progress=job_of(cluster).progress.model_copy(update={"global_batch": batch}))
    return cluster


def changing(cluster: Cluster, slots: Allocation, batch: int | None, effect: float | None = None) -> Life:
    """The life after a round's decision to change the slots and the batch."""
    cluster.tables.grant(JOB, {node: slots[node] for node in slots if node not in TWO})
    change = ChangeInPlace(
        target=slots,
        reason=Reason.BETTER_ALLOCATION,
        message="from 2 to 4 cpu slots; batch 128 at 4 slots",
        round_id="r1",
        global_batch=batch,
        batch_effect=effect,
    )
    life = prepare(life_of(cluster), change)
    assert life is not None
    return life


def test_newcomers_start_with_the_batch_of_the_order_that_follows() -> None:
    life = changing(adaptive(), FOUR, 128)
    (run,) = runs(life).values()
    assert (run.joins, run.global_batch, run.start_global_batch) == (True, 32, 128)
    life = newcomer_ready(newcomer_ready(life, ready(2)), ready(3))
    assert all(one.batch == BatchOrder(global_batch=128) for one in orders(life).values())


def test_the_exponent_of_the_efficiency_goes_with_the_batch_and_counts_once_it_is_switched() -> None:
    life = newcomer_ready(newcomer_ready(changing(adaptive(), FOUR, 128, 0.5), ready(2)), ready(3))
    assert all(one.batch == BatchOrder(global_batch=128, effect=0.5) for one in orders(life).values())
    assert life.job.progress.batch_effect == 1.0, "the ranks of the present generation count as before"
    switched_life = complete_switch(life, switched(world_size=4))
    assert switched_life.job.progress.batch_effect == 0.5
    (run,) = runs(changing(adaptive(), FOUR, 128, 0.5)).values()
    assert run.batch_effect == 0.5


def test_a_loss_takes_the_exponent_of_the_ranks_that_remain() -> None:
    for ordered, expected in ((False, 1.0), (True, 0.5)):
        life = changing(adaptive(), FOUR, 128, 0.5)
        if ordered:
            life = newcomer_ready(newcomer_ready(life, ready(2)), ready(3)).settled()
        lost = survive_loss(
            with_exits(life, {(1, 1): exit_of(1, signal=9)}), reason=Reason.RANK_LOST, message="killed"
        )
        plans = [one.batch for one in orders(lost).values()]
        assert [one.effect for one in plans if one is not None] == [expected] * len(plans)


def test_a_change_without_a_batch_keeps_the_present_one() -> None:
    life = changing(adaptive(batch=64), FOUR, None)
    (run,) = runs(life).values()
    assert run.start_global_batch == 64
    life = newcomer_ready(newcomer_ready(life, ready(2)), ready(3))
    assert all(one.batch == BatchOrder(global_batch=64) for one in orders(life).values())


def test_the_event_of_the_change_says_the_batch_and_its_reason() -> None:
    life = newcomer_ready(newcomer_ready(changing(adaptive(), FOUR, 128), ready(2)), ready(3))
    life = replace(complete_switch(life, switched(world_size=4)), effects=life.effects)
    text = BatchChanged(
        rank=0, generation=2, at_s=1e9, samples=110, global_batch=128, lr_factor=2.0, cause="ordered"
    )
    told = message_taken(life, (1, 0), text)
    assert told.job.progress.global_batch == 128
    data = event_of(told, "batch_changed").data
    assert (data["from"], data["to"]) == (32, 128)
    assert data["reason"] == "from 2 to 4 cpu slots; batch 128 at 4 slots"


def test_the_message_of_a_change_in_place_names_a_new_batch() -> None:
    life = newcomer_ready(newcomer_ready(changing(adaptive(), FOUR, 128), ready(2)), ready(3))
    done = complete_switch(life, switched(world_size=4))
    assert event_of(done, "switch").message.startswith("grew from 2 to 4 slots in place: batch 128, paused")
    same = newcomer_ready(newcomer_ready(changing(adaptive(), FOUR, 32), ready(2)), ready(3))
    assert "batch" not in event_of(complete_switch(same, switched(world_size=4)), "switch").message


def test_a_loss_before_the_order_keeps_the_batch_of_the_slots_that_remain() -> None:
    life = with_exits(changing(adaptive(), FOUR, 128), {(1, 1): exit_of(1, signal=9)})
    lost = survive_loss(life, reason=Reason.RANK_LOST, message="rank 1 was killed")
    assert all(one.lost and one.batch == BatchOrder(global_batch=32) for one in orders(lost).values())


def test_a_loss_after_the_order_takes_the_batch_along() -> None:
    """Some ranks may train with it already, so the next order decides for all."""
    life = newcomer_ready(newcomer_ready(changing(adaptive(), FOUR, 128), ready(2)), ready(3)).settled()
    lost = survive_loss(
        with_exits(life, {(1, 1): exit_of(1, signal=9)}), reason=Reason.RANK_LOST, message="killed"
    )
    assert all(one.lost and one.batch == BatchOrder(global_batch=128) for one in orders(lost).values())


def test_a_start_has_the_batch_of_its_decision() -> None:
    cluster = waiting(batch=BATCH)
    cluster.tables.grant(JOB, TWO)
    life = start_generation(
        life_of(cluster), TWO, reason=Reason.ALLOCATED, message="2 slots", global_batch=256
    )
    (run,) = runs(life).values()
    assert (run.global_batch, run.start_global_batch) == (32, 256)
    assert life.job.progress.global_batch == 256
    assert event_of(life, "allocate").data["global_batch"] == 256


def test_a_restart_at_another_size_keeps_the_batch_that_was_chosen_for_it() -> None:
    cluster = adaptive(TWO)
    cluster.tables.grant(JOB, {"n1": (0,)})
    life = vacate(
        life_of(cluster), THREE, reason=Reason.BETTER_ALLOCATION, message="to 3 slots", global_batch=96
    )
    assert (life.job.target, life.job.target_batch) == (THREE, 96)
    exits = {(1, rank): exit_of(rank, exit_code=143, stopped_by_agent=True) for rank in (0, 1)}
    life = with_exits(life, exits)
    for generation, nodes in life.loaded_footprint.held.items():
        for node in nodes:
            life = life.released(generation, node, carry_over={node: THREE[node]})
    after = go_on(life.settled(), Aftermath())
    assert (after.job.target, after.job.target_batch) == (None, None)
    assert after.job.progress.global_batch == 96
    assert {one.start_global_batch for one in runs(after).values()} == {96}


def test_the_batch_of_a_target_goes_with_it() -> None:
    def moving() -> Life:
        return vacate(
            life_of(adaptive()), THREE, reason=Reason.BETTER_ALLOCATION, message="to 3", global_batch=96
        ).settled()

    failed = fail_rank(moving(), reason=Reason.RANK_LOST, message="lost")
    assert (failed.job.target, failed.job.target_batch) == (None, None)
    gone = cancel(moving(), Aftermath(), force=True, reason=Reason.USER_REQUEST, message="stop")
    assert (gone.job.target, gone.job.target_batch) == (None, None)
    waits = vacate(life_of(adaptive()), None, reason=Reason.PREEMPTED, message="waits", global_batch=96)
    assert waits.job.target_batch is None
