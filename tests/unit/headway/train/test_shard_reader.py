"""A shard continues behind any sample, with and without a state of its reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from headway.train.data.stream_position import OpenShard
from headway.train.shard_reader import ShardReader


class Numbers(IterableDataset[int]):
    """The numbers below `stop`, with their position as a state."""

    def __init__(self, stop: int) -> None:
        self.stop, self.at = stop, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.stop:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def reader_of(open_shard: Any, shard: Any = 10, at: OpenShard | None = None) -> ShardReader:
    return ShardReader(open_shard, shard, at or OpenShard(0))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=12), st.sampled_from([range, Numbers]))
def test_committed_samples_come_once_and_others_again(takes: list[tuple[bool, int]], kind: Any) -> None:
    reader, committed = reader_of(kind), list[int]()
    for commits, count in takes:
        taken = reader.take(count)
        assert taken == list(range(10))[len(committed) : len(committed) + count]
        assert reader.position == len(committed) + len(taken)
        if commits:
            reader.commit()
            committed += taken
        else:
            reader.rewind()
    state = reader.state()
    at = OpenShard(0, len(committed), state, len(committed) if state else 0)
    again = reader_of(kind, at=at)
    assert committed + again.take(20) == list(range(10))
    assert again.ended


def test_a_reader_with_samples_of_a_repeated_step_has_no_state_until_they_are_used() -> None:
    reader = reader_of(Numbers)
    reader.take(4)
    reader.commit()
    reader.take(3)
    reader.rewind()
    assert reader.state() is None
    assert reader.take(3) == [4, 5, 6]
    reader.commit()
    assert reader.state() is not None
    assert reader_of(range).state() is None


def test_a_state_that_is_behind_is_followed_by_reading_on() -> None:
    reader = reader_of(Numbers)
    reader.take(2)
    reader.commit()
    assert reader_of(Numbers, at=OpenShard(0, 7, reader.state(), 2)).take(20) == [7, 8, 9]


def test_a_shard_that_is_shorter_than_before_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended after 3 samples, but 4"):
        reader_of(range, 3, OpenShard(0, 4))


def test_a_state_that_a_checkpoint_cannot_hold_is_an_error() -> None:
    class Odd(Numbers):
        def state_dict(self) -> dict[str, Any]:
            return {"at": Numbers(1)}

    reader = reader_of(Odd)
    reader.take(1)
    reader.commit()
    with pytest.raises(TypeError, match="of shard 10"):
        reader.state()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_data_loader_with_workers_continues_by_its_state(workers: int) -> None:
    def opened(stop: int) -> StatefulDataLoader:
        return StatefulDataLoader(Numbers(stop), batch_size=None, num_workers=workers)

    reader = reader_of(opened)
    assert reader.take(4) == [0, 1, 2, 3]
    reader.commit()
    again = reader_of(opened, at=OpenShard(0, 4, reader.state(), 4))
    assert again.take(10) == [4, 5, 6, 7, 8, 9]
