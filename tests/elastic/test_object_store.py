"""Checkpoints in an object store that speaks S3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from headway.contract.runtime import STORAGE_AWAY, Checkpointed, CheckpointFailed, Restored
from tests.elastic.harness import Job, codes
from tests.elastic.test_exactness import assert_counts, counting
from tests.faulty_store import BUCKET, FaultyStore, faulty_store


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    with faulty_store() as made:
        yield made


@pytest.fixture
def bucket(store: FaultyStore) -> dict[str, str]:
    """The environment of ranks whose checkpoints go to a bucket."""
    return {"HEADWAY_CHECKPOINT_URI": f"s3://{BUCKET}/jobs/one", **store.environment}


def test_a_job_goes_on_from_a_bucket_at_another_size(job: Callable[..., Job], bucket: dict[str, str]) -> None:
    counted = counting(job, **bucket)
    stopped = counted.run(2, FAULTS=json.dumps([[1, 3, "SIGTERM"]]))
    assert codes(stopped) == [143, 143], stopped.output()
    (saved,) = stopped.messages(Checkpointed)
    assert saved.uri == "s3://kept/jobs/one/00000001-000000-000000000032"

    finished = counted.run(1)
    assert codes(finished) == [0], finished.output()
    assert [restored.samples for restored in finished.messages(Restored)] == [32]
    assert_counts(counted, samples=50, epochs=2, batch=8)


def test_a_store_that_is_away_asks_for_a_retry(job: Callable[..., Job], bucket: dict[str, str]) -> None:
    nowhere = {**bucket, "HEADWAY_CHECKPOINT_URI": "s3://no-such-bucket/jobs"}
    counted = counting(job, **nowhere)
    ended = counted.run(2)
    assert codes(ended) == [75, 75], ended.output()
    assert "the checkpoints cannot be read" in ended.output()
    assert STORAGE_AWAY not in ended.output(), "a wrong bucket is no outage"
    assert "check HEADWAY_STORAGE_URL" in ended.output()


@pytest.mark.slow  # the store is asked for 30 s
def test_store_that_does_not_answer_is_named_in_the_request_for_a_restart(
    job: Callable[..., Job], bucket: dict[str, str], store: FaultyStore
) -> None:
    counted = counting(job, **bucket)
    store.away = True
    ended = counted.run(2)
    assert codes(ended) == [75, 75], ended.output()
    assert f"headway: the checkpoints cannot be read: {STORAGE_AWAY} (" in ended.output()
    assert "503" in ended.output()


def test_a_list_that_lags_behind_hides_no_reported_checkpoint(
    job: Callable[..., Job], bucket: dict[str, str], store: FaultyStore
) -> None:
    counted = counting(job, **bucket)
    store.remember()  # an empty bucket
    stopped = counted.run(1, FAULTS=json.dumps([[0, 3, "SIGTERM"]]))
    (saved,) = stopped.messages(Checkpointed)
    store.stale = True
    name = saved.uri.rpartition("/")[2]

    finished = counted.run(1, HEADWAY_CHECKPOINT_NAME=name)
    assert codes(finished) == [0], finished.output()
    assert [restored.samples for restored in finished.messages(Restored)] == [32]
    assert_counts(counted, samples=50, epochs=2, batch=8)


def test_a_reported_checkpoint_that_is_gone_is_named_and_an_older_one_is_restored(
    job: Callable[..., Job], bucket: dict[str, str]
) -> None:
    counted = counting(job, **bucket)
    counted.run(1, FAULTS=json.dumps([[0, 3, "SIGTERM"]]))
    gone = "00000001-000001-000000000048"

    finished = counted.run(1, HEADWAY_CHECKPOINT_NAME=gone)
    assert codes(finished) == [0], finished.output()
    assert f"{gone} is skipped" in finished.output()
    assert [restored.samples for restored in finished.messages(Restored)] == [32]


@pytest.mark.slow  # the library retries for half a minute before it gives a save up
def test_a_store_that_is_away_while_ranks_train_costs_a_save_and_the_next_one_succeeds(
    job: Callable[..., Job], bucket: dict[str, str], store: FaultyStore
) -> None:
    counted = counting(job, "--epochs", 1_000_000, **bucket, HEADWAY_CHECKPOINT_EVERY_S="1")
    trains = counted.start(1)
    trains.until(lambda: bool(trains.messages(Checkpointed)))
    store.away = True
    trains.until(lambda: bool(trains.messages(CheckpointFailed)))
    before = len(trains.messages(Checkpointed))
    store.away = False
    trains.until(lambda: len(trains.messages(Checkpointed)) > before)
    failed = trains.messages(CheckpointFailed)[-1]
    assert trains.messages(Checkpointed)[-1].samples > failed.samples
    assert "503" in failed.why or "ServiceUnavailable" in failed.why, failed.why
    trains.stop()
    trains.wait()
    assert codes(trains) == [143], trains.output()
