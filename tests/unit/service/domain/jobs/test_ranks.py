"""From slots to ranks, and the choice of a port."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.jobs.ranks import choose_port, layout

allocations = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3", "n4"]),
    st.sets(st.integers(0, 7), min_size=1).map(lambda slots: tuple(sorted(slots))),
    min_size=1,
)


@settings(max_examples=30)
@given(allocations, st.sampled_from([None, "n1", "n2", "gone"]))
def test_every_slot_has_one_rank_and_ranks_are_consecutive(
    allocation: dict[str, tuple[int, ...]], previous: str | None
) -> None:
    parts = layout(allocation, previous_first=previous)
    ranks = [one.rank for part in parts for one in part.ranks]
    assert ranks == list(range(sum(map(len, allocation.values()))))
    assert {part.node_id: tuple(one.slot for one in part.ranks) for part in parts} == allocation
    assert [part.node_rank for part in parts] == list(range(len(allocation)))
    for part in parts:
        assert [one.local_rank for one in part.ranks] == list(range(len(part.ranks)))


@settings(max_examples=30)
@given(allocations, st.sampled_from(["n1", "n2", "n3", "n4"]))
def test_rank_0_stays_where_it_was(allocation: dict[str, tuple[int, ...]], previous: str) -> None:
    first = layout(allocation, previous_first=previous)[0].node_id
    assert first == previous if previous in allocation else first in allocation


@settings(max_examples=30)
@given(allocations)
def test_the_layout_does_not_depend_on_the_order_of_nodes(allocation: dict[str, tuple[int, ...]]) -> None:
    assert layout(dict(reversed(allocation.items()))) == layout(allocation)


@settings(max_examples=30)
@given(allocations)
def test_a_new_job_has_rank_0_where_most_of_its_slots_are(allocation: dict[str, tuple[int, ...]]) -> None:
    parts = layout(allocation)
    sizes = [len(part.ranks) for part in parts]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=30)
@given(st.integers(1024, 60_000), st.integers(0, 20), st.integers(0, 2**40), st.data())
def test_a_free_port_of_the_range_is_found(first: int, span: int, seed: int, data: st.DataObject) -> None:
    last = first + span
    taken = data.draw(st.sets(st.integers(first, last)))
    port = choose_port(first, last, taken, seed=seed)
    assert first <= port <= last
    assert port not in taken or len(taken) == span + 1


def test_generations_in_turn_get_different_ports() -> None:
    assert [choose_port(100, 102, (), seed=seed) for seed in range(5)] == [100, 101, 102, 100, 101]


def test_when_all_are_taken_the_seeded_one_is_tried() -> None:
    assert choose_port(100, 101, {100, 101}, seed=7) == 101


@pytest.mark.parametrize(
    ("allocation", "previous", "nodes"),
    [
        ({"n1": (0, 1)}, None, [("n1", [0, 1])]),
        ({"n2": (0,), "n1": (0,)}, None, [("n1", [0]), ("n2", [1])]),
        ({"n1": (0,), "n2": (0, 1)}, None, [("n2", [0, 1]), ("n1", [2])]),
        ({"n1": (0,), "n2": (0, 1)}, "n1", [("n1", [0]), ("n2", [1, 2])]),
        ({"n1": (0,), "n2": (0, 1)}, "gone", [("n2", [0, 1]), ("n1", [2])]),
        ({}, None, []),
    ],
)
def test_the_order_of_nodes(
    allocation: dict[str, tuple[int, ...]], previous: str | None, nodes: list[tuple[str, list[int]]]
) -> None:
    """First the node of the previous rank 0, then larger shares, then node ids."""
    parts = layout(allocation, previous_first=previous)
    assert [(part.node_id, [one.rank for one in part.ranks]) for part in parts] == nodes


def test_ranks_of_a_node_are_in_the_order_of_its_slots() -> None:
    (part,) = layout({"n1": (7, 2, 4)})
    assert [(one.rank, one.local_rank, one.slot) for one in part.ranks] == [(0, 0, 2), (1, 1, 4), (2, 2, 7)]


@pytest.mark.parametrize(
    ("first", "last", "taken", "seed", "port"),
    [
        (100, 109, set(), 0, 100),
        (100, 109, set(), 9, 109),
        (100, 109, set(), 10, 100),
        (100, 109, {103}, 3, 104),
        (100, 109, {109, 100, 101}, 9, 102),
        (100, 109, set(range(100, 109)), 4, 109),
        (100, 100, set(), 77, 100),
        (100, 100, {100}, 77, 100),
        (100, 109, {99, 110}, 0, 100),
    ],
)
def test_the_first_free_port_from_the_seed_on(
    first: int, last: int, taken: set[int], seed: int, port: int
) -> None:
    assert choose_port(first, last, taken, seed=seed) == port
