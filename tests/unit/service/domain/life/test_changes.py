"""Changes in place, from their preparation to their end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.job import Allocation
from service.domain.jobs.records import Prediction
from service.domain.life.changes import (
    READY_WITHIN_S,
    SWITCHED_WITHIN_S,
    ChangeInPlace,
    complete_switch,
    has_begun_to_end,
    member_left,
    newcomer_ready,
    prepare,
)
from service.domain.life.effects import AddAllocation
from service.domain.life.life import Life
from tests.unit.service.domain.life.scenes import (
    FOUR,
    JOB,
    THREE,
    TWO,
    alter,
    effects_of,
    ended,
    event_of,
    exit_of,
    history,
    job_of,
    kinds,
    left,
    life_of,
    ordered,
    ordered_members,
    orders,
    prepared,
    ready,
    runs,
    switched,
    training,
    with_exits,
)


def change_to(target: Allocation, **fields: object) -> ChangeInPlace:
    begin = {"reason": Reason.BETTER_ALLOCATION, "message": "more goodput", "round_id": "r1", **fields}
    return ChangeInPlace(target=target, **begin)


def without_stores(life: Life) -> Life:
    return replace(life, footprint=replace(life.loaded_footprint, stores={}))


# The end of a running generation


@pytest.mark.parametrize("resize", ["live", "restart"])
def test_a_job_that_holds_its_slots_has_not_begun_to_end(resize: str) -> None:
    assert not has_begun_to_end(life_of(training(THREE, resize)))


@pytest.mark.parametrize("resize", ["live", "restart"])
def test_a_job_that_has_lost_a_slot_has_begun_to_end(resize: str) -> None:
    assert has_begun_to_end(life_of(training(THREE, resize)).released(1, "n1"))
    assert has_begun_to_end(life_of(training(THREE, resize)).released(1, "n0", slots=[1]))


@pytest.mark.parametrize(("resize", "begun"), [("live", True), ("restart", False)])
def test_the_end_of_a_member_counts_where_members_change(resize: str, *, begun: bool) -> None:
    life = with_exits(life_of(training(TWO, resize)), {(1, 1): exit_of(1, exit_code=0, completed=True)})
    assert has_begun_to_end(life) is begun


def test_ends_of_former_members_do_not_count() -> None:
    cluster = prepared({"n0": (0,)})
    cluster.settle()
    assert job_of(cluster).state is JobState.RUNNING
    assert not has_begun_to_end(with_exits(life_of(cluster), {(1, 1): exit_of(1, exit_code=0)}))


def test_slots_of_several_starts_add_up() -> None:
    cluster = prepared(THREE, {"n0": (0,)})
    cluster.settle()
    assert set(life_of(cluster).loaded_footprint.held) == {1, 2}
    assert not has_begun_to_end(life_of(cluster))


# Preparation


def test_newcomers_are_prepared_while_training_goes_on() -> None:
    cluster = training()
    cluster.tables.grant(JOB, {"n1": (0,)})
    predicted = Prediction(100.0, 80.0, 120.0)
    life = prepare(life_of(cluster), change_to(THREE, predicted=predicted))
    assert life is not None
    job = life.job
    assert (job.state, job.reason) == (JobState.RESIZING, Reason.BETTER_ALLOCATION)
    assert (job.generation, job.newest_generation, job.allocation) == (1, 2, TWO)
    assert job.switch is not None
    assert (job.switch.generation, job.switch.ordered, job.switch.lost) == (2, False, False)
    assert job.switch.deadline == life.now + timedelta(seconds=READY_WITHIN_S)
    (added,) = effects_of(life, AddAllocation)
    assert (added.record.slots, added.record.predicted, added.record.round_id) == (THREE, predicted, "r1")
    assert [(one.rank, one.born_generation, one.born_rank) for one in added.record.members] == [
        (0, 1, 0),
        (1, 1, 1),
        (2, 2, 2),
    ]
    assert set(added.record.stores) == {"n1"}
    assert (added.record.first_node, added.record.device_kind) == ("n0", "cpu")
    assert added.record.master_port == life.loaded_footprint.stores["n0", 1]
    assert set(runs(life)) == {"n1"}
    assert orders(life) == {}
    assert event_of(life, "prepare").data == {
        "from": 2,
        "to": 3,
        "nodes": {"node-n0": [0, 1], "node-n1": [0]},
        "newcomers": 1,
        "round_id": "r1",
    }


def test_without_newcomers_the_order_goes_out_at_once() -> None:
    life = prepare(life_of(training(THREE)), change_to({"n0": (0,)}))
    assert life is not None
    switch = life.job.switch
    assert switch is not None
    assert (switch.ordered, switch.prepare_s, switch.ready_s) == (True, 0.0, {})
    assert switch.deadline == life.now + timedelta(seconds=SWITCHED_WITHIN_S)
    assert kinds(life) == ["prepare"], "nobody was waited for"
    assert set(orders(life)) == {"n0", "n1"}, "those that leave are told too"
    assert ordered_members(life) == [(1, 0)]
    assert not orders(life)["n0"].lost
    assert runs(life) == {}


def test_a_batch_changes_with_the_same_members() -> None:
    cluster = training(batch={"global": 32, "policy": "adaptive", "max_global": 64})
    life = prepare(life_of(cluster), change_to(TWO, reason=Reason.BETTER_BATCH, global_batch=64))
    assert life is not None
    assert ordered_members(life) == [(1, 0), (1, 1)]
    batch = orders(life)["n0"].batch
    assert batch is not None
    assert batch.global_batch == 64
    after = complete_switch(life, switched(world_size=2))
    assert (after.job.state, after.job.generation, after.job.allocation) == (JobState.RUNNING, 2, TWO)
    assert event_of(after, "switch").data["how"] == "live"


def test_without_a_store_only_a_restart_leads_there() -> None:
    life = without_stores(life_of(training()))
    assert prepare(life, change_to({"n0": (0,)})) is None
    assert prepare(life, change_to({"n1": (0,)})) is not None, "a newcomer brings its own"


def test_a_newcomers_store_serves_if_no_member_has_one() -> None:
    cluster = training()
    cluster.tables.grant(JOB, {"n1": (0,)})
    life = prepare(without_stores(life_of(cluster)), change_to(THREE))
    assert life is not None
    record = life.generations[2]
    assert (record.first_node, record.master_port) == ("n1", record.stores["n1"])


# Readiness and the order


def test_the_order_waits_for_the_last_newcomer() -> None:
    cluster = prepared(FOUR)
    cluster.tables.pass_time(20.0)
    one = newcomer_ready(life_of(cluster), ready(2))
    assert one.job.switch is not None
    assert (one.job.switch.ready_s, one.job.switch.ordered, one.effects) == ({2: 1.5}, False, ())
    both = newcomer_ready(one, ready(3, ready_s=4.0))
    switch = both.job.switch
    assert switch is not None
    assert (switch.ready_s, switch.ordered, switch.prepare_s) == ({2: 1.5, 3: 4.0}, True, 20.0)
    assert switch.deadline == both.now + timedelta(seconds=SWITCHED_WITHIN_S)
    assert set(orders(both)) == {"n0", "n1"}
    assert ordered_members(both) == [(1, 0), (1, 1), (2, 2), (2, 3)]
    assert event_of(both, "order").data == {"generation": 2, "prepare_s": 20.0}
    assert newcomer_ready(both, ready(3)) is both, "said again"


def test_readiness_without_a_change_is_ignored() -> None:
    life = life_of(training())
    assert newcomer_ready(life, ready(2)) is life
    cluster = prepared()
    switch = job_of(cluster).switch
    assert switch is not None
    alter(cluster, switch=replace(switch, stopping=True))
    life = life_of(cluster)
    assert newcomer_ready(life, ready(2)) is life


def test_a_move_of_every_process_gets_time_for_its_checkpoint() -> None:
    cluster = prepared({"n1": (0, 1)}, checkpoint={"grace_s": 40})
    life = newcomer_ready(newcomer_ready(life_of(cluster), ready(0)), ready(1))
    assert life.job.switch is not None
    assert life.job.switch.deadline == life.now + timedelta(seconds=SWITCHED_WITHIN_S + 40)
    assert ordered_members(life) == [(2, 0), (2, 1)]
    assert {order.store_addr for order in orders(life).values()} == {"n1.example"}
    after = complete_switch(life, switched(world_size=2))
    assert event_of(after, "switch").data["how"] == "checkpoint"
    assert after.job.allocation == {"n1": (0, 1)}


# Completion


def test_a_process_that_leaves_is_noted_once() -> None:
    cluster = prepared({"n0": (0,)})
    life = member_left(life_of(cluster), (1, 1), left(1))
    assert life.job.switch is not None
    assert (life.job.switch.left, life.effects) == (((1, 1),), ())
    assert member_left(life, (1, 1), left(1)) is life
    assert member_left(life, (1, 0), left(0, joined=3)) is life
    idle = life_of(training())
    assert member_left(idle, (1, 1), left(1)) is idle


def test_a_change_is_complete_once_its_rank_0_trains() -> None:
    cluster = ordered()
    alter(cluster, growth_failures=2, grow_after=cluster.tables.now, samples_at_loss=50)
    life = complete_switch(life_of(cluster), switched())
    job = life.job
    assert (job.state, job.reason, job.switch) == (JobState.RUNNING, Reason.PROGRESSING, None)
    assert (job.generation, job.newest_generation, job.allocation) == (2, 2, THREE)
    # Its new ranks may still fail, so the row of failures ends with time.
    assert (job.growth_failures, job.grow_after, job.samples_at_loss) == (2, cluster.tables.now, 50)
    assert ended(life) == [1]
    assert event_of(life, "switch").data == {
        "from": 2,
        "to": 3,
        "how": "live",
        "lost": False,
        "prepare_s": 0.0,
        "pause_s": 0.25,
        "ready_s": 0.1,
        "lost_steps": 0,
        "sync_bytes": 4096,
        "samples": 110,
    }
    again = replace(life, effects=())
    assert complete_switch(again, switched()) is again


def test_a_change_that_only_shrinks_says_nothing_about_growth() -> None:
    cluster = training(THREE)
    alter(cluster, growth_failures=2, grow_after=cluster.tables.now)
    cluster.change(JOB, {"n0": (1,)})
    life = complete_switch(life_of(cluster), switched(world_size=1))
    assert (life.job.growth_failures, life.job.grow_after) == (2, cluster.tables.now)
    assert (life.job.allocation, event_of(life, "switch").data["to"]) == ({"n0": (1,)}, 1)


def test_a_switch_is_only_believed_when_it_was_ordered() -> None:
    life = life_of(prepared())
    assert complete_switch(life, switched()) is life
    life = life_of(ordered())
    assert complete_switch(life, switched(generation=3)) is life
    idle = life_of(training())
    assert complete_switch(idle, switched(generation=1)) is idle


def test_a_switch_that_completes_while_the_job_stops_leaves_it_stopping() -> None:
    cluster = ordered()
    switch = job_of(cluster).switch
    assert switch is not None
    alter(cluster, state=JobState.CANCELLING, switch=replace(switch, stopping=True))
    life = complete_switch(life_of(cluster), switched())
    assert (life.job.state, life.job.generation, life.job.switch) == (JobState.CANCELLING, 2, None)
    assert (life.job.allocation, ended(life)) == (THREE, [1])
    assert event_of(life, "switch").state is JobState.CANCELLING


def test_a_change_passes_through_the_cluster() -> None:
    cluster = training({"n0": (0,)})
    cluster.change(JOB, {"n0": (1,), "n1": (0, 1)})
    cluster.settle()
    assert history(cluster)[-3:] == ["prepare", "order", "switch"]
    assert life_of(cluster).loaded_footprint.held == {2: {"n0": (1,), "n1": (0, 1)}}
    assert (job_of(cluster).live, job_of(cluster).attempt) == (True, 1)
