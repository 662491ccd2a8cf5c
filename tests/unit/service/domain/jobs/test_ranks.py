"""From slots to ranks, and the choice of a port."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.domain.jobs.ranks import choose_port, layout

allocations = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3", "n4"]),
    st.sets(st.integers(0, 7), min_size=1).map(lambda slots: tuple(sorted(slots))),
    min_size=1,
)


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


@given(allocations, st.sampled_from(["n1", "n2", "n3", "n4"]))
def test_rank_0_stays_where_it_was(allocation: dict[str, tuple[int, ...]], previous: str) -> None:
    first = layout(allocation, previous_first=previous)[0].node_id
    assert first == previous if previous in allocation else first in allocation


@given(allocations)
def test_the_layout_does_not_depend_on_the_order_of_nodes(allocation: dict[str, tuple[int, ...]]) -> None:
    assert layout(dict(reversed(allocation.items()))) == layout(allocation)


@given(allocations)
def test_a_new_job_has_rank_0_where_most_of_its_slots_are(allocation: dict[str, tuple[int, ...]]) -> None:
    parts = layout(allocation)
    sizes = [len(part.ranks) for part in parts]
    assert sizes == sorted(sizes, reverse=True)


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
