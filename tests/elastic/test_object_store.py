"""Checkpoints in an object store that speaks S3."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from moto.server import ThreadedMotoServer

from headway.contract.runtime import Checkpointed, Restored
from tests.elastic.harness import Job, codes
from tests.elastic.test_exactness import assert_counts, counting


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """The environment of ranks whose checkpoints go to a bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/kept", method="PUT")).close()
    yield {
        "HEADWAY_CHECKPOINT_URI": "s3://kept/jobs/one",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }
    server.stop()


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
