"""From counts to slots."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from service.domain.allocation.placement import place
from service.domain.cluster import SlotKey
from service.domain.jobs import Allocation

ALL = [SlotKey(f"n{node}", slot) for node in range(4) for slot in range(4)]
keys = st.lists(st.sampled_from(ALL), unique=True)


def slots_of(allocation: Allocation) -> set[SlotKey]:
    return {SlotKey(node, slot) for node, slots in allocation.items() for slot in slots}


def on(node: str, *slots: int) -> list[SlotKey]:
    return [SlotKey(node, slot) for slot in slots]


@given(st.integers(1, 20), keys, st.data())
def test_exactly_so_many_held_ones_first(count: int, keep: list[SlotKey], data: st.DataObject) -> None:
    free = data.draw(
        st.lists(st.sampled_from(ALL), unique=True).map(lambda some: [k for k in some if k not in keep])
    )
    allocation = place(count, keep, free)
    if allocation is None:
        assert count > len(keep) + len(free)
        return
    chosen = slots_of(allocation)
    assert len(chosen) == sum(map(len, allocation.values())) == count <= len(keep) + len(free)
    assert chosen <= {*keep, *free}
    assert len(chosen & set(keep)) == min(count, len(keep))
    assert list(allocation) == sorted(allocation)
    assert all(list(slots) == sorted(slots) for slots in allocation.values())


@given(st.integers(1, 16), keys)
def test_a_new_job_spans_as_few_nodes_as_possible(count: int, free: list[SlotKey]) -> None:
    allocation = place(count, [], free)
    if allocation is None:
        return
    nodes = sorted({key.node_id for key in free})
    room = {node: sum(key.node_id == node for key in free) for node in nodes}
    fewest = next(
        span
        for span in range(1, len(nodes) + 1)
        if any(sum(room[node] for node in some) >= count for some in itertools.combinations(nodes, span))
    )
    assert len(allocation) == fewest


@given(st.integers(1, 16), keys)
def test_shrinking_leaves_as_few_nodes_as_possible(count: int, keep: list[SlotKey]) -> None:
    """The smallest outposts are left first."""
    allocation = place(count, keep, [])
    if allocation is None:
        return
    held = sorted(
        (sum(key.node_id == node for key in keep) for node in {key.node_id for key in keep}), reverse=True
    )
    fewest = next(span for span in range(1, len(held) + 1) if sum(held[:span]) >= count)
    assert len(allocation) == fewest


@given(st.integers(1, 16), keys, keys)
def test_the_order_of_slots_does_not_matter(count: int, keep: list[SlotKey], free: list[SlotKey]) -> None:
    free = [key for key in free if key not in keep]
    assert place(count, keep[::-1], free[::-1]) == place(count, keep, free)


def test_the_tightest_node_is_taken_so_that_room_stays_whole() -> None:
    free = [*on("n0", 0, 1, 2, 3), *on("n1", 0, 1), *on("n2", 0, 1, 2)]
    assert place(2, [], free) == {"n1": (0, 1)}


def test_growing_stays_at_home() -> None:
    free = [*on("n0", 0, 1, 2, 3), *on("n1", 2, 3)]
    assert place(3, on("n1", 0), free) == {"n1": (0, 2, 3)}
    assert place(4, on("n1", 0), free) == {"n0": (0,), "n1": (0, 2, 3)}


def test_nothing_left() -> None:
    assert place(3, on("n0", 0), on("n1", 0)) is None
    assert place(2, on("n0", 0, 1), []) == {"n0": (0, 1)}
