"""Messages update a job's progress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.runtime import (
    BatchChanged,
    Checkpointed,
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
from service.domain.jobs.progress import MAX_METRIC_NAMES, after_message, within_names
from service.usecases.jobs.submit import script_of

HEAD: dict[str, Any] = {"rank": 0, "generation": 1, "at_s": 1e9}
BEFORE = JobProgress(epoch=1, samples=100, total_samples=500, samples_per_s=10.0, metrics={"loss": 2.0})


def progress(samples: int = 200, step_s_sum: float = 2.0) -> Progress:
    return Progress(
        **HEAD,
        epoch=2,
        samples=samples,
        total_samples=400,
        steps=10,
        step_s_sum=step_s_sum,
        step_s_squares=0.4,
        global_batch=32,
        local_batch=32,
        accumulation=1,
    )


def closed(epoch: int, *, exactly_once: bool) -> EpochClosed:
    exact = epoch + 1 if exactly_once else 0
    return EpochClosed(
        **HEAD,
        epoch=epoch,
        samples_seen=10,
        dataset_samples=10,
        exactly_once=exactly_once,
        exact_so_far=exact,
    )


def changed(rank: int) -> BatchChanged:
    head = {**HEAD, "rank": rank}
    return BatchChanged(**head, samples=900, global_batch=64, lr_factor=1.4, cause="more slots")


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (Hello(**HEAD), {"source": "library"}),
        (FirstStep(**HEAD, samples=107), {"begun_generation": 1}),
        (
            FirstStep(**HEAD, samples=7),
            {"samples": 7, "checkpoint_samples": None, "lost_samples": 100, "begun_generation": 1},
        ),
        (FirstStep(**{**HEAD, "rank": 1}, samples=7), {}),
        (
            progress(),
            {"epoch": 2, "samples": 200, "total_samples": 400, "samples_per_s": 160.0, "global_batch": 32},
        ),
        (progress(step_s_sum=0.0), {"epoch": 2, "samples": 200, "total_samples": 400, "global_batch": 32}),
        (changed(rank=0), {"global_batch": 64}),
        (changed(rank=1), {}),
        (Metrics(**HEAD, epoch=1, samples=1, values={"acc": 0.5}), {"metrics": {"loss": 2.0, "acc": 0.5}}),
        (
            Checkpointed(**HEAD, uri="u", samples=90, size_bytes=1, save_s=0.1, total_s=0.2),
            {"checkpoint_samples": 90},
        ),
        (Restored(**HEAD, samples=60, from_generation=0), {"samples": 60, "lost_samples": 40}),
        (Restored(**HEAD, samples=100, from_generation=0), {}),
        (Restored(**HEAD, samples=130, from_generation=0), {"samples": 130}),
        (Stopped(**HEAD, samples=120), {"samples": 120}),
        (Stopped(**HEAD, samples=80), {}),
        (Completed(**HEAD, samples=500), {"samples": 500}),
        (closed(0, exactly_once=True), {"epochs_audited": 1, "epochs_exact": 1}),
        (closed(0, exactly_once=False), {"epochs_audited": 1}),
    ],
)
def test_one_message(message: Message, changes: dict[str, Any]) -> None:
    assert after_message(BEFORE, message) == BEFORE.model_copy(update=changes)


def test_an_epoch_is_audited_once() -> None:
    """After a restart from a checkpoint an epoch may be closed again."""
    found = BEFORE
    for epoch in (0, 1, 1, 0, 2):
        found = after_message(found, closed(epoch, exactly_once=True))
    assert (found.epochs_audited, found.epochs_exact) == (3, 3)


def test_an_audit_whose_news_was_lost_with_a_node_is_made_up_for_by_the_next() -> None:
    first, third = closed(0, exactly_once=True), closed(2, exactly_once=True)
    found = after_message(after_message(BEFORE, first), third)
    assert (found.epochs_audited, found.epochs_exact) == (3, 3)
    wrong = after_message(BEFORE, replace(third, exact_so_far=2))
    assert (wrong.epochs_audited, wrong.epochs_exact) == (3, 2)


messages = st.one_of(
    st.builds(progress, samples=st.integers(0, 10**6), step_s_sum=st.floats(0, 1e9)),
    st.builds(
        Restored,
        samples=st.integers(0, 10**6),
        from_generation=st.just(0),
        **{k: st.just(v) for k, v in HEAD.items()},
    ),
    st.builds(closed, st.integers(0, 9), exactly_once=st.booleans()),
)


@given(st.lists(messages, max_size=20))
def test_any_messages_leave_progress_that_can_be_stored_and_read(found: list[Message]) -> None:
    now = JobProgress()
    for message in found:
        before, now = now, after_message(now, message)
        assert now.lost_samples >= before.lost_samples
        assert now.epochs_exact <= now.epochs_audited
    JobProgress.model_validate_json(now.model_dump_json())


@pytest.mark.parametrize(
    ("run", "script"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("python3 ./pkg/train.py", "pkg/train.py"),
        ("python 'my train.py'", "my train.py"),
        ("python -m pkg.train", None),
        ("python -u train.py", None),
        ("python /abs/train.py", None),
        ("python ~/train.py", None),
        ("python $SCRIPT.py", None),
        ("python train", None),
        ("python", None),
        ("bash run.sh", None),
        ("python 'unclosed", None),
        ("cd x && python train.py", None),
    ],
)
def test_the_script_that_a_command_runs(run: str, script: str | None) -> None:
    assert script_of(run) == script


def switched(rank: int = 0, samples: int = 160, lost_steps: int = 1) -> Switched:
    head = {**HEAD, "rank": rank}
    return Switched(**head, samples=samples, world_size=2, pause_s=0.25, lost_steps=lost_steps, sync_bytes=9)


def test_a_switch_counts_the_steps_that_rank_0_lost() -> None:
    after = after_message(after_message(BEFORE, switched()), switched(lost_steps=2))
    assert (after.samples, after.lost_steps, after.pause_s) == (160, 3, 0.25)
    assert after_message(BEFORE, switched(rank=1)) == BEFORE
    assert after_message(BEFORE, switched(samples=1)).samples == BEFORE.samples


@pytest.mark.parametrize(
    "message",
    [
        Ready(**HEAD, ready_s=1.0),
        Left(**HEAD, samples=900, joined=2),
    ],
)
def test_words_about_members_are_no_progress(message: Message) -> None:
    assert after_message(BEFORE, message) == BEFORE


def test_names_of_values_are_bounded_and_known_ones_go_on() -> None:
    full = JobProgress(metrics={f"m{number}": 0.0 for number in range(MAX_METRIC_NAMES - 1)})
    values = {"m0": 1.0, "new": 2.0, "one too many": 3.0}
    message = within_names(full, Metrics(**HEAD, epoch=0, samples=1, values=values))
    assert message.values == {"m0": 1.0, "new": 2.0}
    assert len(after_message(full, message).metrics) == MAX_METRIC_NAMES
    assert within_names(BEFORE, message) is message
