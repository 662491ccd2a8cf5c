"""Members come, go and are lost while a job trains: nothing is trained twice, nothing is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.contract.orders import Order
from headway.contract.runtime import Completed, EpochClosed, Left, Restored
from tests.elastic.devices import OVER_SILENT_STREAMS, OVER_SLOW_STREAMS, OVER_STREAMS
from tests.elastic.harness import Job
from tests.elastic.live import Live
from tests.elastic.streamed import NAME
from tests.elastic.test_exactness import expected_counts

SAMPLES, EPOCHS, BATCH = 50, 3, 8
KILLED = -9


@pytest.fixture
def counting(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job that counts its samples."""

    def make(*arguments: object, samples: int = SAMPLES, epochs: int = EPOCHS, batch: int = BATCH) -> Live:
        counted = job("count.py", "--samples", samples, "--epochs", epochs, "--batch", batch, *arguments)
        counted.arguments = [*counted.arguments, "--result", str(counted.folder)]
        return Live(counted)

    return make


def assert_exact(live: Live, *, samples: int = SAMPLES, epochs: int = EPOCHS, batch: int = BATCH) -> None:
    """Every sample was trained exactly once an epoch, with its weight, on every rank that ended."""
    live.allow_all()
    assert live.wait() == [0] * len(live.members), live.output()
    size = len(live.members)
    for rank in range(size):
        counts = torch.load(live.job.folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True)
        torch.testing.assert_close(counts, expected_counts(samples, epochs, batch), rtol=1e-9, atol=1e-9)
    audits = {audit.epoch: audit for audit in live.messages(EpochClosed)}
    assert set(audits) == set(range(epochs))
    assert all(audit.exactly_once and audit.samples_seen == samples for audit in live.messages(EpochClosed))
    assert {message.samples for message in live.messages(Completed)} == {samples * epochs}


@OVER_SLOW_STREAMS
def test_grow(counting: Callable[..., Live]) -> None:
    live = counting()
    live.start(1, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(["1.0"], 1))
    live.allow(4)
    first, second = live.wait_for_switch()
    assert (first.rank, second.rank, first.world_size) == (0, 1, 2)
    assert first.samples == second.samples
    assert first.lost_steps == 0
    assert first.sync_bytes > 0
    assert_exact(live)
    assert not live.messages(Restored)


@OVER_SLOW_STREAMS
def test_shrink(counting: Callable[..., Live]) -> None:
    live = counting()
    live.start(3, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(["1.2", "1.0"], 0))
    live.allow(4)
    assert [one.sync_bytes for one in live.wait_for_switch()] == [0, 0]
    assert [left.joined for left in live.messages(Left)] == [2]
    assert_exact(live)
    assert live.processes["1.1"].code == 0


@OVER_STREAMS
def test_some_leave_while_others_join(counting: Callable[..., Live]) -> None:
    live = counting()
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(["1.1"], 2))
    live.allow(4)
    live.wait_for_switch()
    assert live.processes["1.0"].handle.join(30) is None
    assert live.processes["1.0"].code == 0
    assert_exact(live)


def test_a_whole_move_goes_through_storage(counting: Callable[..., Live]) -> None:
    live = counting()
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(live.newcomers([], 3))
    live.allow(4)
    switched = live.wait_for_switch()
    assert [restored.samples for restored in live.messages(Restored)] == [switched[0].samples]
    assert switched[0].samples > 3 * BATCH
    assert_exact(live)
    assert len(live.messages(Left)) == 2


@pytest.mark.parametrize(
    ("victim", "collective"),
    [("1.0", None), ("1.1", None), ("1.2", None), ("1.0", NAME)]
    + [pytest.param(victim, NAME, marks=pytest.mark.slow) for victim in ("1.1", "1.2")],
)
def test_a_killed_rank_costs_at_most_the_step_in_flight(counting: Callable[..., Live], victim: str) -> None:
    live = counting()
    live.start(3, steps=3)
    live.wait_until_held()
    live.kill(victim)
    live.give(live.survivors([member for member in live.members if member != victim]))
    live.allow(4)
    switched = live.wait_for_switch()
    assert all(one.lost_steps <= 1 for one in switched)
    assert_exact(live)
    assert not live.messages(Restored)


@OVER_SILENT_STREAMS
def test_grow_shrink_lose_and_grow_again(counting: Callable[..., Live], tmp_path: Path) -> None:
    live = counting(epochs=6)
    live.start(1, steps=2)
    turns = (
        lambda: live.newcomers(live.members, 2),
        lambda: live.newcomers(live.members[1:], 0),
        lambda: live.newcomers(live.members[:1], 2),
        lambda: lose(live, live.members[0]),
        lambda: live.newcomers(live.members, 1),
    )
    live.play(turns, steps=4)
    assert_exact(live, epochs=6)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["anew", "persistent"])
def test_own_loader_with_workers_is_divided_anew_at_each_change(
    counting: Callable[..., Live], workers: str
) -> None:
    live = counting("--own-loader", workers, "--max-local", 3, epochs=6)
    live.start(1, steps=2)
    turns = (
        lambda: live.newcomers(live.members, 2),
        lambda: live.newcomers(live.members[1:], 0),
        lambda: lose(live, live.members[0]),
        lambda: live.newcomers([], 2),  # through storage
    )
    live.play(turns, steps=12)
    assert_exact(live, epochs=6)
    assert len(live.messages(Restored)) == 1


def lose(live: Live, member: str) -> Order:
    live.kill(member)
    return live.survivors([one for one in live.members if one != member])
