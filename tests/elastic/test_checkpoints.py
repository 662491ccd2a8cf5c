"""Ranks and checkpoints that are damaged, out of reach, or of another job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from headway.contract.manifest import Name
from headway.contract.runtime import Checkpointed, CheckpointFailed, EpochClosed, FirstStep, Restored, Stopped
from tests.elastic.harness import Generation, Job, codes
from tests.elastic.test_exactness import assert_counts, counting

STOPPED, DONE, RETRY = 143, 0, 75


def stopped_after(job: Job, size: int, body: int) -> Generation:
    """A generation that is asked to stop in a loop body, and leaves at the end of the next."""
    stopped = job.run(size, FAULTS=json.dumps([[0, body, "SIGTERM"]]))
    assert codes(stopped) == [STOPPED] * size, stopped.output()
    return stopped


def newest_state(job: Job) -> Path:
    return max(job.checkpoints.glob("*/*.safetensors"))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(job: Callable[..., Job]) -> None:
    counted = counting(job)
    stopped_after(counted, 1, 2)
    stopped_after(counted, 2, 2)
    state = newest_state(counted)
    state.write_bytes(state.read_bytes()[:-100])

    finished = counted.run(2)
    assert codes(finished) == [DONE] * 2, finished.output()
    assert [restored.samples for restored in finished.messages(Restored)] == [3 * 8]
    assert [restored.from_generation for restored in finished.messages(Restored)] == [1]
    assert "is skipped" in finished.output()
    assert_counts(counted, samples=50, epochs=2, batch=8)


def test_a_checkpoint_without_a_manifest_does_not_exist(job: Callable[..., Job]) -> None:
    counted = counting(job)
    stopped_after(counted, 1, 2)
    stopped_after(counted, 1, 2)
    newest_state(counted).with_name("manifest.json").unlink()

    finished = counted.run(1)
    assert [restored.samples for restored in finished.messages(Restored)] == [3 * 8]
    assert_counts(counted, samples=50, epochs=2, batch=8)


def test_training_begins_anew_when_no_checkpoint_is_whole(job: Callable[..., Job]) -> None:
    counted = counting(job)
    stopped_after(counted, 1, 2)
    newest_state(counted).write_bytes(b"nonsense")

    finished = counted.run(2)
    assert codes(finished) == [DONE] * 2, finished.output()
    assert not finished.messages(Restored)
    assert_counts(counted, samples=50, epochs=2, batch=8)


def test_an_old_generation_neither_trains_nor_writes(job: Callable[..., Job]) -> None:
    counted = counting(job)
    stopped_after(counted, 1, 2)
    stopped_after(counted, 1, 2)
    before = {path: path.stat().st_mtime_ns for path in counted.checkpoints.rglob("*")}

    leftover = counted.run(2, generation=1)
    assert 0 not in codes(leftover)
    assert "generation 2 has written checkpoints" in leftover.output()
    assert not leftover.messages(Checkpointed)
    assert {path: path.stat().st_mtime_ns for path in counted.checkpoints.rglob("*")} == before


def test_a_rank_that_was_overtaken_while_it_trained_does_not_write(job: Callable[..., Job]) -> None:
    overtaken = counting(job, "--epochs", 1_000_000)
    old = overtaken.start(1)
    old.until(lambda: bool(old.messages(FirstStep)))
    newer = overtaken.checkpoints / "00000002-000000-000000000008"
    newer.mkdir(parents=True)
    (newer / "manifest.json").write_text("{}")
    old.stop()
    assert old.wait() == [1], old.output()
    assert "generation 2 has written checkpoints" in old.output()
    assert [path.name for path in overtaken.checkpoints.iterdir()] == [newer.name]


def block(job: Job, generation: int) -> None:
    """Let every checkpoint of a generation fail: a file is where its folder should be."""
    job.checkpoints.mkdir()
    for epoch, samples in [(epoch, samples) for epoch in range(3) for samples in range(51)]:
        (job.checkpoints / str(Name(generation, epoch, samples))).touch()


def test_a_stop_that_cannot_be_checkpointed_asks_for_a_retry(job: Callable[..., Job]) -> None:
    counted = counting(job)
    block(counted, generation=1)
    stopped = counted.run(2, FAULTS=json.dumps([[0, 2, "SIGTERM"]]))
    assert codes(stopped) == [RETRY] * 2
    assert "could not be saved" in stopped.output()
    assert not stopped.messages(Stopped), "the steps are lost, so it must not say that they are not"


def test_training_goes_on_when_a_periodic_checkpoint_fails(job: Callable[..., Job]) -> None:
    counted = counting(job, HEADWAY_CHECKPOINT_EVERY_S="0.000001")
    block(counted, generation=1)
    ended = counted.run(2)
    assert [audit.epoch for audit in ended.messages(EpochClosed)] == [0, 1]
    assert codes(ended) == [RETRY] * 2, "but its result could not be kept"
    assert ended.output().count("could not be saved") > 2
    assert len(ended.messages(CheckpointFailed)) == ended.output().count("samples could not be saved")
    assert codes(counted.run(2)) == [DONE] * 2


def test_checkpoints_that_cannot_be_listed_are_not_taken_for_none(job: Callable[..., Job]) -> None:
    counted = counting(job)
    counted.checkpoints.write_text("a file where the folder should be")
    ended = counted.run(2)
    assert codes(ended) == [RETRY] * 2
    assert "the checkpoints cannot be read" in ended.output()


def test_only_so_many_checkpoints_are_kept(job: Callable[..., Job]) -> None:
    counted = counting(
        job, "--epochs", 60, HEADWAY_CHECKPOINT_EVERY_S="0.000001", HEADWAY_CHECKPOINT_KEEP="2"
    )
    finished = counted.run(1)
    # One is written at a time, beside the training: how many there are depends on the machine.
    assert len(finished.messages(Checkpointed)) > 2
    assert len(list(counted.checkpoints.iterdir())) == 2
