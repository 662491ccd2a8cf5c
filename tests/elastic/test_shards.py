"""Models that are sharded over the ranks (FSDP2) train as replicated ones do, and resize through checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headway.contract.runtime import ENV_CHECKPOINT_EVERY_S, FirstStep, Restored
from tests.elastic.harness import Job, codes

STOPPED, DONE = 143, 0


def losses(job: Job) -> dict[int, float]:
    """The loss after each epoch: the same on every rank that noted it."""
    noted: dict[int, float] = {}
    for file in sorted(job.folder.glob("epochs-*.txt")):
        for line in file.read_text().splitlines():
            epoch, loss = line.split()
            assert noted.setdefault(int(epoch), float(loss)) == pytest.approx(float(loss), rel=1e-5)
    return noted


def made(job: Callable[..., Job], *, sharded: bool) -> Job:
    shards = job("shards.py", "--sharded", int(sharded))
    shards.arguments = [*shards.arguments, "--result", str(shards.folder)]
    return shards


def test_a_sharded_model_learns_as_a_replicated_one_and_goes_on_at_another_size(
    job: Callable[..., Job],
) -> None:
    replicated = made(job, sharded=False)
    assert codes(replicated.run(2)) == [DONE, DONE], replicated.generations[-1].output()
    sharded = made(job, sharded=True)
    stopped = sharded.run(2, FAULTS=json.dumps([[1, 10, "SIGTERM"]]))
    assert codes(stopped) == [STOPPED, STOPPED], stopped.output()
    assert not any(message.live for message in stopped.messages(FirstStep))
    finished = sharded.run(3, HEADWAY_MIN_DEPTH="0.5")  # which shards do not follow
    assert codes(finished) == [DONE] * 3, finished.output()
    assert "elastic.partial_backprop has no effect: the model is sharded" in finished.output()
    assert len(finished.messages(Restored)) == 1
    expected = losses(replicated)
    assert expected[11] < expected[0] / 2, "it must learn, or equal losses prove nothing"
    assert losses(sharded) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_stop_during_a_slow_step_saves_the_shards_within_the_grace_period(job: Callable[..., Job]) -> None:
    sharded = made(job, sharded=True)
    sharded.arguments = [*sharded.arguments, "--slow-s", "12"]  # a third of 30 s is less, and most of it more
    faults = json.dumps([[rank, 9, "SIGTERM"] for rank in range(2)])
    stopped = sharded.run(2, FAULTS=faults, **{ENV_CHECKPOINT_EVERY_S: "0.0001"})
    assert codes(stopped) == [STOPPED, STOPPED], stopped.output()
    assert "a peer does not answer" not in stopped.output()
