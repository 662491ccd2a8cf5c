"""Every sample exactly once an epoch, and the same losses, whatever happens in between."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.contract.runtime import Checkpointed, Completed, EpochClosed, Restored, Stopped
from headway.train.data.position import order
from tests.elastic.harness import Job, codes

STOPPED, DONE = 143, 0


def expected_counts(samples: int, epochs: int, batch: int) -> torch.Tensor:
    """Return the expected result of `count.py`, computed without ranks, stops or steps."""
    expected = torch.zeros(samples, dtype=torch.float64)
    for epoch in range(epochs):
        taken = torch.from_numpy(order(samples, seed=7, epoch=epoch))
        for step in taken.split(batch):
            expected[step] -= 1 / len(step)
    return expected


def assert_counts(job: Job, *, samples: int, epochs: int, batch: int) -> None:
    size = len(job.generations[-1].processes)
    for rank in range(size):
        counts = torch.load(job.folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True)
        torch.testing.assert_close(counts, expected_counts(samples, epochs, batch), rtol=1e-9, atol=1e-9)
    audits = job.messages(EpochClosed)
    assert {audit.epoch for audit in audits} == set(range(epochs))
    assert all(audit.exactly_once and audit.samples_seen == samples for audit in audits)
    completed = job.generations[-1].messages(Completed)
    assert [message.samples for message in completed] == [samples * epochs]


def counting(make: Callable[..., Job], *arguments: object, **env: str) -> Job:
    job = make("count.py", *arguments, **env)
    job.arguments = [*job.arguments, "--result", str(job.folder)]
    return job


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 16))]
)
def test_random_stops_kills_and_sizes(job: Callable[..., Job], seed: int) -> None:
    rng = random.Random(seed)
    samples, batch, epochs = rng.randint(10, 70), rng.randint(1, 24), rng.randint(1, 3)
    limit = ["--max-local", rng.randint(1, 6)] if rng.random() < 0.5 else []
    shape = ["--samples", samples, "--batch", batch, "--epochs", epochs, *limit]
    counted = counting(job, *shape, HEADWAY_CHECKPOINT_EVERY_S="0.02")
    for _ in range(4):
        size = rng.randint(1, 3)
        places: list[int | str] = [rng.randint(1, 12), f"after {rng.randrange(epochs)}"]
        faults = [
            [rng.randrange(size), rng.choice(places), rng.choice(["SIGTERM", "SIGTERM", "SIGKILL"])]
            for _ in range(rng.randint(1, 2))
        ]
        ended = counted.run(size, FAULTS=json.dumps(faults))
        killed = any(code not in (STOPPED, DONE) for code in codes(ended))
        assert not killed or any(name == "SIGKILL" for *_, name in faults), ended.output()
        if codes(ended) == [DONE] * size:
            break
    else:
        ended = counted.run(rng.randint(1, 3))
        assert set(codes(ended)) == {DONE}, ended.output()
    assert_counts(counted, samples=samples, epochs=epochs, batch=batch)


def test_all_ranks_leave_after_the_same_step_when_only_one_is_asked(job: Callable[..., Job]) -> None:
    counted = counting(job)
    stopped = counted.run(3, FAULTS=json.dumps([[2, 3, "SIGTERM"]]))
    assert codes(stopped) == [STOPPED] * 3, stopped.output()
    places = {message.samples for rank in range(3) for message in stopped.messages(Stopped, rank)}
    # Rank 2 was asked during step 3, so it says so as step 4 begins, and all leave when that ends.
    assert places == {4 * 8}
    assert [saved.samples for saved in stopped.messages(Checkpointed)] == [4 * 8]

    finished = counted.run(2)
    assert codes(finished) == [DONE] * 2, finished.output()
    assert [restored.samples for restored in finished.messages(Restored)] == [4 * 8]
    assert_counts(counted, samples=50, epochs=2, batch=8)


def test_a_stop_during_evaluation_takes_effect_at_the_end_of_the_epoch(job: Callable[..., Job]) -> None:
    counted = counting(job)
    stopped = counted.run(2, FAULTS=json.dumps([[1, "after 0", "SIGTERM"]]))
    assert codes(stopped) == [STOPPED] * 2, stopped.output()
    assert [message.samples for message in stopped.messages(Stopped)] == [50]
    assert [audit.epoch for audit in stopped.messages(EpochClosed)] == [0]

    finished = counted.run(1)
    assert [audit.epoch for audit in finished.messages(EpochClosed)] == [1]
    assert_counts(counted, samples=50, epochs=2, batch=8)


def test_a_stop_in_the_last_epoch_s_evaluation_lets_training_complete(job: Callable[..., Job]) -> None:
    counted = counting(job)
    finished = counted.run(2, FAULTS=json.dumps([[0, "after 1", "SIGTERM"]]))
    assert codes(finished) == [DONE] * 2, finished.output()
    assert_counts(counted, samples=50, epochs=2, batch=8)


@pytest.mark.slow
def test_a_killed_rank_costs_only_what_came_after_the_last_checkpoint(job: Callable[..., Job]) -> None:
    counted = counting(job, "--epochs", 20, HEADWAY_CHECKPOINT_EVERY_S="0.000001")
    killed = counted.run(2, FAULTS=json.dumps([[0, 130, "SIGKILL"]]))
    assert codes(killed)[0] == -9
    kept = [message.samples for message in killed.messages(Checkpointed)]
    assert kept, "it must save while it trains, or there is nothing to go on from"

    finished = counted.run(3)
    (restored,) = finished.messages(Restored)
    assert kept[-1] <= restored.samples <= 129 * 8  # one that was whole may not have been told of
    assert_counts(counted, samples=50, epochs=20, batch=8)


def test_fewer_samples_in_a_step_than_ranks(job: Callable[..., Job]) -> None:
    counted = counting(job, "--samples", 7, "--batch", 3, "--epochs", 3)
    finished = counted.run(3)  # the last step of an epoch has one sample for three ranks
    assert set(codes(finished)) == {DONE}, finished.output()
    assert_counts(counted, samples=7, epochs=3, batch=3)


def test_a_complete_run_has_nothing_left_to_do(job: Callable[..., Job]) -> None:
    counted = counting(job)
    counted.run(2)
    before = sorted(counted.checkpoints.rglob("*"))
    again = counted.run(1)
    assert codes(again) == [DONE], again.output()
    assert not again.messages(EpochClosed)
    assert [message.samples for message in again.messages(Completed)] == [100]
    assert sorted(counted.checkpoints.rglob("*")) == before


def losses_by_step(folder: Path, *, samples: int, epochs: int, batch: int) -> list[float]:
    """The mean loss of every step, from what all processes noted."""
    noted: dict[tuple[int, int], float] = {}
    for file in folder.glob("losses-*.txt"):
        for line in file.read_text().splitlines():
            epoch, index, loss = line.split()
            key = (int(epoch), int(index))
            assert key not in noted, "a sample was trained twice in an epoch"
            noted[key] = float(loss)
    assert len(noted) == samples * epochs
    return [
        sum(noted[epoch, index] for index in step.tolist()) / len(step)
        for epoch in range(epochs)
        for step in torch.from_numpy(order(samples, seed=3, epoch=epoch)).split(batch)
    ]


@pytest.mark.slow
def test_the_losses_are_those_of_an_undisturbed_run(job: Callable[..., Job]) -> None:
    shape = {"samples": 301, "epochs": 3, "batch": 16}

    def curve(*sizes: int, arguments: tuple[object, ...] = ()) -> list[float]:
        """Losses of a run that is stopped in its 13th loop body at every size but the last."""
        trained = job("curve.py", *arguments)
        trained.arguments = [*trained.arguments, "--result", str(trained.folder)]
        for size in sizes[:-1]:
            ended = trained.run(size, FAULTS=json.dumps([[size - 1, 13, "SIGTERM"]]))
            assert codes(ended) == [STOPPED] * size, ended.output()
        ended = trained.run(sizes[-1])
        assert codes(ended) == [DONE] * sizes[-1], ended.output()
        assert all(audit.exactly_once for audit in trained.messages(EpochClosed))
        return losses_by_step(trained.folder, **shape)

    undisturbed = curve(2)
    assert undisturbed[-1] < undisturbed[0] / 2, "it must learn, or equal losses prove nothing"
    assert curve(1, 3, 2) == pytest.approx(undisturbed, rel=1e-4)
    assert curve(2, 1, 3, arguments=("--max-local", 3)) == pytest.approx(undisturbed, rel=1e-4)
