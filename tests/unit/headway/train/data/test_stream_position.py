"""Histories of a stream: every shard is read once, by whichever members there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from headway.train.data.ledger import Ledger
from headway.train.data.stream_position import Lane, OpenShard, Read, StreamPosition, numbered, position_from

Trained = Counter[tuple[int, int]]
MEMBERS = ["a", "b", "c", "d"]

histories = st.lists(
    st.one_of(
        st.tuples(st.just("members"), st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True)),
        st.tuples(st.sampled_from(["step", "failed", "states"]), st.lists(st.integers(0, 9), min_size=4)),
    ),
    max_size=20,
)


def read(lane: Lane, wanted: int, sizes: list[int]) -> tuple[Read, Trained]:
    """Read a rank's samples in a round."""
    ended: list[int] = []
    taken: Trained = Counter()
    for shard in lane.shards:
        size = sizes[shard.number % len(sizes)]
        stop = min(size, shard.samples + wanted - taken.total())
        taken.update((shard.number, index) for index in range(shard.samples, stop))
        if taken.total() == wanted or len(ended) == Read.MOST_ENDED:
            return Read(tuple(ended), stop, wanted - taken.total()), taken
        ended.append(size)
    return Read(tuple(ended), 0, wanted - taken.total()), taken


def step(position: StreamPosition, wants: list[int], sizes: list[int]) -> tuple[StreamPosition, Trained]:
    """Read until every rank has its samples."""
    wanted, trained = list(wants), Counter[tuple[int, int]]()
    while True:
        reports = []
        for rank, lane in enumerate(position.lanes):
            report, taken = read(lane, wanted[rank], sizes)
            wanted[rank] -= taken.total()
            trained += taken
            reports.append(Read.from_numbers(report.to_numbers()))
            assert reports[-1] == report
        position = position.after(reports)
        if not any(wanted):
            return position, trained


def run(
    history: list[tuple[str, list]], sizes: list[int], *, same_order: bool
) -> tuple[StreamPosition, Trained]:
    position, trained = StreamPosition().for_members(["a"], same_order=same_order), Counter[tuple[int, int]]()
    for kind, values in history:
        if kind == "members":
            position = position.for_members(values, same_order=same_order)
        elif kind == "states":
            states = {
                one.number: (b"state", one.samples)
                for lane in position.lanes
                for one in lane.shards
                if one.samples
            }
            position = position.with_states(states)
        else:
            after, taken = step(position, values[: len(position.lanes)], sizes)
            if kind == "step":
                position = after
                trained += taken
    return position, trained


def ledger_of(trained: Trained) -> Ledger:
    parts = [numbered(*one, one[1] + 1) for one in trained.elements()]
    return sum(parts, Ledger())


@given(histories, st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any))
def test_each_sample_of_each_shard_is_trained_once(history: list[tuple[str, list]], sizes: list[int]) -> None:
    position, trained = run(history, sizes, same_order=True)
    assert all(count == 1 for count in trained.values())
    assert (position.repeated, position.repeated_shards) == (0, 0)
    assert position.trained == ledger_of(trained)
    held = [one.number for lane in position.lanes for one in lane.shards]
    assert len(held) == len(set(held)) == position.dealt - position.ended_shards
    assert all(lane.shards for lane in position.lanes)


@given(histories, st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any))
def test_where_orders_differ_only_tails_behind_a_known_state_are_repeated(
    history: list[tuple[str, list]], sizes: list[int]
) -> None:
    position, trained = run(history, sizes, same_order=False)
    assert sum(count - 1 for count in trained.values()) <= position.repeated, "some are not read again yet"
    assert position.trained == ledger_of(trained)
    assert bool(position.repeated) is bool(position.repeated_shards)
    assert position.trained == ledger_of(trained)
    followed_states = [one for pair in history for one in (("states", []), pair)]
    position, trained = run(followed_states, sizes, same_order=False)
    assert position.repeated == 0
    assert all(count == 1 for count in trained.values())


@given(histories)
def test_a_checkpoint_holds_the_position(history: list[tuple[str, list]]) -> None:
    position, _ = run(history, [3, 5], same_order=True)
    assert position_from(asdict(position)) == position


def test_shards_of_a_member_that_left_go_to_those_that_hold_the_fewest() -> None:
    lanes = (
        Lane("a", (OpenShard(0, 2), OpenShard(3))),
        Lane("b", (OpenShard(1, 1), OpenShard(4))),
        Lane("c", (OpenShard(2),)),
    )
    position = StreamPosition(5, lanes).for_members(["c", "a"], same_order=True)
    assert [[one.number for one in lane.shards] for lane in position.lanes] == [[1, 2, 4], [0, 3]]


def test_shards_without_samples_are_counted_until_one_has_some() -> None:
    position = StreamPosition().for_members(["a", "b"], same_order=True)
    position = position.after([Read((0, 0), 0, 1), Read((0,), 0, 1)])
    assert position.empty_shards == 3
    assert position.after([Read((), 1, 0), Read((2,), 0, 1)]).empty_shards == 0
