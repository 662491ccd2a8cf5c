"""Bin packing: where jobs are laid out, and that every choice within the rows is laid out in its pieces."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.placement.packing import lay_out
from service.domain.allocation.placement.repack import SlotDemand
from tests.unit.service.domain.allocation.clusters import random_choice, random_cluster
from tests.unit.service.domain.allocation.placement.layouts import demand, demands_of, in_pieces

rngs = st.randoms(use_true_random=False)


def laid(room: list[int], *claims: SlotDemand, node_slots: int = 4) -> list[dict[int, int]]:
    lay_out(claims, room, node_slots)
    return [claim.laid for claim in claims]


@pytest.mark.parametrize(
    ("slots", "room", "found"),
    [
        (3, [4, 3, 4], {1: 3}),  # best fit
        (2, [4, 3, 2], {2: 2}),
        (1, [4, 4, 0], {0: 1}),  # of equal nodes the first
        (3, [2, 4, 1], {1: 3}),  # together, although its pieces are 2 and 1
        (3, [2, 2, 1], {2: 1, 0: 2}),  # apart, in its pieces
        (4, [3, 4], {1: 4}),
        (8, [4, 4, 4], {0: 4, 1: 4}),
        (6, [4, 2, 4], {0: 4, 1: 2}),  # a whole node, and the rest on the tightest
        (5, [3, 4, 4], {1: 4, 0: 1}),
        (0, [4, 4], {}),
        (-2, [4, 4], {}),
        (5, [2, 2], {}),  # more than there is
        (4, [2, 2], {}),  # it was promised one node
    ],
)
def test_one_new_job(slots: int, room: list[int], found: dict[int, int]) -> None:
    assert laid(room, demand(slots)) == [found]


@pytest.mark.parametrize(("unit", "found"), [(1, {0: 2, 1: 2}), (2, {0: 2, 1: 2}), (4, {})])
def test_a_job_lies_in_smaller_pieces_only_if_it_was_chosen_so(unit: int, found: dict[int, int]) -> None:
    assert laid([2, 2], demand(4, unit=unit)) == [found]


def test_pieces_spread_over_the_fewest_nodes() -> None:
    """Several pieces of one size go to the node with the most room, the last one to the tightest."""
    assert laid([1, 2, 3], demand(5, unit=1)) == [{2: 3, 1: 2}]
    assert laid([1, 2, 3], demand(4, unit=1)) == [{2: 3, 0: 1}]


@pytest.mark.parametrize(
    ("slots", "found"), [(6, {0: 6}), (12, {0: 6, 1: 6}), (7, {0: 6, 1: 1}), (10, {0: 6, 1: 4})]
)
def test_whole_nodes_that_are_no_power_of_two_lie_together(slots: int, found: dict[int, int]) -> None:
    assert laid([6, 6, 6], demand(slots, node_slots=6), node_slots=6) == [found]


def test_a_node_that_is_no_power_of_two_is_split_if_another_job_needs_its_block() -> None:
    """A job of 6 slots on one node would leave no block of 4 to the other one."""
    first, other = laid([6, 4, 2], demand(6, node_slots=6), demand(4, node_slots=6), node_slots=6)
    assert sum(first.values()) == 6
    assert sum(other.values()) == max(other.values()) == 4


@pytest.mark.parametrize(
    ("own", "slots", "room", "found"),
    [
        ({1: 1}, 2, [4, 4, 4], {1: 2}),  # at home, although other nodes are as good
        ({1: 1}, 4, [4, 4, 4], {1: 4}),
        ({0: 1}, 4, [2, 4, 4], {1: 4}),  # no room at home
        ({0: 2}, 6, [2, 4, 4], {1: 4, 0: 2}),  # the rest at home
        ({2: 1}, 8, [4, 4, 4], {2: 4, 0: 4}),
        ({0: 1, 1: 3}, 5, [4, 4, 4], {1: 4, 0: 1}),  # where it holds more
    ],
)
def test_a_growing_job_stays_at_home(
    own: dict[int, int], slots: int, room: list[int], found: dict[int, int]
) -> None:
    assert laid(room, demand(slots, own)) == [found]


@pytest.mark.parametrize(("other", "stays"), [(3, {0: 2, 1: 1}), (4, {1: 3})])
def test_a_job_that_stays_moves_only_for_one_that_would_not_fit(other: int, stays: dict[int, int]) -> None:
    assert laid([4, 4], demand(3, {0: 2, 1: 1}), demand(1), demand(other))[0] == stays


def test_large_pieces_are_laid_out_first() -> None:
    small, large = laid([4, 4], demand(1), demand(4))
    assert (small, large) == ({1: 1}, {0: 4})


def test_jobs_that_hold_slots_find_them_free() -> None:
    new, grows = laid([4, 2], demand(2), demand(2, {1: 1}))
    assert (new, grows) == ({0: 2}, {1: 2})


def test_equal_jobs_are_packed_in_order() -> None:
    assert laid([2, 1], demand(1), demand(1), demand(1)) == [{1: 1}, {0: 1}, {0: 1}]


def test_slots_that_a_job_would_keep_are_taken_last() -> None:
    """The new job is larger and comes first, but it leaves the slots at home to the one that grows."""
    new, grows = laid([4, 4], demand(3), demand(2, {0: 1}))
    assert (new, grows) == ({1: 3}, {0: 2})


def test_slots_that_a_job_has_left_are_free_for_others() -> None:
    grows, new = laid([2, 4, 4], demand(4, {0: 1}), demand(2))
    assert (grows, new) == ({1: 4}, {0: 2})


def test_several_whole_nodes_come_from_the_roomiest() -> None:
    assert laid([4, 5, 4], demand(8)) == [{0: 4, 1: 4}]


def test_a_whole_node_that_is_no_power_of_two_is_taken_at_home() -> None:
    assert laid([6, 6, 6], demand(12, {2: 2}, node_slots=6), node_slots=6) == [{0: 6, 2: 6}]


def test_a_job_of_one_node_fills_a_larger_node_beside_a_job_of_several() -> None:
    stays = demand(5, {0: 4, 1: 1})
    assert laid([8, 4, 4], stays, demand(4))[1] == {0: 4}


def test_jobs_of_several_nodes_share_none_and_small_jobs_fill_the_rests() -> None:
    wide, other, small = laid([4, 4, 4, 4], demand(6), demand(6), demand(2))
    assert not set(wide) & set(other)
    assert set(small) <= set(wide) | set(other)


def test_a_small_job_avoids_quiet_nodes_beside_a_job_of_several_nodes() -> None:
    """The spanning job stays on two nodes; the small one shares one of them and leaves the whole node free."""
    stays = demand(6, {0: 4, 1: 2})
    assert laid([4, 4, 4], stays, demand(2)) == [{0: 4, 1: 2}, {1: 2}]


def test_job_that_cannot_be_laid_out_takes_nothing_from_the_others() -> None:
    first, impossible, last = laid([4, 4], demand(2), demand(12), demand(4))
    assert (sum(first.values()), impossible, sum(last.values())) == (2, {}, 4)


def test_without_nodes_or_jobs_nothing_is_laid_out() -> None:
    assert laid([], demand(1)) == [{}]
    assert laid([4]) == []


@given(rngs)
@settings(max_examples=40)
def test_every_choice_within_the_rows_is_laid_out(rng: random.Random) -> None:
    cluster = random_cluster(
        rng,
        nodes=rng.randint(1, 6),
        largest=rng.choice([1, 2, 3, 4, 6, 8, 12]),
        jobs=rng.randint(1, 9),
        tidy=rng.random() < 0.5,
        alike=rng.random() < 0.5,
    )
    claims = demands_of(cluster, random_choice(rng, cluster, change=rng.choice([0.4, 1.0])))
    room = cluster.room.tolist()
    lay_out(claims, room, cluster.shapes.node_slots)
    for claim in claims:
        assert sum(claim.laid.values()) == max(claim.slots, 0)
        assert all(slots > 0 for slots in claim.laid.values())
        assert in_pieces(claim) or (claim.stays and claim.laid == claim.own)
    for node, capacity in enumerate(room):
        assert sum(claim.laid.get(node, 0) for claim in claims) <= capacity
    assert room == cluster.room.tolist(), "the argument stays as it is"


@given(
    st.lists(st.integers(0, 20), max_size=8),
    st.lists(st.integers(0, 8), max_size=5),
    st.sampled_from([1, 2, 4, 6, 8]),
)
@settings(max_examples=40)
def test_whatever_is_asked_no_node_grants_more_than_it_has(
    sizes: list[int], room: list[int], node_slots: int
) -> None:
    """Also if more was chosen than the rows admit: a job then has all of its slots or none."""
    claims = [demand(slots, node_slots=node_slots) for slots in sizes]
    lay_out(claims, room, node_slots)
    for claim in claims:
        assert sum(claim.laid.values()) in (0, claim.slots)
        assert not claim.laid or in_pieces(claim)
    for node, capacity in enumerate(room):
        assert sum(claim.laid.get(node, 0) for claim in claims) <= capacity
