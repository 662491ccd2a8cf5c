"""Decisions after the last process of a job has ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.run_facts import ProgressSource
from headway.contract.runtime import EXIT_NEVER_RETRY, STORAGE_AWAY
from headway.contract.views.forecasts import KeptForecast
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation
from service.domain.jobs.membership import Born
from service.domain.jobs.retries import ALIKE_FAILURES
from service.domain.life.effects import CallRound, CountPreemption, ReleaseSlots
from service.domain.life.ends import Aftermath, go_on, pause_now, release_node
from service.domain.life.life import Life
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    JOB,
    THREE,
    TWO,
    alter,
    effects_of,
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
    runs,
    starting,
    training,
    waiting,
    with_exits,
)
from tests.unit.service.domain.life.tables import BEGIN

DONE = exit_of(exit_code=0, completed=True)
STOPPED = exit_of(exit_code=143, stopped_by_agent=True)
LEFT = exit_of(exit_code=143)
FAILED = exit_of(exit_code=1, log_tail=("ValueError: 3 is odd",))


def gone(cluster: Cluster, *exits: RankExit, more: dict[Born, RankExit] | None = None) -> Life:
    """The life after all members have ended, rank 0 first, and released their slots."""
    life = life_of(cluster)
    ends = {(1, rank): exit_ for rank, exit_ in enumerate(exits)}
    life = with_exits(life, {**ends, **(more or {})})
    for generation in [one for one in life.loaded_footprint.held if one <= life.job.newest_generation]:
        life = life.released(generation)
    return life.settled()


def after_end(cluster: Cluster, *exits: RankExit, aftermath: Aftermath | None = None) -> Life:
    """The life after a job on two slots has ended in this way."""
    return go_on(gone(cluster, *exits), aftermath or Aftermath())


def known(cluster: Cluster, **fields: object) -> Cluster:
    """The cluster with other values of the job's progress."""
    alter(cluster, progress=job_of(cluster).progress.model_copy(update=fields))
    return cluster


def failing(cluster: Cluster, reason: Reason = Reason.RANK_LOST, message: str = "a rank failed") -> Cluster:
    """The cluster while its job stops after a failure."""
    alter(cluster, state=JobState.RECOVERING, reason=reason, message=message)
    return cluster


def vacated(cluster: Cluster, **fields: object) -> Cluster:
    """The cluster while its job stops as asked."""
    alter(cluster, **{"state": JobState.RESIZING, "reason": Reason.PREEMPTED, "message": "others", **fields})
    return cluster


# Releases


def test_a_release_carries_over_what_the_target_contains() -> None:
    cluster = vacated(training(THREE, "restart"), target={"n0": (1,), "n2": (0,)})
    life = release_node(life_of(cluster), 1, "n0")
    assert life.loaded_footprint.held == {1: {"n1": (0,)}, 2: {"n0": (1,)}}
    assert [type(one) for one in life.effects] == [ReleaseSlots, CallRound]
    assert release_node(life, 1, "n1").loaded_footprint.held == {2: {"n0": (1,)}}


def test_only_slots_of_the_running_generation_are_carried_over() -> None:
    cluster = prepared({"n0": (0, 1)}, {"n0": (0,)})
    vacated(cluster, target={"n0": (1,)})
    assert release_node(life_of(cluster), 2, "n0").loaded_footprint.held == {1: {"n0": (0,)}}


def test_single_slots_are_released_one_by_one() -> None:
    life = release_node(life_of(training()), 1, "n0", slots=[0])
    assert life.loaded_footprint.held == {1: {"n0": (1,)}}


def test_a_release_that_is_reported_again_changes_nothing() -> None:
    cluster = training()
    for slot in (0, 1):
        cluster.end(process_at(cluster, "n0", slot), exit_code=1)
    for _ in range(4):
        cluster.take_report("n0", times=2)
    assert (job_of(cluster).state, job_of(cluster).user_errors) == (JobState.FAILED, 1)
    assert history(cluster).count("give_up") == 1
    again = release_node(life_of(cluster), 1, "n0")
    assert (again.job, freed(again)) == (job_of(cluster), [])


# Success


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING, JobState.RECOVERING])
def test_a_job_whose_ranks_finished_succeeds(state: JobState) -> None:
    cluster = known(training(), samples=500)
    alter(cluster, state=state, reason=Reason.HUNG)
    life = after_end(cluster, DONE, DONE)
    assert (life.job.state, life.job.reason) == (JobState.SUCCEEDED, Reason.COMPLETED)
    assert (life.job.allocation, life.job.finished_at) == ({}, life.now)
    assert ended(life) == [1]


def test_a_job_that_finished_during_its_stop_succeeds() -> None:
    for target in (None, {"n1": (0,)}):
        cluster = known(vacated(training(TWO, "restart"), target=target), samples=500)
        if target:
            cluster.tables.grant(JOB, target)
        life = after_end(cluster, DONE, DONE)
        assert (life.job.state, life.job.target) == (JobState.SUCCEEDED, None)
        assert life.loaded_footprint.held == {}
        assert freed(life) == ([2] if target else [])
        assert runs(life) == {}


def test_success_with_lost_gradients_says_first_that_the_result_may_differ() -> None:
    lost = known(training(), samples=500, warnings=["3 batches are lost"], gradients_lost=True)
    message = after_end(lost, DONE, DONE).job.message
    assert message.startswith(
        "the result may be another than undisturbed (a warning says why: `headway describe"
    )
    assert message.endswith("; every rank finished")


def test_success_of_an_only_generation_says_nothing_of_state_that_was_not_prepared() -> None:
    kept = known(training(), samples=500, warnings=["ema changes in training"])
    assert after_end(kept, DONE, DONE).job.message == "every rank finished"


def test_a_job_without_progress_says_so() -> None:
    cluster = known(training(TWO, "restart"), source=ProgressSource.LIBRARY, samples=0)
    assert after_end(cluster, DONE, DONE).job.reason is Reason.NO_PROGRESS
    cluster = known(training(TWO, "restart"), source=None, samples=0)
    assert after_end(cluster, DONE, DONE).job.reason is Reason.NO_PROGRESS
    cluster.tables.pass_time(60.0)
    assert after_end(cluster, DONE, DONE).job.reason is Reason.COMPLETED


def test_a_success_names_output_that_was_lost() -> None:
    life = after_end(known(training(), samples=5), DONE, DONE, aftermath=Aftermath("disk n7 is full"))
    assert "disk n7 is full" in life.job.message


def forecast(took_s: float | None) -> KeptForecast:
    begin = {"share": 0.0, "at": BEGIN, "samples": 0, "device_kind": "cpu", "slots": 2, "time_s": 100.0}
    return KeptForecast(**begin, time_p90_s=150.0, cost_usd=None, cost_p90_usd=None, took_s=took_s)


def test_forecasts_are_scored_at_the_success() -> None:
    cluster = known(training(), samples=500)
    one = forecast(80.0)
    life = after_end(cluster, DONE, DONE, aftermath=Aftermath(forecasts=(one,)))
    assert life.job.progress.forecasts == [one]
    assert event_of(life, "forecast_scored").data["forecasts"][0]["took_s"] == 80.0
    assert kinds(life) == ["forecast_scored", "succeed"]
    unscored = after_end(cluster, DONE, DONE, aftermath=Aftermath(forecasts=(forecast(None),)))
    assert unscored.job.progress.forecasts == [forecast(None)]
    assert kinds(unscored) == ["succeed"]


def test_forecasts_of_a_job_that_did_not_succeed_are_not_scored() -> None:
    life = after_end(failing(training()), FAILED, FAILED, aftermath=Aftermath(forecasts=(forecast(80.0),)))
    assert (life.job.state, life.job.progress.forecasts) == (JobState.FAILED, [])


# Stops that were asked for


def test_a_job_that_was_stopped_for_others_waits_again() -> None:
    cluster = vacated(training())
    cluster.tables.pass_time(7.0)
    life = after_end(cluster, STOPPED, STOPPED)
    job = life.job
    assert (job.state, job.reason, job.allocation) == (JobState.PENDING, Reason.PREEMPTED, {})
    assert (job.preemptions, job.infrastructure_failures, job.progress.stop_s) == (1, 0, 7.0)
    assert effects_of(life, CountPreemption) == [CountPreemption(Reason.PREEMPTED)]
    assert (kinds(life), ended(life)) == (["requeue"], [1])


def test_a_job_that_moves_starts_on_its_target() -> None:
    target: Allocation = {"n0": (1,), "n1": (0,)}
    cluster = vacated(training(TWO, "restart"), target=target, reason=Reason.BETTER_ALLOCATION)
    cluster.tables.grant(JOB, {"n1": (0,)})
    life = release_node(with_exits(life_of(cluster), {(1, 0): STOPPED, (1, 1): STOPPED}), 1, "n0")
    life = go_on(life.settled(), Aftermath())
    assert (life.job.state, life.job.reason) == (JobState.STARTING, Reason.BETTER_ALLOCATION)
    assert (life.job.generation, life.job.allocation, life.job.target) == (2, target, None)
    assert life.loaded_footprint.held == {2: target}
    assert (ended(life), freed(life), set(runs(life))) == ([1], [], {"n0", "n1"})
    assert life.job.preemptions == 0


def test_a_pause_ends_a_stop_and_frees_the_target() -> None:
    cluster = vacated(training(TWO, "restart"), target={"n1": (0,)}, pause_requested=True)
    cluster.tables.grant(JOB, {"n1": (0,)})
    life = after_end(cluster, STOPPED, STOPPED)
    assert (life.job.state, life.job.reason) == (JobState.PAUSED, Reason.USER_REQUEST)
    assert (life.job.pause_requested, life.job.target, life.job.preemptions) == (False, None, 0)
    assert (life.loaded_footprint.held, freed(life)) == ({}, [2])


def test_a_pause_for_the_budget_keeps_its_reason() -> None:
    life = after_end(vacated(training(), pause_requested=True, reason=Reason.BUDGET), STOPPED, STOPPED)
    assert (life.job.state, life.job.reason) == (JobState.PAUSED, Reason.BUDGET)
    assert "headway resume" in life.job.message


def test_a_job_that_pauses_without_slots_says_what_it_kept() -> None:
    before = pause_now(life_of(waiting()))
    assert (before.job.state, before.job.message) == (JobState.PAUSED, "paused")
    cluster = known(vacated(training()), samples=1500, source=ProgressSource.LIBRARY)
    assert "1,500" in pause_now(life_of(cluster)).job.message
    assert "unknown" not in pause_now(life_of(cluster)).job.message
    known(cluster, source=None)
    assert "unknown" in pause_now(life_of(cluster)).job.message


@pytest.mark.parametrize("exits", [(STOPPED, STOPPED), (FAILED, STOPPED), (DONE, DONE), ()])
def test_a_cancelled_job_ends_as_cancelled(exits: tuple[RankExit, ...]) -> None:
    cluster = training()
    alter(cluster, state=JobState.CANCELLING, reason=Reason.USER_REQUEST)
    life = after_end(cluster, *exits, aftermath=Aftermath("disk n7 is full"))
    assert (life.job.state, life.job.reason) == (JobState.CANCELLED, Reason.USER_REQUEST)
    assert life.job.message == "disk n7 is full\ncancelled"
    assert (kinds(life), life.job.allocation) == (["vanish"], {})


def test_a_job_cancelled_by_the_service_keeps_the_message() -> None:
    cluster = training()
    alter(cluster, state=JobState.CANCELLING, reason=Reason.DEADLINE, message="out of time")
    assert after_end(cluster, STOPPED, STOPPED).job.message == "out of time"


# Failures


def test_a_stop_that_nobody_asked_for_is_a_failure() -> None:
    life = after_end(failing(training(), Reason.PREEMPTED), LEFT, STOPPED)
    assert (life.job.preemptions, life.job.infrastructure_failures) == (1, 0)
    life = after_end(failing(training(), Reason.PREEMPTED), LEFT, LEFT)
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.RANK_LOST)
    assert (life.job.preemptions, life.job.infrastructure_failures) == (0, 1)
    assert len(life.job.failures) == 1


def test_a_job_that_its_agent_stopped_waits_without_a_failure() -> None:
    life = after_end(training(), STOPPED, STOPPED)
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.PREEMPTED)
    assert (life.job.preemptions, life.job.failures, life.job.retry_at) == (1, (), None)
    assert effects_of(life, CountPreemption) == [CountPreemption(Reason.PREEMPTED)]
    assert kinds(life) == ["fail_rank", "recover"]


def test_a_reclaimed_spot_machine_is_the_reason() -> None:
    cluster = training()
    cluster.tables.hosts["n0"] = replace(cluster.tables.hosts["n0"], reclaimed=True)
    life = after_end(cluster, STOPPED, STOPPED)
    assert (life.job.reason, life.job.preemptions) == (Reason.SPOT_RECLAIMED, 1)
    assert "node-n0" in life.job.message
    assert after_end(cluster, FAILED, FAILED).job.reason is Reason.USER_ERROR
    del cluster.tables.hosts["n0"]
    assert after_end(cluster, STOPPED, STOPPED).job.reason is Reason.PREEMPTED


@pytest.mark.parametrize("exit_", [STOPPED, FAILED])
def test_ranks_that_hung_are_retried(exit_: RankExit) -> None:
    life = after_end(failing(training(), Reason.HUNG, "no step for 700 s"), exit_, exit_)
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.HUNG)
    assert (life.job.infrastructure_failures, life.job.user_errors, life.job.preemptions) == (1, 0, 0)


def test_an_error_of_the_script_fails_the_job() -> None:
    life = after_end(failing(training()), FAILED, STOPPED)
    job = life.job
    assert (job.state, job.reason) == (JobState.FAILED, Reason.USER_ERROR)
    assert (job.user_errors, job.finished_at, job.allocation) == (1, life.now, {})
    assert job.failures[0].said == "ValueError: # is odd"


def test_a_failure_is_retried_after_a_backoff() -> None:
    cluster = known(failing(training(retry={"user_errors": 3})), samples=100, checkpoint_samples=80)
    alter(cluster, user_errors=1)
    life = after_end(cluster, FAILED, STOPPED)
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.USER_ERROR)
    assert (life.job.user_errors, life.job.retry_at) == (2, life.now + timedelta(seconds=1))
    assert (life.job.failures[0].samples, life.job.failures[0].checkpoint_samples) == (100, 80)
    assert isinstance(life.effects[-1], CallRound)
    assert (kinds(life), effects_of(life, CountPreemption)) == (["recover"], [])


@pytest.mark.parametrize(("spent", "state"), [(2, JobState.RECOVERING), (3, JobState.FAILED)])
def test_retries_run_out(spent: int, state: JobState) -> None:
    cluster = failing(training())
    alter(cluster, infrastructure_failures=spent)
    life = after_end(cluster, exit_of(signal=9), exit_of(exit_code=1))
    assert (life.job.state, life.job.infrastructure_failures) == (state, spent + 1)
    assert life.job.reason is Reason.RANK_LOST


def test_a_checkpoint_beyond_the_last_failure_forgives_it() -> None:
    cluster = known(failing(training()), samples=100, checkpoint_samples=90)
    first = after_end(cluster, exit_of(signal=9), STOPPED)
    alter(cluster, infrastructure_failures=3, failures=first.job.failures)
    assert after_end(cluster, exit_of(signal=9), STOPPED).job.state is JobState.FAILED
    known(cluster, samples=300, checkpoint_samples=200)
    life = after_end(cluster, exit_of(signal=9), STOPPED)
    assert (life.job.state, life.job.infrastructure_failures) == (JobState.RECOVERING, 1)
    assert [one.samples for one in life.job.failures] == [300]


def test_a_hopeless_job_is_not_retried() -> None:
    cluster = failing(training(retry={"user_errors": 5}))
    life = after_end(cluster, exit_of(exit_code=EXIT_NEVER_RETRY), STOPPED)
    assert (life.job.state, life.job.user_errors) == (JobState.FAILED, 0)
    hung = failing(training(), Reason.HUNG)
    assert after_end(hung, exit_of(exit_code=EXIT_NEVER_RETRY), STOPPED).job.state is JobState.FAILED


def test_the_same_failure_over_and_over_is_not_retried() -> None:
    cluster = failing(training(retry={"user_errors": 100}))
    (failure,) = after_end(cluster, FAILED, STOPPED).job.failures
    alter(cluster, failures=(failure,) * (ALIKE_FAILURES - 2))
    assert after_end(cluster, FAILED, STOPPED).job.state is JobState.RECOVERING
    alter(cluster, failures=(failure,) * (ALIKE_FAILURES - 1))
    life = after_end(cluster, FAILED, STOPPED, aftermath=Aftermath("disk n7 is full"))
    assert (life.job.state, len(life.job.failures)) == (JobState.FAILED, ALIKE_FAILURES)
    assert "disk n7 is full" in life.job.message
    assert "ValueError" in life.job.message


def test_a_lost_node_stays_the_reason() -> None:
    cluster = failing(training(), Reason.NODE_LOST, "node node-n0 has not reported")
    cluster.tables.mark("n0", lost=True)
    life = after_end(cluster, exit_of(), exit_of())
    assert (life.job.reason, life.job.failures[0].nodes) == (Reason.NODE_LOST, ("node-n0",))
    assert life.job.failures[0].ran_s == 0.0
    ranks = after_end(failing(training(), Reason.RANK_LOST), exit_of(), exit_of())
    assert ranks.job.failures[0].nodes == ()


def test_a_pause_requested_during_a_recovery_ends_it() -> None:
    cluster = failing(training())
    alter(cluster, pause_requested=True)
    life = after_end(cluster, exit_of(signal=9), STOPPED)
    assert (life.job.state, life.job.pause_requested) == (JobState.PAUSED, False)
    assert (life.job.infrastructure_failures, kinds(life)) == (1, ["pause"])


def test_a_job_that_retries_holds_nothing() -> None:
    cluster = failing(training(TWO, "restart"))
    cluster.tables.grant(JOB, {"n1": (0,)})
    life = after_end(cluster, exit_of(signal=9), STOPPED)
    assert (life.job.state, life.job.allocation, life.loaded_footprint.held) == (JobState.RECOVERING, {}, {})
    assert freed(life) == [2]


# Ends during a change in place


def test_the_end_of_a_change_ends_both_generations() -> None:
    for cluster in (prepared(), ordered()):
        life = go_on(gone(cluster, STOPPED, STOPPED, more={(2, 2): STOPPED}), Aftermath())
        assert (ended(life), life.job.switch, life.job.state) == ([1, 2], None, JobState.PENDING)


def test_newcomers_are_judged_once_they_are_members() -> None:
    errors = {(2, 2): FAILED}
    before = go_on(gone(failing(prepared()), exit_of(signal=9), STOPPED, more=errors), Aftermath())
    assert (before.job.infrastructure_failures, before.job.user_errors) == (1, 0)
    before = go_on(gone(failing(prepared()), STOPPED, STOPPED, more=errors), Aftermath())
    assert (before.job.preemptions, before.job.user_errors) == (1, 0)
    after = go_on(gone(failing(ordered()), STOPPED, STOPPED, more=errors), Aftermath())
    assert (after.job.state, after.job.user_errors) == (JobState.FAILED, 1)


def test_a_start_without_any_exit_waits_again() -> None:
    """The agent never started the ranks: a stop overtook the run command."""
    life = after_end(vacated(starting()))
    assert (life.job.state, life.job.preemptions) == (JobState.PENDING, 1)


@pytest.mark.parametrize(("outages", "wait_s"), [(1, 1), (5, 16), (30, 120)])
def test_starts_without_storage_are_repeated_without_end_and_not_counted(outages: int, wait_s: int) -> None:
    away = replace(exit_of(0, exit_code=75), start_error=f"the bundle: {STORAGE_AWAY} (503)")
    cluster = failing(starting(TWO), Reason.STORAGE_UNAVAILABLE)
    after = after_end(cluster, away)
    for _ in range(outages - 1):
        alter(cluster, failures=after.job.failures)
        after = after_end(cluster, away)
    assert (after.job.state, after.job.reason) == (JobState.RECOVERING, Reason.STORAGE_UNAVAILABLE)
    assert (after.job.infrastructure_failures, after.job.user_errors, after.job.preemptions) == (0, 0, 0)
    assert after.job.retry_at == after.now + timedelta(seconds=wait_s)
    assert f"{STORAGE_AWAY} (503)" in event_of(after, "recover").message
