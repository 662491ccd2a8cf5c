"""Tests of a job's progress after each message of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.contract.run_facts import MemoryUse, ProgressSource
from headway.contract.runtime import (
    BatchChanged,
    Checkpointed,
    CheckpointFailed,
    Completed,
    EpochClosed,
    FirstStep,
    Hello,
    Left,
    Message,
    Metrics,
    Progress,
    Ready,
    Restored,
    Stopped,
    Switched,
)
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.progress import MAX_METRIC_NAMES, after_first_report, after_message, within_names

FROM: dict[str, Any] = {"rank": 0, "generation": 1, "at_s": 0.0}
FROM_RANK_1: dict[str, Any] = {**FROM, "rank": 1}


def steps(samples: int = 640, **fields: Any) -> Progress:
    """Ten steps of 64 samples in two seconds."""
    return Progress(
        **{
            **FROM,
            "epoch": 3,
            "samples": samples,
            "total_samples": 10_000,
            "steps": 10,
            "step_s_sum": 2.0,
            "step_s_squares": 0.4,
            "global_batch": 64,
            "local_batch": 32,
            "accumulation": 1,
            **fields,
        }
    )


def switched(samples: int, *, lost_steps: int = 0, sender: dict[str, Any] = FROM) -> Switched:
    return Switched(**sender, samples=samples, world_size=2, pause_s=1.5, lost_steps=lost_steps, sync_bytes=0)


def metrics(**values: float) -> Metrics:
    return Metrics(**FROM, epoch=0, samples=0, values=values)


def epoch(number: int, exact: int) -> EpochClosed:
    return EpochClosed(
        **FROM, epoch=number, samples_seen=9, dataset_samples=9, exactly_once=True, exact_so_far=exact
    )


def first_step(samples: int = 0, sender: dict[str, Any] = FROM, *, plain: bool = False) -> FirstStep:
    return FirstStep(**sender, samples=samples, plain=plain)


def checkpoint(samples: int) -> Checkpointed:
    return Checkpointed(**FROM, uri="file:///c", samples=samples, size_bytes=1, save_s=0.1, total_s=0.2)


def changes(before: JobProgress, message: Message) -> dict[str, Any]:
    """The fields that a message changes."""
    after = after_message(before, message)
    return {
        name: getattr(after, name)
        for name in JobProgress.model_fields
        if getattr(after, name) != getattr(before, name)
    }


TRAINED = JobProgress(
    source=ProgressSource.LIBRARY,
    epoch=2,
    samples=600,
    total_samples=10_000,
    samples_per_s=300.0,
    global_batch=64,
    checkpoint_samples=512,
    lost_samples=100,
    lost_steps=5,
)
ADAPTIVE = JobProgress(
    source=ProgressSource.LIBRARY,
    epoch=2,
    samples=600,
    total_samples=10_000,
    samples_per_s=300.0,
    global_batch=128,
    progress=500.0,
    total_progress=10_000.0,
    dataset_samples=250,
    efficiency=0.9,
)
BEFORE_TRAINING = JobProgress()


def adaptive_steps(samples: int = 640, progress: float | None = 530.0, **fields: Any) -> Progress:
    """A report of a job with an adaptive batch, whose 40 samples made the progress of 30."""
    known = {"global_batch": 128, "total_progress": 10_000.0, "dataset_samples": 250, **fields}
    return steps(samples, progress=progress, **known)


@pytest.mark.parametrize(
    ("before", "message", "changed"),
    [
        (BEFORE_TRAINING, Hello(**FROM), {"source": ProgressSource.LIBRARY}),
        (TRAINED, Hello(**FROM), {}),
        (TRAINED, steps(), {"epoch": 3, "samples": 640, "samples_per_s": 320.0}),
        (TRAINED, steps(step_s_sum=0.0), {"epoch": 3, "samples": 640}),
        (TRAINED, steps(global_batch=0), {
            "epoch": 3, "samples": 640, "samples_per_s": 5.0, "global_batch": None, "unit": "steps",
        }),
        (TRAINED, steps(global_batch=2, unit="batches"), {
            "epoch": 3, "samples": 640, "samples_per_s": 10.0, "global_batch": 2, "unit": "batches",
        }),
        (TRAINED, steps(total_samples=None, max_global_batch=512), {
            "epoch": 3, "samples": 640, "samples_per_s": 320.0, "total_samples": None, "max_global_batch": 512,
        }),
        (TRAINED, steps(train_step=10, train_steps=100, draws=True), {
            "draws": True, "epoch": None, "samples": 640, "samples_per_s": 320.0, "train_step": 10, "train_steps": 100,
        }),
        (TRAINED, steps(train_step=10, train_steps=100, shards=3, repeated_samples=7, repeated_shards=1), {
            "epoch": None, "samples": 640, "samples_per_s": 320.0, "train_step": 10, "train_steps": 100,
            "shards": 3, "repeated_samples": 7, "repeated_shards": 1,
        }),
        (TRAINED, steps(lr_rule="sqrt"), {
            "epoch": 3, "samples": 640, "samples_per_s": 320.0, "lr_rule": "sqrt",
        }),
        (ADAPTIVE, adaptive_steps(), {
            "epoch": 3, "samples": 640, "samples_per_s": 640.0, "progress": 530.0, "efficiency": 0.75,
        }),
        (ADAPTIVE, adaptive_steps(600, 500.0, steps=0), {"epoch": 3}),
        (ADAPTIVE, adaptive_steps(640, 490.0, steps=0), {"epoch": 3, "samples": 640, "progress": 490.0}),
        (TRAINED, adaptive_steps(steps=0), {
            "epoch": 3, "samples": 640, "global_batch": 128, "progress": 530.0, "total_progress": 10_000.0,
            "dataset_samples": 250,
        }),
        (TRAINED, adaptive_steps(640, 630.0, steps=0), {
            "epoch": 3, "samples": 640, "global_batch": 128, "progress": 630.0, "total_progress": 10_000.0,
            "dataset_samples": 250, "efficiency": 0.75,
        }),
        (ADAPTIVE, Restored(**FROM, samples=512, from_generation=1, progress=430.5), {
            "samples": 512, "progress": 430.5, "lost_samples": 88, "lost_steps": 1,
        }),
        (ADAPTIVE, Restored(**FROM, samples=512, from_generation=1), {
            "samples": 512, "progress": 512.0, "lost_samples": 88, "lost_steps": 1,
        }),
        (ADAPTIVE, first_step(0), {
            "samples": 0, "progress": 0.0, "lost_samples": 600, "lost_steps": 5, "begun_generation": 1,
        }),
        (TRAINED, BatchChanged(**FROM, samples=600, global_batch=128, lr_factor=2.0, cause="grow"), {
            "global_batch": 128,
        }),
        (TRAINED, BatchChanged(**FROM_RANK_1, samples=600, global_batch=128, lr_factor=2.0, cause="grow"), {}),
        (TRAINED, metrics(loss=0.5), {"metrics": {"loss": 0.5}}),
        (TRAINED, checkpoint(600), {"checkpoint_samples": 600, "checkpoint_took_s": 0.2}),
        (TRAINED, CheckpointFailed(**FROM, samples=600, why="disk full"), {}),
        (TRAINED, Restored(**FROM, samples=512, from_generation=1), {
            "samples": 512, "lost_samples": 188, "lost_steps": 7,
        }),
        (TRAINED, Restored(**FROM, samples=600, from_generation=1), {}),
        (TRAINED, Restored(**FROM, samples=700, from_generation=1), {"samples": 700}),
        (TRAINED, first_step(600), {"begun_generation": 1}),
        (TRAINED, first_step(601), {"begun_generation": 1}),
        (TRAINED, first_step(64), {
            "samples": 64, "checkpoint_samples": None, "lost_samples": 700, "lost_steps": 15,
            "begun_generation": 1,
        }),
        (TRAINED, first_step(64, FROM_RANK_1), {}),
        (TRAINED, epoch(0, 1), {"epochs_audited": 1, "epochs_exact": 1}),
        (TRAINED, epoch(0, 0), {"epochs_audited": 1}),
        (TRAINED, epoch(4, 3), {"epochs_audited": 5, "epochs_exact": 3}),
        (TRAINED, epoch(1, 99), {"epochs_audited": 2, "epochs_exact": 2}),
        (TRAINED, Stopped(**FROM, samples=640), {"samples": 640}),
        (TRAINED, Stopped(**FROM, samples=500), {}),
        (TRAINED, Completed(**FROM, samples=10_000), {"samples": 10_000}),
        (TRAINED, Completed(**FROM, samples=10), {}),
        (TRAINED, switched(640, lost_steps=1), {"samples": 640, "lost_steps": 6, "pause_s": 1.5}),
        (TRAINED, switched(100), {"pause_s": 1.5}),
        (TRAINED, switched(640, lost_steps=1, sender=FROM_RANK_1), {}),
        (TRAINED, Ready(**FROM, ready_s=3.0), {}),
        (TRAINED, Left(**FROM, samples=9999, joined=2), {}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)  # fmt: skip
def test_what_each_message_changes(before: JobProgress, message: Message, changed: dict[str, Any]) -> None:
    assert changes(before, message) == changed


def test_a_message_leaves_its_input_as_it_was() -> None:
    before = TRAINED.model_copy(deep=True)
    after_message(before, metrics(loss=0.1))
    after_message(before, steps())
    assert before == TRAINED


def test_the_latest_value_of_each_metric_counts() -> None:
    progress = after_message(after_message(TRAINED, metrics(loss=0.5, lr=0.1)), metrics(loss=0.4))
    assert progress.metrics == {"loss": 0.4, "lr": 0.1}


def test_an_epoch_that_was_audited_before_is_not_counted_again() -> None:
    audited = after_message(TRAINED, epoch(4, 5))
    assert changes(audited, epoch(4, 0)) == {}
    assert changes(audited, epoch(2, 0)) == {}
    assert changes(audited, epoch(5, 5)) == {"epochs_audited": 6}


def test_a_script_without_the_library_has_no_epochs() -> None:
    script = JobProgress(source=ProgressSource.SCRIPT)
    assert after_message(script, steps(epoch=7)).epoch is None
    assert after_message(BEFORE_TRAINING, steps(epoch=7)).epoch == 7


@pytest.mark.parametrize(
    ("lost", "batch", "lost_steps"),
    [(0, 64, 0), (1, 64, 1), (64, 64, 1), (65, 64, 2), (640, 64, 10), (100, None, 0)],
)
def test_repeated_steps_are_rounded_up_to_whole_batches(
    lost: int, batch: int | None, lost_steps: int
) -> None:
    before = JobProgress(samples=1000, global_batch=batch)
    after = after_message(before, Restored(**FROM, samples=1000 - lost, from_generation=1))
    assert (after.lost_samples, after.lost_steps) == (lost, lost_steps)


def test_the_first_report_of_a_script_marks_its_beginning() -> None:
    assert changes(BEFORE_TRAINING, first_step(30, plain=True)) == {
        "source": ProgressSource.SCRIPT,
        "begun_generation": 1,
        "samples": 30,
        "first_samples": 30,
    }


def test_a_later_report_of_a_script_shows_what_it_repeats() -> None:
    begun = after_message(BEFORE_TRAINING, first_step(0, plain=True))
    trained = after_message(begun, steps(100, global_batch=0, steps=100))
    again = after_message(trained, first_step(90, {**FROM, "generation": 2}, plain=True))
    assert (again.samples, again.lost_samples, again.first_samples, again.begun_generation) == (90, 10, 0, 2)
    assert again.resumption is not None
    assert (again.resumption.stopped_at, again.resumption.began_at, again.resumption.resumes) == (
        100,
        90,
        True,
    )


@pytest.mark.parametrize("generation", [0, 1])
def test_a_report_of_the_same_or_an_earlier_generation_changes_nothing(generation: int) -> None:
    begun = after_first_report(BEFORE_TRAINING, first_step(0, plain=True))
    message = first_step(50, {**FROM, "generation": generation}, plain=True)
    assert after_first_report(begun, message) == begun


def test_the_library_precedes_reports_of_the_agent() -> None:
    assert after_first_report(TRAINED, first_step(0, {**FROM, "generation": 9}, plain=True)) == TRAINED


@pytest.mark.parametrize(
    ("known", "reported", "kept"),
    [
        (0, 5, 5),
        (0, MAX_METRIC_NAMES, MAX_METRIC_NAMES),
        (0, MAX_METRIC_NAMES + 5, MAX_METRIC_NAMES),
        (MAX_METRIC_NAMES - 2, 5, 2),
        (MAX_METRIC_NAMES, 5, 0),
        (MAX_METRIC_NAMES + 3, 5, 0),
    ],
)
def test_new_names_of_metrics_are_limited(known: int, reported: int, kept: int) -> None:
    progress = JobProgress(metrics={f"old{number}": 0.0 for number in range(known)})
    message = metrics(**{f"new{number}": 1.0 for number in range(reported)})
    within = within_names(progress, message)
    assert list(within.values) == [f"new{number}" for number in range(kept)], "the first ones"


def test_known_names_are_reported_however_many_there_are() -> None:
    progress = JobProgress(metrics={f"m{number}": 0.0 for number in range(MAX_METRIC_NAMES + 50)})
    message = metrics(**dict.fromkeys(progress.metrics, 2.0), another=1.0)
    assert within_names(progress, message).values == dict.fromkeys(progress.metrics, 2.0)


MESSAGES = st.one_of(
    st.builds(
        steps, st.integers(0, 5000), global_batch=st.sampled_from([0, 64]), step_s_sum=st.floats(0, 1e9)
    ),
    st.builds(switched, st.integers(0, 5000), lost_steps=st.integers(0, 3)),
    st.builds(checkpoint, st.integers(0, 5000)),
    st.builds(lambda samples: Restored(**FROM, samples=samples, from_generation=1), st.integers(0, 5000)),
    st.builds(lambda samples: Stopped(**FROM, samples=samples), st.integers(0, 5000)),
    st.builds(epoch, st.integers(0, 5), st.integers(0, 9)),
    st.builds(first_step, st.integers(0, 5000)),
)


@settings(max_examples=60)
@given(st.lists(MESSAGES, max_size=12))
@example([steps(0, global_batch=0, step_s_sum=5e-324)])  # infinitely many samples a second
def test_counters_never_decrease_and_samples_fall_only_by_a_return(messages: Sequence[Message]) -> None:
    progress = BEFORE_TRAINING
    for message in messages:
        after = after_message(progress, message)
        assert after.lost_samples >= progress.lost_samples
        assert after.lost_steps >= progress.lost_steps
        assert progress.epochs_audited <= after.epochs_audited
        assert after.epochs_exact <= after.epochs_audited
        if not isinstance(message, Restored | FirstStep | Progress):
            assert after.samples >= progress.samples
        if isinstance(message, Restored):
            assert after.lost_samples - progress.lost_samples == max(0, progress.samples - message.samples)
        progress = after
    assert JobProgress.model_validate_json(progress.model_dump_json()) == progress, (
        "it can be stored and read"
    )


def test_the_interval_between_checkpoints_is_the_last_that_ranks_reported() -> None:
    first = after_message(JobProgress(), replace(checkpoint(40), every_s=120.0))
    assert (first.checkpoint_samples, first.checkpoint_every_s) == (40, 120.0)
    older = after_message(first, checkpoint(80))
    assert (older.checkpoint_samples, older.checkpoint_every_s) == (80, 120.0), (
        "an older library says nothing"
    )


def test_the_most_memory_counts_until_the_mesh_or_the_samples_change() -> None:
    first = after_message(JobProgress(), steps(memory=(90, 60, 100, 2)))
    assert first.memory == MemoryUse(peak_bytes=90, shard_bytes=60, device_bytes=100, fsdp=2, samples=32)
    assert after_message(first, steps(memory=(80, 60, 100, 2))).memory == first.memory
    assert after_message(first, steps()).memory == first.memory
    divided = after_message(first, steps(memory=(60, 30, 100, 4))).memory
    assert divided is not None
    assert (divided.peak_bytes, divided.fsdp) == (60, 4)
    assert after_message(JobProgress(), steps(memory=(90, 60, 0, 2))).memory is None
