"""Messages of ranks: starts, first steps, checkpoints, audits and batches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headway.contract.run_facts import ProgressSource
from headway.contract.runtime import (
    BatchChanged,
    Checkpointed,
    CheckpointFailed,
    Completed,
    EpochClosed,
    FirstStep,
    Hello,
    Message,
    Restored,
    Warned,
)
from headway.contract.views.jobs import JobState, Reason
from service.domain.life.effects import CallRound, RecordEvent, RefreshPages
from service.domain.life.life import Life
from service.domain.life.messages import (
    MAX_WARNINGS,
    awaits_start,
    message_refused,
    message_taken,
    ranks_started,
)
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    FOUR,
    JOB,
    THREE,
    TWO,
    alter,
    effects_of,
    event_of,
    job_of,
    kinds,
    left,
    life_of,
    ordered,
    prepared,
    ready,
    starting,
    switched,
    training,
)
from tests.unit.service.domain.life.tables import BEGIN

AT_S = (BEGIN + timedelta(seconds=3)).timestamp()
SAID = {"rank": 0, "generation": 1, "at_s": AT_S}


def runs(slots: object = TWO, resize: str = "live", **progress: object) -> Cluster:
    """A job that runs without a first step so far, with this progress."""
    cluster = starting(slots, resize)
    cluster.settle()
    alter(cluster, progress=job_of(cluster).progress.model_copy(update=progress))
    return cluster


def told(cluster: Cluster, message: Message, **more: object) -> Life:
    """The life after a message of rank 0."""
    return message_taken(life_of(cluster), (1, message.rank), message, **more)


# Starts


def test_a_job_waits_for_the_start_on_each_of_its_nodes() -> None:
    life = life_of(starting(THREE))
    assert awaits_start(life, "n0", 1)
    assert not awaits_start(life, "n2", 1)
    assert not awaits_start(life, "n0", 2)
    assert not awaits_start(life_of(training()), "n0", 1)


def test_a_job_runs_once_all_nodes_have_started() -> None:
    cluster = starting(THREE)
    life = life_of(cluster)
    assert ranks_started(life, "zygote", 1) is life
    after = ranks_started(life, "zygote", 2)
    assert (after.job.state, after.job.reason) == (JobState.RUNNING, Reason.PROGRESSING)
    assert after.job.started_at == life.now
    assert event_of(after, "start").data == {"how": "zygote"}
    alter(cluster, started_at=BEGIN - timedelta(days=1))
    assert ranks_started(life_of(cluster), "spawn", 2).job.started_at == BEGIN - timedelta(days=1)


# First steps


def test_the_first_step_makes_a_job_live() -> None:
    cluster = runs()
    cluster.tables.pass_time(12.0)
    life = told(cluster, FirstStep(**SAID, samples=32, live=True))
    assert life.job.live
    assert life.job.progress.start_s == 12.0
    event = event_of(life, "first_step")
    assert event.at == datetime.fromtimestamp(AT_S, UTC)
    assert event.data == {"samples": 32, "rank": 0, "lost_samples": 0, "lost_s": None}
    assert [type(one) for one in life.effects] == [RefreshPages, CallRound, RecordEvent]


@pytest.mark.parametrize("sharded", [False, True])
def test_the_first_step_says_whether_ranks_hold_parts_of_the_model(*, sharded: bool) -> None:
    job = told(runs(), FirstStep(**SAID, samples=32, live=True, sharded=sharded)).job
    assert (job.sharded, job.live, job.survives_losses) == (sharded, True, not sharded)


def test_a_restored_job_does_not_seem_to_skip_samples() -> None:
    """Its first step ends 32 samples beyond the checkpoint: it goes on from the checkpoint, not from there."""
    cluster = runs(samples=4256)
    assert event_of(
        told(cluster, Restored(**SAID, samples=4256, from_generation=0)), "restore"
    ).message.endswith("4,256 samples")
    text = event_of(told(cluster, FirstStep(**SAID, samples=4288, live=True)), "first_step").message
    assert "from 4,288" not in text
    assert "its first step ended at 4,288 samples" in text
    steps = runs(samples=4256, unit="steps")
    assert "4,288 steps" in event_of(told(steps, FirstStep(**SAID, samples=4288)), "first_step").message


@pytest.mark.parametrize("replicates", [False, True])
def test_the_first_step_says_whether_the_script_uses_the_replicas_of_the_mesh(*, replicates: bool) -> None:
    cluster = runs(FOUR, mesh="replicate=2,fsdp=2")
    job = told(cluster, FirstStep(**SAID, samples=32, live=True, sharded=True, replicates=replicates)).job
    assert (job.needs_every_rank, job.survives_losses) == (not replicates, replicates)


@pytest.mark.parametrize(("resize", "live"), [("live", False), ("restart", True)])
def test_a_job_is_live_only_if_its_script_and_its_file_say_so(resize: str, *, live: bool) -> None:
    life = told(runs(TWO, resize), FirstStep(**SAID, samples=32, live=live))
    assert not life.job.live
    assert effects_of(life, CallRound) == []


def test_a_job_that_is_live_calls_no_further_round() -> None:
    life = told(training(), FirstStep(**SAID, samples=132, live=True))
    assert effects_of(life, CallRound) == []


@pytest.mark.parametrize("plain", [False, True])
def test_only_the_first_of_several_first_steps_of_a_generation_times_the_start(*, plain: bool) -> None:
    cluster = runs(TWO, "restart")
    cluster.tables.pass_time(12.0)
    life = told(cluster, FirstStep(**SAID, samples=32, plain=plain))
    later = replace(life.settled(), now=life.now + timedelta(hours=1))
    again = message_taken(later, (1, 0), FirstStep(**SAID, samples=64, plain=plain))
    assert (again.job.progress.start_s, again.job.progress.begun_generation) == (12.0, 1)


def test_a_first_step_after_a_change_in_place_times_no_start() -> None:
    cluster = training()
    cluster.tables.pass_time(60.0)
    life = told(cluster, FirstStep(rank=0, generation=2, at_s=AT_S, samples=132, live=True))
    assert (life.job.progress.start_s, life.job.progress.begun_generation) == (0.0, 2)


def test_other_ranks_step_silently() -> None:
    life = told(runs(), FirstStep(rank=1, generation=1, at_s=AT_S, samples=32, live=True))
    assert (life.job.live, life.effects) == (False, ())


def test_the_first_step_after_a_move_tells_how_long_training_stood() -> None:
    cluster = runs(samples=500, checkpoint_samples=500, samples_per_s=50.0)
    moved_at = cluster.tables.now
    cluster.tables.pass_time(25.0)
    life = told(cluster, FirstStep(**SAID, samples=532), vacated_at=moved_at)
    data = event_of(life, "first_step").data
    assert data == {"samples": 532, "rank": 0, "lost_samples": 0, "lost_s": 0.0, "stood_s": 25.0}
    assert life.job.progress.checkpoint_samples == 500


def test_without_a_checkpoint_training_begins_again() -> None:
    cluster = runs(samples=500, samples_per_s=50.0, global_batch=32)
    life = told(cluster, FirstStep(**SAID, samples=32))
    data = event_of(life, "first_step").data
    assert (data["lost_samples"], data["lost_s"]) == (500, 10.0)
    assert (life.job.progress.samples, life.job.progress.lost_samples) == (32, 500)
    assert (life.job.progress.lost_steps, life.job.progress.checkpoint_samples) == (16, None)


@pytest.mark.parametrize("speed", [None, 0.0, float("inf")])
def test_losses_have_no_duration_at_an_unknown_speed(speed: float | None) -> None:
    life = told(runs(samples=500, samples_per_s=speed), FirstStep(**SAID, samples=32))
    assert event_of(life, "first_step").data["lost_s"] is None


# Plain scripts


def plain(samples: int, generation: int = 1, rank: int = 0) -> FirstStep:
    return FirstStep(rank=rank, generation=generation, at_s=AT_S, samples=samples, plain=True)


def test_a_plain_script_reports_its_first_step() -> None:
    cluster = runs(TWO, "restart")
    life = told(cluster, plain(3))
    assert life.job.progress.source is ProgressSource.SCRIPT
    assert (life.job.progress.first_samples, life.job.progress.samples) == (3, 3)
    data = event_of(life, "first_step").data
    assert data == {"samples": 3, "rank": 0, "plain": True, "lost_samples": 0, "lost_s": None}
    again = message_taken(life.settled(), (1, 1), plain(7, rank=1))
    assert (again.job, again.effects) == (life.job, ()), "only the first of a generation counts"


@pytest.mark.parametrize(("begins", "lost", "resumes"), [(201, 0, True), (1, 199, False)])
def test_a_plain_script_shows_whether_it_resumes(begins: int, lost: int, *, resumes: bool) -> None:
    cluster = runs(TWO, "restart", source=ProgressSource.SCRIPT, first_samples=1, samples=200)
    life = told(cluster, plain(begins))
    assert life.job.progress.resumption is not None
    assert life.job.progress.resumption.resumes is resumes
    assert event_of(life, "first_step").data["lost_samples"] == lost


def test_steps_of_a_script_with_the_library_count_as_its_own() -> None:
    life = told(runs(source=ProgressSource.LIBRARY), plain(3))
    assert kinds(life) == []


# Checkpoints


def test_a_restored_checkpoint_tells_what_is_repeated() -> None:
    cluster = runs(samples=500, samples_per_s=50.0)
    life = told(cluster, Restored(**SAID, samples=400, from_generation=1))
    assert event_of(life, "restore").data == {"samples": 400, "lost_samples": 100, "lost_s": 2.0}
    assert (life.job.progress.samples, life.job.progress.lost_samples) == (400, 100)
    assert effects_of(life, RefreshPages) == [RefreshPages()]


def test_a_checkpoint_that_failed_is_recorded() -> None:
    life = told(runs(), CheckpointFailed(rank=1, generation=1, at_s=AT_S, samples=64, why="disk full"))
    assert event_of(life, "checkpoint_failed").data == {"samples": 64, "rank": 1}
    assert effects_of(life, RefreshPages) == []


def test_a_checkpoint_is_kept_without_an_event() -> None:
    message = Checkpointed(**SAID, uri="file:///c", samples=64, size_bytes=10, save_s=0.1, total_s=0.2)
    life = told(runs(), message)
    assert (life.job.progress.checkpoint_samples, life.effects) == (64, (RefreshPages(),))
    assert message_taken(life.settled(), (1, 0), message).effects == ()


# Audits


def closed(*, exactly_once: bool) -> EpochClosed:
    return EpochClosed(
        **SAID,
        epoch=0,
        samples_seen=100,
        dataset_samples=101,
        exactly_once=exactly_once,
        exact_so_far=int(exactly_once),
    )


def test_only_an_audit_that_failed_is_an_event() -> None:
    good, bad = (told(runs(), closed(exactly_once=one)) for one in (True, False))
    assert (kinds(good), kinds(bad)) == ([], ["audit_failed"])
    assert (good.job.progress.epochs_audited, good.job.progress.epochs_exact) == (1, 1)
    assert (bad.job.progress.epochs_audited, bad.job.progress.epochs_exact) == (1, 0)


def test_an_end_within_an_epoch_is_one_event() -> None:
    whole, part = Completed(**SAID, samples=202), Completed(**SAID, samples=212, epoch=2, epoch_samples=10)
    assert kinds(told(runs(), whole)) == []
    life = told(runs(), part)
    assert event_of(life, "ended_within_epoch").data == {"epoch": 2, "epoch_samples": 10}
    assert kinds(told(runs(), replace(part, rank=1))) == []


# Batches


def batch(generation: int = 1, rank: int = 0) -> BatchChanged:
    return BatchChanged(
        rank=rank,
        generation=generation,
        at_s=AT_S,
        samples=640,
        global_batch=64,
        lr_factor=1.5,
        cause="by the script",
    )


def test_a_batch_that_the_script_changes_names_its_cause() -> None:
    life = told(runs(global_batch=32), batch())
    assert life.job.progress.global_batch == 64
    assert event_of(life, "batch_changed").data == {
        "from": 32,
        "to": 64,
        "lr_factor": 1.5,
        "reason": "by the script",
        "samples": 640,
    }


def test_a_batch_that_a_round_ordered_names_the_reason_of_its_order() -> None:
    cluster = training(batch={"global": 32, "policy": "adaptive", "max_global": 64})
    cluster.adapt(JOB, 64)
    life = told(cluster, batch(generation=2))
    assert event_of(life, "batch_changed").data["reason"] == "a larger batch"
    grown = told(ordered(), batch(generation=2))
    assert event_of(grown, "batch_changed").data["reason"] == "more goodput"
    assert event_of(told(cluster, batch(generation=9)), "batch_changed").data["reason"] == "by the script"


def test_batches_of_other_ranks_change_nothing() -> None:
    assert told(runs(global_batch=32), batch(rank=1)).effects == ()


# Parts of a change


def test_messages_about_a_change_reach_it() -> None:
    ready_life = message_taken(life_of(prepared()), (2, 2), ready(2))
    assert ready_life.job.switch is not None
    assert ready_life.job.switch.ordered
    gone = message_taken(life_of(prepared({"n0": (0,)})), (1, 1), left(1))
    assert gone.job.switch is not None
    assert gone.job.switch.left == ((1, 1),)
    done = message_taken(life_of(ordered()), (1, 0), switched())
    assert (done.job.state, done.job.generation) == (JobState.RUNNING, 2)
    assert (done.job.progress.samples, done.job.progress.pause_s) == (110, 0.25)


def test_a_switch_of_another_rank_completes_nothing() -> None:
    life = life_of(ordered())
    assert message_taken(life, (1, 1), replace(switched(), rank=1)) is life


# Messages that are refused or change nothing


def test_a_message_that_is_refused_leaves_the_job_as_it_is() -> None:
    life = life_of(training())
    after = message_refused(life, "samples of a progress message cannot be 'many'")
    assert (after.job, kinds(after)) == (life.job, ["message_refused"])


def test_a_greeting_names_the_source_of_progress() -> None:
    life = told(runs(), Hello(**SAID))
    assert life.job.progress.source is ProgressSource.LIBRARY
    assert life.effects == (RefreshPages(),)


def test_warning_of_several_ranks_is_recorded_once_and_kept_with_the_job() -> None:
    life = life_of(training(TWO))
    for rank in range(2):
        told = Warned(rank=rank, generation=1, at_s=0, code="GRADIENTS_LOST", text="3 batches are lost")
        life = message_taken(life, (1, rank), told)
    assert kinds(life) == ["warning"]
    assert event_of(life, "warning").data == {"code": "GRADIENTS_LOST"}
    assert life.job.progress.warnings == ["3 batches are lost"]


def test_warnings_beyond_the_limit_are_left_out() -> None:
    life = life_of(training(TWO))
    for number in range(MAX_WARNINGS + 3):
        told = Warned(rank=0, generation=1, at_s=0, code="GRADIENTS_LOST", text=f"{number} batches are lost")
        life = message_taken(life, (1, 0), told)
    assert len(life.job.progress.warnings) == MAX_WARNINGS
    assert kinds(life) == ["warning"] * MAX_WARNINGS
