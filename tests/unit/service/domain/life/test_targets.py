"""End of a job at the target of its job file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.contract.views.forecasts import TargetProgress
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.job import Job
from service.domain.jobs.lifecycle import JobEvent, allows
from service.domain.life import requests
from service.domain.life.ends import Aftermath, go_on
from service.domain.life.life import Life
from service.domain.life.targets import finish_at_target
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    TWO,
    alter,
    event_of,
    exit_of,
    job_of,
    kinds,
    life_of,
    ordered,
    prepared,
    starting,
    stops,
    training,
    waiting,
    with_exits,
)

REACHED = TargetProgress(metric="loss", value=1.5, falls=True, present=1.49, reached_samples=57_600)


def at_target(job: Job) -> Job:
    return replace(job, progress=job.progress.model_copy(update={"goal_target": REACHED, "epoch": 7}))


def finished(cluster: Cluster) -> Life:
    life = life_of(cluster)
    return finish_at_target(life.with_job(at_target(life.job)))


def all_gone(life: Life, **how: object) -> Life:
    """The life after both members have ended and released their slots."""
    life = with_exits(life, {(1, rank): exit_of(rank=rank, **how) for rank in range(2)})
    for generation in list(life.loaded_footprint.held):
        life = life.released(generation)
    return go_on(life, Aftermath())


def test_ranks_save_and_stop_with_the_reason() -> None:
    life = finished(training(TWO))
    assert (life.job.state, life.job.reason) == (JobState.CANCELLING, Reason.TARGET_REACHED)
    assert life.job.message == "target reached: loss 1.49 <= 1.5 in epoch 7, at 57,600 samples"
    assert {mode for *_, mode in stops(life)} == {"checkpoint"}
    assert event_of(life, "finish").reason is Reason.TARGET_REACHED


@pytest.mark.parametrize(
    "how",
    [
        {"exit_code": 143, "stopped_by_agent": True},
        {"exit_code": 0, "completed": True},
        {"signal": 9},
        {"exit_code": 1},
    ],
)
def test_the_job_succeeds_however_its_ranks_end(how: dict[str, object]) -> None:
    ended = all_gone(finished(training(TWO)), **how).job
    assert (ended.state, ended.reason) == (JobState.SUCCEEDED, Reason.TARGET_REACHED)
    assert ended.message.startswith("target reached: loss 1.49 <= 1.5")
    assert ended.finished_at is not None
    assert ended.allocation == {}


def test_missing_output_is_named() -> None:
    life = finished(training(TWO))
    life = with_exits(life, {(1, rank): exit_of(rank=rank, exit_code=143) for rank in range(2)}).released(1)
    assert go_on(life, Aftermath(output_lost="disk full")).job.message.startswith("disk full\n")


def test_a_prepared_change_is_given_up_and_an_ordered_one_stops() -> None:
    given_up = finished(prepared())
    assert given_up.job.switch is None
    assert "abandon" in kinds(given_up)
    stopping = finished(ordered())
    assert stopping.job.switch is not None
    assert stopping.job.switch.stopping
    for life in (given_up, stopping):
        assert life.job.state is JobState.CANCELLING


def test_a_pause_under_way_becomes_the_end() -> None:
    cluster = training(TWO)
    life = requests.pause(life_of(cluster), reason=Reason.USER_REQUEST, why="its user paused it")
    after = finish_at_target(life.with_job(at_target(life.job)))
    assert (after.job.state, after.job.pause_requested) == (JobState.CANCELLING, False)


def test_a_start_under_way_ends() -> None:
    assert finished(starting()).job.state is JobState.CANCELLING


def test_a_job_without_a_reached_target_goes_on() -> None:
    life = life_of(training(TWO))
    assert finish_at_target(life) is life
    pending = TargetProgress(metric="loss", value=1.5)
    job = replace(life.job, progress=life.job.progress.model_copy(update={"goal_target": pending}))
    life = life.with_job(job)
    assert finish_at_target(life) is life


@pytest.mark.parametrize("state", list(JobState))
def test_only_a_job_that_may_train_ends_at_its_target(state: JobState) -> None:
    cluster = training(TWO)
    alter(cluster, state=state)
    life = finished(cluster)
    trains = state in {JobState.STARTING, JobState.RUNNING, JobState.RESIZING, JobState.RECOVERING}
    assert allows(state, JobEvent.FINISH) == trains
    assert (life.job.state is JobState.CANCELLING and life.job.reason is Reason.TARGET_REACHED) == trains


def test_a_job_that_holds_nothing_stays_as_it_is() -> None:
    cluster = waiting()
    alter(cluster, state=JobState.RECOVERING)
    assert finished(cluster).job.state is JobState.RECOVERING


def test_a_cancelled_job_stays_cancelled() -> None:
    life = life_of(training(TWO))
    asked = {"force": False, "reason": Reason.USER_REQUEST, "message": "cancelled by its user"}
    life = requests.cancel(life, Aftermath(), **asked)
    assert finish_at_target(life.with_job(at_target(life.job))).job.reason is Reason.USER_REQUEST


def test_a_cancel_after_the_target_does_not_change_the_end() -> None:
    life = finished(training(TWO))
    asked = {"force": True, "reason": Reason.USER_REQUEST, "message": "cancelled by its user"}
    life = requests.cancel(life, Aftermath(), **asked)
    assert {mode for *_, mode in stops(life)} == {"checkpoint", "kill"}
    assert all_gone(life, signal=9).job.state is JobState.SUCCEEDED
    assert job_of(training(TWO)).state is JobState.RUNNING
