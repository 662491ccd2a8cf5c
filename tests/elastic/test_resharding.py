"""Models that the library shards (FSDP2) change size in place: no bit of their state changes in a move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.contract.runtime import EXIT_RETRY, Completed, FirstStep, Left, Restored
from tests.elastic.harness import Job
from tests.elastic.live import Live

EPOCHS, STEPS_PER_EPOCH = 6, 4


@dataclass(frozen=True)
class Step:
    """A step as rank 0 noted it: digests of the whole state, and the loss over all samples."""

    number: int
    world_size: int
    before: str
    after: str
    loss: float


def steps(folder: Path) -> list[Step]:
    found = []
    for line in (folder / "steps.txt").read_text().splitlines():
        number, size, before, after, loss = line.split()
        found.append(Step(int(number), int(size), before, after, float(loss)))
    return found


@pytest.fixture
def sharded(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job with a sharded model."""

    def make(*arguments: object) -> Live:
        made = job("resharded.py", "--epochs", EPOCHS, *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return Live(made)

    return make


def assert_continuous(noted: list[Step], undisturbed: list[Step]) -> None:
    """Every step begins with the very state in which the one before ended, and learns as if nothing had happened."""
    assert [one.number for one in noted] == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    assert [one.before for one in noted[1:]] == [one.after for one in noted[:-1]]
    expected = [one.loss for one in undisturbed]
    assert expected[-1] < expected[0] / 2, "it must learn, or equal losses prove nothing"
    assert [one.loss for one in noted] == pytest.approx(expected, rel=1e-6)


def test_the_state_is_bit_equal_after_every_move(sharded: Callable[..., Live]) -> None:
    alone = sharded()
    alone.start(2)
    assert alone.wait() == [0, 0], alone.output()
    live = sharded()
    live.start(2, steps=3)
    for change in (
        lambda: live.newcomers(live.members, 1),  # 3
        lambda: live.newcomers(live.members[1:], 0),  # 2, without the first
        lambda: live.newcomers(live.members[:1], 0),  # 1
        lambda: live.newcomers(live.members, 1),  # 2
        lambda: live.newcomers(live.members[1:], 2),  # 3, and one leaves
    ):
        live.wait_until_held()
        live.give(change())
        live.allow(3)
        switched = live.wait_for_switch()
        assert all(one.lost_steps == 0 for one in switched)
        assert any(one.sync_bytes > 0 for one in switched)
    live.allow_all()
    assert live.wait() == [0, 0, 0], live.output()
    noted = steps(live.job.folder)
    sizes = [one.world_size for one in noted]
    assert [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before] == [
        2,
        3,
        2,
        1,
        2,
        3,
    ]
    assert_continuous(noted, steps(alone.job.folder))
    assert all(one.live and one.sharded for one in live.messages(FirstStep))
    assert len(live.messages(Left)) == 3
    assert not live.messages(Restored)


def test_a_whole_move_goes_through_a_checkpoint(sharded: Callable[..., Live]) -> None:
    live = sharded()
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(live.newcomers([], 3))
    live.allow_all()
    live.wait_for_switch()
    assert live.wait() == [0, 0, 0], live.output()
    assert len(live.messages(Restored)) == 1
    noted = steps(live.job.folder)
    assert [one.before for one in noted[1:]] == [one.after for one in noted[:-1]]
    assert live.messages(Completed)


def test_a_rank_lost_during_a_move_costs_a_restart(sharded: Callable[..., Live]) -> None:
    live = sharded("--timeout-s", 8)
    live.start(2, steps=3)
    live.wait_until_held()
    newcomer = live.newcomers(live.members, 1)
    (new,) = [one for one in newcomer.members if one not in live.members]
    live.kill(new)
    live.give(newcomer)
    live.members = live.members[:2]
    live.allow_all()
    assert live.wait() == [EXIT_RETRY, EXIT_RETRY], live.output()
