"""Training on a stream of shards while members come, go and are lost: each sample counts once, as the audit says."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from itertools import accumulate, islice
from pathlib import Path

import pytest
import torch

from headway.contract.runtime import EpochClosed, Progress, Restored
from tests.elastic.harness import Job, codes
from tests.elastic.live import Live
from tests.elastic.test_live import lose

SIZES = [1 + 7 * shard % 23 for shard in range(30)]
BATCH, STEPS = 8, 30
STOPPED = 143

READERS = ["plain", "tar", "stateful", "loader", "datasets"]


@pytest.fixture
def streaming(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job that trains on a stream."""

    def make(reader: str, *arguments: object, sizes: list[int] = SIZES, steps: int = STEPS) -> Live:
        shape = ["--reader", reader, "--sizes", json.dumps(sizes), "--steps", steps, "--batch", BATCH]
        made = job("stream.py", *shape, *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        if reader == "tar":
            write_tars(made.folder, sizes)
        return Live(made)

    return make


def write_tars(folder: Path, sizes: list[int]) -> None:
    numbers = iter(range(sum(sizes)))
    for shard, size in enumerate(sizes):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in islice(numbers, size):
                member = tarfile.TarInfo(f"{number}.txt")
                content = str(number).encode()
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def counts_of(job: Job, size: int, sizes: list[int] = SIZES) -> list[list[int]]:
    """Return the number of times that each sample of each shard was trained, on which all ranks agree."""
    found = [
        torch.load(job.folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True) * -BATCH
        for rank in range(size)
    ]
    for one in found:
        torch.testing.assert_close(one, found[0].round(), rtol=1e-9, atol=1e-9)
    whole = [int(count) for count in found[0].round()]
    ends = list(accumulate(sizes))
    return [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def assert_once(job: Job, size: int) -> None:
    """Every sample was trained at most once, each shard from its beginning, and most of them to the end."""
    counts = counts_of(job, size)
    assert sum(map(sum, counts)) == STEPS * BATCH
    assert all(sorted(one, reverse=True) == one for one in counts), "from the beginning"
    assert max(map(max, counts)) == 1
    assert sum(0 < sum(one) < len(one) for one in counts) <= 2 * size
    (audit,) = job_audits(job)
    assert (audit.exactly_once, audit.samples_seen) == (True, STEPS * BATCH)


def job_audits(job: Job) -> list[EpochClosed]:
    return [
        message for one in job.generations for rank in range(4) for message in one.messages(EpochClosed, rank)
    ]


def last(live: Live) -> Progress:
    return live.messages(Progress)[-1]


def changes(live: Live) -> None:
    """Grow, shrink, lose a rank, and grow again."""
    live.start(1, steps=2)
    turns = (
        lambda: live.newcomers(live.members, 2),
        lambda: live.newcomers(live.members[1:], 0),
        lambda: lose(live, live.members[0]),
        lambda: live.newcomers(live.members, 1),
    )
    live.play(turns, steps=5)
    live.allow_all()
    assert live.wait() == [0] * len(live.members), live.output()


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_grow_shrink_lose_and_grow_again(streaming: Callable[..., Live], reader: str) -> None:
    live = streaming(reader)
    changes(live)
    assert_once(live.job, 2)
    assert (last(live).repeated_samples, last(live).repeated_shards, last(live).draws) == (0, 0, False)
    ended = sum(sum(one) == len(one) for one in counts_of(live.job, 2))
    assert ended - 2 <= (last(live).shards or 0) <= ended, "a rank learns of an end when it asks for more"


def test_a_whole_move_goes_through_storage(streaming: Callable[..., Live]) -> None:
    live = streaming("stateful", "--max-local", 1)
    live.start(3, steps=10)
    live.wait_until_held()
    live.give(live.newcomers([], 2))
    live.allow_all()
    live.wait_for_switch()
    assert live.wait() == [0] * 2, live.output()
    assert_once(live.job, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [[reader] for reader in READERS] + [["stateful", "--sharded"]], ids=" ".join
)
def test_a_restart_continues_in_the_shards(streaming: Callable[..., Live], arguments: list[str]) -> None:
    job = streaming(*arguments).job
    stopped = job.run(2, FAULTS=json.dumps([[1, 12, "SIGTERM"]]))
    assert codes(stopped) == [STOPPED] * 2, stopped.output()
    finished = job.run(3)
    assert codes(finished) == [0] * 3, finished.output()
    assert [one.samples for one in finished.messages(Restored)] == [13 * BATCH]
    assert_once(job, 3)


def test_a_lost_rank_repeats_the_tail_of_its_shard_where_orders_differ(
    streaming: Callable[..., Live],
) -> None:
    live = streaming("stateful", "--another-order", sizes=[60] * 16, steps=75)
    live.start(3, steps=10)
    live.wait_until_held()
    live.give(lose(live, live.members[2]))
    live.allow(10)
    live.wait_for_switch()
    live.wait_until_held()
    live.give(live.newcomers(live.members[1:], 2))  # planned: the state of the leaving rank moves
    live.allow_all()
    live.wait_for_switch()
    assert live.wait() == [0] * 3, live.output()
    counts = counts_of(live.job, 3, [60] * 16)
    assert sum(map(sum, counts)) == 75 * BATCH
    (audit,) = job_audits(live.job)
    assert (audit.exactly_once, audit.samples_seen) == (True, 75 * BATCH)
    said = last(live)
    assert said.repeated_shards == 1
    assert 0 < said.repeated_samples <= 60
    (twice,) = [one for one in counts if max(one) > 1]
    assert (min(twice), max(twice), sum(twice)) == (1, 2, 60 + said.repeated_samples)
