"""Requests of users, in each state of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.contract.run_facts import ProgressSource
from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.jobs.restorable import Restorable
from service.domain.jobs.retries import Failure
from service.domain.life import requests
from service.domain.life.effects import CallRound
from service.domain.life.ends import Aftermath
from service.domain.life.life import Life
from service.domain.shared.errors import ChangedMeanwhile, IllegalTransition, InvalidField
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    JOB,
    THREE,
    TWO,
    alter,
    checkpoint_at,
    ended,
    event_of,
    exit_of,
    freed,
    history,
    job_of,
    kinds,
    life_of,
    ordered,
    prepared,
    process_at,
    starting,
    stops,
    training,
    waiting,
)
from tests.unit.service.domain.life.tables import BEGIN

ASKED = {"reason": Reason.USER_REQUEST}
ENDED = sorted(TERMINAL_STATES)
FAILURE = Failure(reason=Reason.USER_ERROR, said="boom", ran_s=1.0, samples=0, checkpoint_samples=None)


def cancel(life: Life, *, force: bool = False) -> Life:
    return requests.cancel(life, Aftermath(), force=force, **ASKED, message="cancelled by its user")


def pause(life: Life, reason: Reason = Reason.USER_REQUEST) -> Life:
    return requests.pause(life, reason=reason, why="its user paused it")


def in_state(state: JobState, *, slots: bool = False) -> Cluster:
    """A job in this state, with or without slots."""
    cluster = training() if slots else waiting()
    alter(cluster, state=state)
    return cluster


def vacated() -> Cluster:
    """A job that moves by a restart, whose ranks have not stopped yet."""
    cluster = training(TWO, "restart")
    cluster.change(JOB, THREE)
    return cluster


def recovering() -> Cluster:
    """A job whose ranks are stopped after a failure."""
    cluster = training(TWO, "restart")
    cluster.end(process_at(cluster, "n0", 0), exit_code=75)
    cluster.take_report("n0")
    return cluster


# Cancel


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.PAUSED])
def test_a_job_without_slots_is_cancelled_at_once(state: JobState) -> None:
    life = cancel(life_of(in_state(state)))
    assert (life.job.state, life.job.reason) == (JobState.CANCELLED, Reason.USER_REQUEST)
    assert (kinds(life), stops(life)) == (["cancel"], [])
    assert cancel(life) is life


@pytest.mark.parametrize(("force", "mode"), [(False, "checkpoint"), (True, "kill")])
def test_a_running_job_is_stopped_first(mode: str, *, force: bool) -> None:
    for cluster in (starting(), training()):
        life = cancel(life_of(cluster), force=force)
        assert life.job.state is JobState.CANCELLING
        assert stops(life) == [("n0", 1, 0, mode)]


def test_a_cancellation_can_be_repeated_with_force() -> None:
    life = cancel(life_of(training())).settled()
    again = cancel(life, force=True)
    assert (again.job, kinds(again)) == (life.job, [])
    assert stops(again) == [("n0", 1, 0, "kill")]
    assert stops(cancel(life)) == [("n0", 1, 0, "checkpoint")]


def test_a_job_that_retries_without_slots_is_cancelled_at_once() -> None:
    life = cancel(life_of(in_state(JobState.RECOVERING)))
    assert (life.job.state, kinds(life)) == (JobState.CANCELLED, ["cancel", "vanish"])


def test_a_cancellation_withdraws_targets_and_pauses() -> None:
    cluster = vacated()
    alter(cluster, pause_requested=True)
    life = cancel(life_of(cluster))
    assert (life.job.state, life.job.target, life.job.pause_requested) == (JobState.CANCELLING, None, False)
    cluster.store(life)
    cluster.settle()
    assert (job_of(cluster).state, cluster.tables.grants) == (JobState.CANCELLED, {})


def test_a_cancellation_gives_up_a_prepared_change() -> None:
    life = cancel(life_of(prepared()))
    assert (life.job.state, life.job.switch) == (JobState.CANCELLING, None)
    assert kinds(life) == ["abandon", "cancel"]
    assert stops(life) == [("n0", 1, 0, "checkpoint"), ("n1", 2, 0, "checkpoint"), ("n1", 2, 2, "kill")]
    assert ended(life) == [2]


def test_a_cancellation_stops_after_an_ordered_change() -> None:
    cluster = ordered()
    life = cancel(life_of(cluster))
    assert life.job.state is JobState.CANCELLING
    assert life.job.switch is not None
    assert life.job.switch.stopping
    assert stops(life) == [("n0", 1, 0, "checkpoint"), ("n1", 2, 0, "checkpoint")]
    cluster.store(life)
    cluster.settle()
    assert (job_of(cluster).state, cluster.processes) == (JobState.CANCELLED, {})


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_job_that_has_ended_cannot_be_cancelled(state: JobState) -> None:
    with pytest.raises(IllegalTransition):
        cancel(life_of(in_state(state)))


# Pause


def test_a_waiting_job_is_paused_at_once() -> None:
    life = pause(life_of(waiting()), Reason.BUDGET)
    assert (life.job.state, life.job.reason, life.job.pause_requested) == (
        JobState.PAUSED,
        Reason.BUDGET,
        False,
    )
    assert pause(life) is life


def test_a_running_job_stops_before_it_pauses() -> None:
    for cluster in (starting(), training()):
        life = pause(life_of(cluster))
        assert (life.job.state, life.job.pause_requested) == (JobState.RESIZING, True)
        assert (life.job.target, stops(life)) == (None, [("n0", 1, 0, "checkpoint")])
        assert pause(life) is life
        cluster.store(life)
        cluster.settle()
        assert (job_of(cluster).state, cluster.tables.grants) == (JobState.PAUSED, {})


def test_a_job_says_what_its_stop_saves() -> None:
    cluster = training()
    assert "unknown" in pause(life_of(cluster)).job.message
    alter(cluster, progress=job_of(cluster).progress.model_copy(update={"source": ProgressSource.LIBRARY}))
    assert "checkpoint" in pause(life_of(cluster)).job.message
    assert "unknown" not in pause(life_of(cluster)).job.message


@pytest.mark.parametrize("scene", [vacated, recovering])
def test_a_job_that_stops_already_pauses_then(scene: Callable[[], Cluster]) -> None:
    cluster = scene()
    before = job_of(cluster)
    life = pause(life_of(cluster))
    assert (life.job.state, life.job.pause_requested) == (before.state, True)
    assert (kinds(life), stops(life)) == (["pause_requested"], [])
    cluster.store(life)
    cluster.settle()
    assert (job_of(cluster).state, cluster.tables.grants) == (JobState.PAUSED, {})


def test_a_pause_gives_up_a_prepared_change() -> None:
    cluster = prepared()
    life = pause(life_of(cluster))
    assert (life.job.state, life.job.switch, life.job.pause_requested) == (JobState.RESIZING, None, True)
    assert kinds(life) == ["abandon", "vacate"]
    cluster.store(life)
    cluster.settle()
    assert (job_of(cluster).state, cluster.tables.grants) == (JobState.PAUSED, {})


def test_a_pause_stops_after_an_ordered_change() -> None:
    cluster = ordered()
    life = pause(life_of(cluster))
    assert life.job.switch is not None
    assert (life.job.state, life.job.switch.stopping) == (JobState.RESIZING, True)
    assert stops(life) == [("n0", 1, 0, "checkpoint"), ("n1", 2, 0, "checkpoint")]
    assert kinds(life) == ["pause_requested"]
    cluster.store(life)
    cluster.settle()
    assert (job_of(cluster).state, cluster.processes) == (JobState.PAUSED, {})


def test_a_job_that_is_cancelled_cannot_pause() -> None:
    with pytest.raises(IllegalTransition):
        pause(life_of(in_state(JobState.CANCELLING, slots=True)))
    for state in ENDED:
        with pytest.raises(IllegalTransition):
            pause(life_of(in_state(state)))


# Resume


def test_a_paused_job_waits_again() -> None:
    life = requests.resume(life_of(in_state(JobState.PAUSED)), by="alice")
    assert (life.job.state, life.job.reason, kinds(life)) == (
        JobState.PENDING,
        Reason.USER_REQUEST,
        ["resume"],
    )


def test_a_pause_can_be_withdrawn_before_it_happens() -> None:
    cluster = training()
    cluster.store(pause(life_of(cluster)))
    life = requests.resume(life_of(cluster), by="alice")
    assert (life.job.state, life.job.pause_requested) == (JobState.RESIZING, False)
    assert kinds(life) == ["pause_withdrawn"]
    cluster.store(life)
    cluster.settle()
    assert job_of(cluster).state is JobState.PENDING
    assert history(cluster)[-1] == "requeue"


@pytest.mark.parametrize(
    "state",
    [JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.RESIZING, JobState.RECOVERING],
)
def test_a_job_that_competes_needs_no_resumption(state: JobState) -> None:
    life = life_of(in_state(state))
    assert requests.resume(life, by="alice") is life


REVIVED = [JobState.FAILED, JobState.CANCELLED]


@pytest.mark.parametrize("state", [JobState.CANCELLING, JobState.SUCCEEDED])
def test_resume_of_a_job_that_ends_well_is_refused(state: JobState) -> None:
    with pytest.raises(IllegalTransition):
        requests.resume(life_of(in_state(state)), by="alice", restorable=Restorable(checkpoint_at(100)))


@pytest.mark.parametrize("state", REVIVED)
def test_resume_of_an_ended_job_queues_it_with_a_fresh_budget(state: JobState) -> None:
    cluster = waiting()
    alter(
        cluster,
        state=state,
        reason=Reason.USER_ERROR,
        finished_at=BEGIN,
        generation=4,
        newest_generation=5,
        attempt=4,
        pause_requested=True,
        infrastructure_failures=3,
        user_errors=2,
        failures=(FAILURE,),
        retry_at=BEGIN,
        growth_failures=2,
        grow_after=BEGIN,
        samples_at_loss=7,
        preemptions=6,
    )
    life = requests.resume(life_of(cluster), by="alice", restorable=Restorable(checkpoint_at(1_200)))
    job = life.job
    assert (job.state, job.reason, job.finished_at) == (JobState.PENDING, Reason.USER_REQUEST, None)
    assert (job.infrastructure_failures, job.user_errors, job.failures) == (0, 0, ())
    assert (job.retry_at, job.growth_failures, job.grow_after, job.samples_at_loss) == (None, 0, None, None)
    assert (job.pause_requested, job.preemptions, job.attempt) == (False, 6, 4)
    data = event_of(life, "resume").data
    assert (data["by"], data["samples"], data["before"]["state"]) == ("alice", 1_200, state)
    assert "alice" in job.message
    assert "1,200 samples" in job.message
    assert isinstance(life.effects[-1], CallRound)
    cluster.store(life)
    cluster.start(JOB, TWO)
    assert (job_of(cluster).state, job_of(cluster).generation) == (JobState.STARTING, 6)


@pytest.mark.parametrize("state", REVIVED)
def test_resume_of_an_ended_job_without_checkpoint_is_refused_with_the_reason(state: JobState) -> None:
    with pytest.raises(IllegalTransition, match="none was saved"):
        requests.resume(life_of(in_state(state)), by="alice", restorable=Restorable(None, "none was saved"))


def test_resume_of_a_job_that_has_just_ended_asks_for_another_try() -> None:
    with pytest.raises(ChangedMeanwhile):
        requests.resume(life_of(in_state(JobState.FAILED)), by="alice")


def test_resume_of_a_job_ended_by_its_budget_is_refused() -> None:
    cluster = in_state(JobState.CANCELLED)
    alter(cluster, reason=Reason.BUDGET)
    with pytest.raises(IllegalTransition, match="--from"):
        requests.resume(life_of(cluster), by="alice", restorable=Restorable(checkpoint_at(100)))


# Resize


def test_a_size_is_fixed_and_released_again() -> None:
    life = requests.resize(life_of(training()), 4)
    assert (life.job.pinned_size, life.job.state) == (4, JobState.RUNNING)
    assert event_of(life, "resize_requested").data == {"slots": 4}
    assert isinstance(life.effects[-1], CallRound)
    assert requests.resize(life, 4) is life
    free = requests.resize(life.settled(), None)
    assert (free.job.pinned_size, event_of(free, "resize_requested").data) == (None, {"slots": None})
    assert requests.resize(free, None) is free


@pytest.mark.parametrize(
    ("elastic", "named"),
    [
        ({"min": 1, "max": 4}, "1 to 4"),
        ({"min": 1, "max": 8, "sizes": "pow2"}, "1, 2, 4, 8"),
        ({"min": 1, "max": 2}, "1, 2"),
    ],
)
def test_a_size_outside_the_job_file_is_refused(elastic: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidField, match=named):
        requests.resize(life_of(waiting(elastic=elastic)), 9)


def test_a_job_that_never_changes_may_do_so_before_its_start() -> None:
    assert requests.resize(life_of(waiting("never")), 3).job.pinned_size == 3
    with pytest.raises(IllegalTransition):
        requests.resize(life_of(training(TWO, "never")), 3)


@pytest.mark.parametrize("state", [JobState.CANCELLING, *ENDED])
def test_a_job_that_ends_has_no_size(state: JobState) -> None:
    with pytest.raises(IllegalTransition):
        requests.resize(life_of(in_state(state)), 2)


def test_a_request_for_another_size_ends_a_prepared_change() -> None:
    life = requests.resize(life_of(prepared()), 1)
    assert (life.job.switch, life.job.pinned_size, life.job.state) == (None, 1, JobState.RUNNING)
    assert kinds(life) == ["abandon", "resize_requested"]
    assert (stops(life), life.job.growth_failures) == ([("n1", 2, 2, "kill")], 0)


def test_a_change_that_fits_the_request_goes_on() -> None:
    for cluster, slots in ((prepared(), 3), (prepared(), None), (ordered(), 1)):
        alter(cluster, pinned_size=2)
        life = requests.resize(life_of(cluster), slots)
        assert (life.job.switch, life.job.pinned_size) == (job_of(cluster).switch, slots)
        assert (kinds(life), stops(life), freed(life)) == (["resize_requested"], [], [])


# Priority


def test_a_priority_counts_from_the_next_round_on() -> None:
    life = life_of(training())
    before = life.job.spec.priority
    after = requests.prioritize(life, before + 2)
    assert (after.job.spec.priority, after.job.state) == (before + 2, JobState.RUNNING)
    assert event_of(after, "priority_changed").data == {"from": before, "to": before + 2}
    assert isinstance(after.effects[-1], CallRound)
    assert requests.prioritize(after, before + 2) is after
    assert replace(after.job, spec=life.job.spec) == life.job


@pytest.mark.parametrize("state", [JobState.CANCELLING, *ENDED])
def test_a_job_that_ends_has_no_priority(state: JobState) -> None:
    with pytest.raises(IllegalTransition):
        requests.prioritize(life_of(in_state(state)), 7)


def test_a_request_finds_ranks_that_have_ended_in_between() -> None:
    cluster = training()
    cluster.complete(JOB)
    cluster.store(pause(life_of(cluster)))
    cluster.settle()
    assert job_of(cluster).state is JobState.SUCCEEDED
    assert exit_of(exit_code=0, completed=True) == cluster.tables.exits[JOB][1, 0]
