"""Starts and stops of whole generations."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.agents import StopCommand
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.records import Prediction
from service.domain.life.effects import AddAllocation, CallRound, RecordEvent, SendCommands
from service.domain.life.life import Life
from service.domain.life.starts import fail_rank, start_generation, vacate
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    JOB,
    THREE,
    TWO,
    alter,
    commands_of,
    deliver,
    event_of,
    history,
    job_of,
    kinds,
    life_of,
    ordered,
    prepared,
    process_at,
    runs,
    starting,
    stops,
    training,
    waiting,
)
from tests.unit.service.domain.life.tables import BEGIN


def started(cluster: Cluster, slots: Allocation, **fields: object) -> Life:
    """The life after a round that starts the job."""
    cluster.tables.grant(JOB, slots)
    begin = {"reason": Reason.ALLOCATED, "message": "there is room", **fields}
    return start_generation(life_of(cluster), slots, **begin)


def test_the_first_start_takes_the_job_out_of_the_queue() -> None:
    cluster = waiting()
    cluster.tables.pass_time(40.0)
    predicted = Prediction(100.0, 80.0, 120.0)
    life = started(cluster, THREE, round_id="r1", predicted=predicted)
    job = life.job
    assert (job.state, job.reason) == (JobState.STARTING, Reason.ALLOCATED)
    assert (job.generation, job.newest_generation, job.attempt, job.allocation) == (1, 1, 1, THREE)
    assert job.progress.run_since == life.now
    assert [type(one) for one in life.effects] == [RecordEvent, CallRound, AddAllocation, SendCommands]
    event = event_of(life, "allocate")
    assert event.data == {
        "round_id": "r1",
        "slots": 3,
        "nodes": {"node-n0": [0, 1], "node-n1": [0]},
        "waited_s": 40.0,
    }
    record = life.generations[1]
    assert (record.slots, record.first_node, record.device_kind) == (THREE, "n0", "cpu")
    assert (record.round_id, record.predicted, record.granted_at) == ("r1", predicted, life.now)
    assert [(one.rank, one.node_id, one.slot) for one in record.members] == [
        (0, "n0", 0),
        (1, "n0", 1),
        (2, "n1", 0),
    ]
    assert {(one.born_generation, one.born_rank) for one in record.members} == {(1, 0), (1, 1), (1, 2)}
    assert set(record.stores) == {"n0", "n1"}
    assert record.master_port == record.stores["n0"]
    assert set(runs(life)) == {"n0", "n1"}


def test_ranks_that_restart_need_one_store() -> None:
    life = started(waiting("restart"), {"n0": (0,), "n1": (0, 1)})
    record = life.generations[1]
    assert (record.first_node, set(record.stores)) == ("n1", {"n1"}), "the larger share comes first"


def test_the_node_of_rank_0_stays_first() -> None:
    cluster = training({"n1": (0,)}, "restart")
    cluster.change(JOB, {"n0": (0, 1), "n1": (0,)})
    cluster.settle()
    record = life_of(cluster).generations[2]
    assert record.first_node == "n1"
    assert [(one.rank, one.node_id, one.slot) for one in record.members] == [
        (0, "n1", 0),
        (1, "n0", 0),
        (2, "n0", 1),
    ]


def test_stores_of_two_jobs_get_different_ports() -> None:
    """The second job has the id of the first in the order of ports: its own choice is taken."""
    cluster = training({"n0": (0,)}, "restart")
    taken = life_of(cluster).generations[1].master_port
    life = life_of(waiting("restart"))
    fresh = start_generation(life, {"n0": (1,)}, reason=Reason.ALLOCATED, message="room")
    assert fresh.generations[1].master_port == taken
    crowded = replace(life, footprint=replace(life.loaded_footprint, ports_in_use={"n0": {taken}}))
    beside = start_generation(crowded, {"n0": (1,)}, reason=Reason.ALLOCATED, message="room")
    assert beside.generations[1].master_port == taken + 1
    assert runs(beside)["n0"].store_port == taken + 1


def test_a_start_forgets_what_belonged_to_the_last_generation() -> None:
    cluster = waiting()
    later = BEGIN + timedelta(days=1)
    alter(
        cluster, newest_generation=4, generation=3, attempt=2, live=True, samples_at_loss=10, retry_at=later
    )
    life = started(cluster, TWO)
    job = life.job
    assert (job.generation, job.newest_generation, job.attempt) == (5, 5, 3)
    assert (job.live, job.switch, job.target) == (False, None, None)
    assert (job.samples_at_loss, job.retry_at) == (None, None)
    assert runs(life)["n0"].restart_count == 2


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RECOVERING])
def test_only_a_restart_at_another_size_continues_a_run(state: JobState) -> None:
    cluster = waiting()
    before = job_of(cluster).progress.model_copy(update={"run_since": BEGIN})
    alter(cluster, state=state, progress=before)
    cluster.tables.pass_time(9.0)
    life = started(cluster, TWO)
    assert life.job.progress.run_since == cluster.tables.now
    assert ("waited_s" in event_of(life, "allocate").data) is (state is JobState.PENDING)
    alter(cluster, state=JobState.RESIZING)
    resized = start_generation(life_of(cluster), TWO, reason=Reason.ALLOCATED, message="moves")
    assert resized.job.progress.run_since == BEGIN
    assert "waited_s" not in event_of(resized, "allocate").data


@pytest.mark.parametrize(("target", "size"), [(None, 0), ({"n1": (0,)}, 1)])
def test_a_job_that_is_vacated_is_asked_to_save_and_stop(target: Allocation | None, size: int) -> None:
    life = vacate(life_of(training()), target, reason=Reason.PREEMPTED, message="others need the slots")
    assert (life.job.state, life.job.target) == (JobState.RESIZING, target)
    assert life.job.allocation == TWO, "it still trains there"
    assert event_of(life, "vacate").data == {"from": 2, "to": size}
    assert stops(life) == [("n0", 1, 0, "checkpoint")]


def test_a_job_can_be_vacated_while_it_starts() -> None:
    cluster = starting()
    cluster.vacate(JOB)
    cluster.settle()
    assert (job_of(cluster).state, cluster.tables.grants) == (JobState.PENDING, {})


def test_slots_of_a_moving_job_are_never_free() -> None:
    cluster = training({"n0": (0, 1)}, "restart")
    cluster.change(JOB, {"n0": (0,), "n1": (0,)})
    assert life_of(cluster).loaded_footprint.held == {1: {"n0": (0, 1)}, 2: {"n1": (0,)}}
    cluster.take_command("n0")
    for _ in range(2):
        cluster.take_report("n0")
    assert life_of(cluster).loaded_footprint.held == {1: {"n0": (0, 1)}, 2: {"n1": (0,)}}, (
        "two ranks have ended"
    )
    deliver(cluster, "n0")
    assert job_of(cluster).state is JobState.STARTING
    assert life_of(cluster).loaded_footprint.held == {2: {"n0": (0,), "n1": (0,)}}
    assert ("n0", 1) not in cluster.tables.grants, "what the target does not contain is free"
    cluster.settle()
    assert (job_of(cluster).state, job_of(cluster).attempt) == (JobState.RUNNING, 2)
    assert history(cluster)[-3:] == ["vacate", "allocate", "start"]


def test_a_failure_stops_the_whole_job() -> None:
    cluster = training(THREE)
    life = fail_rank(life_of(cluster), reason=Reason.USER_ERROR, message="rank 0 exited", dump_stacks=True)
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.USER_ERROR)
    assert stops(life) == [("n0", 1, 0, "kill"), ("n1", 1, 0, "kill")]
    assert all(stop.dump_stacks for stop in commands_of(life, StopCommand).values())
    assert kinds(life) == ["fail_rank"]


def test_a_failure_during_a_move_drops_its_target() -> None:
    cluster = training(TWO, "restart")
    cluster.change(JOB, THREE)
    life = fail_rank(life_of(cluster), reason=Reason.NODE_LOST, message="node n1 is lost")
    assert (life.job.state, life.job.target) == (JobState.RECOVERING, None)
    assert stops(life) == [("n0", 1, 0, "kill")]
    assert not commands_of(life, StopCommand)["n0"].dump_stacks


def test_a_failure_during_a_change_stops_newcomers_too() -> None:
    life = fail_rank(life_of(prepared()), reason=Reason.USER_ERROR, message="rank 0 exited")
    assert life.job.switch is not None
    assert life.job.switch.stopping
    assert stops(life) == [("n0", 1, 0, "kill"), ("n1", 2, 0, "kill")]


def test_a_second_failure_changes_nothing() -> None:
    cluster = training()
    cluster.store(fail_rank(life_of(cluster), reason=Reason.USER_ERROR, message="rank 0 exited"))
    life = life_of(cluster)
    assert fail_rank(life, reason=Reason.NODE_LOST, message="node n0 is lost") is life


def test_a_failure_ends_a_recovery_in_place() -> None:
    cluster = ordered()
    job = job_of(cluster)
    assert job.switch is not None
    alter(cluster, state=JobState.RECOVERING, switch=replace(job.switch, lost=True))
    life = fail_rank(life_of(cluster), reason=Reason.HUNG, message="too late")
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.HUNG)
    assert life.job.switching is None
    again = replace(life, effects=())
    assert fail_rank(again, reason=Reason.NODE_LOST, message="node n0 is lost") is again


def test_a_failure_of_a_job_that_is_cancelled_changes_nothing() -> None:
    cluster = training()
    alter(cluster, state=JobState.CANCELLING)
    life = life_of(cluster)
    assert fail_rank(life, reason=Reason.USER_ERROR, message="rank 0 exited") is life


def test_ranks_that_end_before_their_start_was_reported_fail_the_start() -> None:
    cluster = starting()
    cluster.take_command("n0")
    cluster.end(process_at(cluster, "n0", 0), exit_code=1)
    cluster.take_report("n0")
    job: Job = job_of(cluster)
    assert job.state is JobState.RUNNING, "its only node has started"
    cluster.settle()
    assert (job_of(cluster).state, job_of(cluster).reason) == (JobState.FAILED, Reason.USER_ERROR)
