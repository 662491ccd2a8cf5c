"""Which sizes are offered, and the rows that let only such choices through as can be placed."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.configurations.shapes import (
    exempt_jobs,
    offered,
    packing_rows,
    pieces_of,
    regular_sizes,
    shapes_of,
    standard_node,
)
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.shared.arrays import IntArray
from tests.unit.service.domain.allocation.clusters import random_cluster

nodes_of = st.lists(st.integers(1, 16), min_size=1, max_size=6).map(
    lambda sizes: np.array(sizes, dtype=np.int64)
)


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def fits(pieces: list[int], room: tuple[int, ...]) -> bool:
    """Brute force: whether the pieces, each on one node, find room."""
    if not pieces:
        return True
    first, *others = pieces
    return any(
        fits(others, (*room[:at], left - first, *room[at + 1 :]))
        for at, left in enumerate(room)
        if left >= first
    )


def sizes_of_pieces(slots: int, node_slots: int, unit: int) -> list[int]:
    """The pieces of a job, the largest first."""
    counts = pieces_of(slots, node_slots, unit)
    return [1 << level for level in range(len(counts) - 1, -1, -1) for _ in range(counts[level])]


@given(st.integers(0, 300), st.integers(1, 40), st.integers(0, 5))
def test_pieces_are_the_whole_job(slots: int, node_slots: int, exponent: int) -> None:
    unit = min(1 << exponent, 1 << (node_slots.bit_length() - 1))
    pieces = sizes_of_pieces(slots, node_slots, unit)
    assert sum(pieces) == slots
    assert all(size <= unit for size in pieces)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3), st.lists(st.integers(1, 12), max_size=4), st.data()
)
@settings(max_examples=80)
def test_the_rows_say_exactly_what_fits(room: list[int], slots: list[int], data: st.DataObject) -> None:
    """A set of jobs keeps to the rows if and only if its pieces can be packed (brute force over all packings)."""
    node_slots = ints(*(data.draw(st.integers(max(1, left), 9)) for left in room))
    shapes = shapes_of(ints(*slots), node_slots=node_slots, room=ints(*room))
    columns = [int(np.flatnonzero(shapes.slots == size)[0]) for size in slots]
    rows = packing_rows(shapes, kind="gpu", room=ints(*room))
    within = sum(slots) <= sum(room) and all(
        sum(row.demand[column] for column in columns) <= row.capacity for row in rows
    )
    pieces = [
        size
        for column in columns
        for size in sizes_of_pieces(int(shapes.slots[column]), shapes.node_slots, int(shapes.unit[column]))
    ]
    assert within == (sum(slots) <= sum(room) and fits(sorted(pieces, reverse=True), tuple(room)))


@given(st.integers(1, 5), st.integers(0, 6), st.integers(1, 40))
def test_like_nodes_of_a_power_of_two_need_no_rows(nodes: int, exponent: int, most: int) -> None:
    room = np.full(nodes, 1 << exponent, dtype=np.int64)
    shapes = shapes_of(np.arange(1, most), node_slots=room, room=room)
    assert packing_rows(shapes, kind="gpu", room=room) == ()
    assert (shapes.nodes == -(-shapes.slots // (1 << exponent))).all()


@given(st.integers(1, 64), st.integers(0, 64))
def test_one_node_packs_every_size(node_slots: int, room: int) -> None:
    sizes = regular_sizes(ints(node_slots))
    shapes = shapes_of(sizes, node_slots=ints(node_slots), room=ints(min(room, node_slots)))
    assert sizes.tolist() == list(range(1, node_slots + 1))
    assert packing_rows(shapes, kind="gpu", room=ints(min(room, node_slots))) == ()
    assert shapes.regular.all()
    assert (shapes.nodes == 1).all()


@given(nodes_of)
def test_a_size_is_cut_up_only_where_it_would_not_fit(node_slots: IntArray) -> None:
    """Whatever there are slots for fits alone in an empty cluster, and what fits in whole pieces stays whole."""
    shapes = shapes_of(np.arange(1, node_slots.sum() + 2), node_slots=node_slots, room=node_slots)
    rows = packing_rows(shapes, kind="gpu", room=node_slots)
    for column, slots in enumerate(shapes.slots.tolist()):
        assert slots > node_slots.sum() or all(row.demand[column] <= row.capacity for row in rows)
        assert shapes.nodes[column] >= -(-slots // max(node_slots.max(), shapes.node_slots))
        if slots <= shapes.node_slots:
            assert shapes.nodes[column] == 1


def test_a_job_is_squeezed_in_where_no_whole_node_is_left() -> None:
    shapes = shapes_of(ints(1, 2, 4, 8), node_slots=ints(4, 4, 4), room=ints(3, 3, 3))
    assert shapes.unit.tolist() == [4, 4, 2, 1]
    assert shapes.nodes.tolist() == [1, 1, 2, 3]
    assert [(row.name, row.capacity) for row in packing_rows(shapes, kind="a100", room=ints(3, 3, 3))] == [
        ("packing/a100/2", 6.0)
    ]


def test_rows_of_nodes_that_are_partly_taken() -> None:
    room = ints(8, 8, 6, 3)
    shapes = shapes_of(ints(1, 2, 4, 8, 16), node_slots=ints(8, 8, 8, 8), room=room)
    rows = packing_rows(shapes, kind="a100", room=room, of_column=ints(-1, 0, 1, 2, 3, 4, -1))
    assert [(row.name, row.capacity) for row in rows] == [
        ("packing/a100/8", 16.0),
        ("packing/a100/4", 20.0),
    ]
    assert rows[0].demand.tolist() == [0, 0, 0, 0, 8, 16, 0]
    assert rows[1].demand.tolist() == [0, 0, 0, 4, 8, 16, 0]


def test_the_node_size_that_uses_most_slots() -> None:
    assert standard_node(ints(8, 8, 8, 4)) == 8
    assert standard_node(np.repeat(ints(8, 4), [10, 100])) == 4
    assert standard_node(ints(6, 6)) == 6
    assert standard_node(ints()) == 1


def test_regular_sizes() -> None:
    assert regular_sizes(ints(8, 8, 8)).tolist() == [1, 2, 4, 8, 16, 24]
    assert regular_sizes(ints(6, 6)).tolist() == [1, 2, 4, 6, 12]
    many = regular_sizes(np.full(1000, 8))
    assert len(many) < 100
    assert many[-1] == 8000
    assert (many[1:] / many[:-1]).max() <= 2
    assert (np.diff(many[many >= 64]) / many[many >= 64][:-1]).max() <= 0.125


def test_what_is_offered() -> None:
    shapes = shapes_of(np.arange(1, 17), node_slots=ints(4, 4, 4, 4), room=ints(4, 4, 4, 4))

    def offer(*allowed: int, most: int = 16) -> list[int]:
        fits = (shapes.slots <= most)[np.newaxis]
        mask = offered(shapes, np.isin(shapes.slots, allowed)[np.newaxis], fits)[0]
        return [int(slots) for slots in shapes.slots[mask]]

    assert offer(*range(1, 17)) == [1, 2, 4, 8, 12, 16]
    assert offer(1, 2, 3, 4) == [1, 2, 4]
    assert offer(3, 4) == [3, 4]  # the smallest always: it may be all that there is room for
    assert offer(3) == [3]
    assert offer(1, 6) == [1, 6]  # nothing regular is near
    assert offer(1, 2, 3) == [1, 2, 3]  # the largest always: it is the maximum of the job
    assert offer(*range(1, 17), most=7) == [1, 2, 4, 7, 8, 12, 16]
    assert offer(5, 6, most=4) == [5, 6]  # the smallest may wait for room
    assert offer() == []


def test_powers_of_two_are_offered_on_nodes_of_another_size() -> None:
    shapes = shapes_of(ints(1, 2, 4, 8, 16), node_slots=ints(6, 6, 6), room=ints(6, 6, 6))
    every = np.ones((2, 5), dtype=np.bool_)
    assert offered(shapes, every, every).all()


@pytest.mark.parametrize("room", [ints(), ints(0, 0)])
def test_a_kind_without_slots(room: IntArray) -> None:
    shapes = shapes_of(ints(-2, 0, 1, 8), node_slots=room, room=room)
    assert shapes.slots.tolist() == [1, 8]
    assert packing_rows(shapes, kind="gpu", room=room) == ()
    nothing = exempt_jobs(shapes, room=room, current=ints(NOTHING), holder=ints(), held=ints())
    assert nothing.tolist() == [False]
    assert shapes_of(ints(), node_slots=room, room=room).slots.tolist() == []


@given(st.randoms(use_true_random=False))
@settings(max_examples=80)
def test_everybody_may_stay(rng: random.Random) -> None:
    """However jobs lie, the rows let the present choice through, and nobody is exempt without need."""
    cluster = random_cluster(
        rng, nodes=rng.randint(1, 5), largest=rng.choice([3, 4, 8]), jobs=rng.randint(1, 8)
    )
    assert cluster.keeps_to_rows(cluster.current)
    if not cluster.rows:
        assert not cluster.exempt.any()


def test_only_scattered_jobs_are_exempt_and_only_if_a_row_breaks() -> None:
    shapes = shapes_of(ints(4), node_slots=ints(4, 4, 4), room=ints(4, 3, 3))
    lies = {"holder": ints(0, 1, 1), "held": ints(4, 2, 2)}
    both = exempt_jobs(shapes, room=ints(4, 3, 3), current=ints(0, 0), **lies)
    assert both.tolist() == [False, True]
    alone = exempt_jobs(
        shapes, room=ints(4, 3, 3), current=ints(NOTHING, 0), holder=ints(1, 1), held=ints(2, 2)
    )
    assert not alone.any()


def test_the_order_of_nodes_does_not_matter() -> None:
    for room in itertools.permutations([8, 5, 3]):
        rows = packing_rows(
            shapes_of(ints(2, 4), node_slots=ints(8, 8, 8), room=ints(*room)), kind="gpu", room=ints(*room)
        )
        assert [row.capacity for row in rows] == [12.0, 14.0]
