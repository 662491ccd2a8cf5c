"""Repacking: as few and as small jobs as possible leave their slots, and those that left in vain return."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.placement.repack import PartialPlacement, SlotDemand, demands
from tests.unit.service.domain.allocation.clusters import random_choice, random_cluster
from tests.unit.service.domain.allocation.placement.layouts import demand, demands_of, in_pieces, slack_of

rngs = st.randoms(use_true_random=False)


@pytest.mark.parametrize(
    ("pieces", "levels", "slots"),
    [
        ((), 1, (0,)),
        ((1,), 1, (1,)),
        ((1, 1, 1), 3, (7, 6, 4)),
        ((0, 0, 2), 3, (8, 8, 8)),
        ((3, 1), 2, (5, 2)),
        ((1, 1), 4, (3, 2, 0, 0)),
        ((1, 1, 1), 1, (7,)),
    ],
)
def test_the_slots_in_pieces_of_at_least_each_power_of_two(
    pieces: tuple[int, ...], levels: int, slots: tuple[int, ...]
) -> None:
    assert demands(pieces, levels) == slots


def made(room: list[int], *claims: SlotDemand, top: int = 2) -> PartialPlacement:
    partial = PartialPlacement(claims, room, top)
    partial.make_room()
    assert partial.slack == slack_of(claims, partial.room, top + 1)
    return partial


def test_jobs_that_stay_hold_their_slots_and_others_are_missing() -> None:
    stays, new = demand(2, {0: 2}), demand(4)
    partial = PartialPlacement([stays, new], [4, 4], 2)
    assert (stays.laid, new.laid) == ({0: 2}, {})
    assert partial.room == [2, 4]
    assert partial.slack == [2, 2, 0], "6 free slots less 4 missing; one whole node, which is needed"


@pytest.mark.parametrize(
    ("slots", "own", "kept"),
    [
        (4, {0: 2, 1: 4}, {1: 4}),  # one node that suffices exactly
        (5, {0: 2, 1: 4}, {1: 4, 0: 1}),  # the largest, and the rest
        (1, {0: 2, 1: 4}, {0: 1}),  # the smallest node that suffices
        (3, {0: 2, 1: 4}, {1: 3}),
        (3, {0: 4, 1: 4}, {0: 3}),  # of equal nodes the first
        (6, {0: 1, 1: 3, 2: 4}, {2: 4, 1: 2}),
        (1, {0: 1, 1: 1}, {0: 1}),
    ],
)
def test_a_shrinking_job_keeps_slots_on_the_fewest_nodes(
    slots: int, own: dict[int, int], kept: dict[int, int]
) -> None:
    claim = demand(slots, own, unit=1)
    PartialPlacement([claim], [4, 4, 4], 2)
    assert claim.laid == kept


@pytest.mark.parametrize(
    ("slots", "own"),
    [
        (0, {0: 2}),  # it leaves
        (3, {0: 2}),  # it grows
        (2, {}),  # it is new
        (-1, {0: 2}),
    ],
)
def test_jobs_that_do_not_shrink_or_stay_are_laid_out_anew(slots: int, own: dict[int, int]) -> None:
    claim = demand(slots, own)
    PartialPlacement([claim], [4, 4], 2)
    assert claim.laid == {}


def test_a_shrinking_job_keeps_nothing_that_is_not_in_its_pieces() -> None:
    own = {0: 2, 1: 2, 2: 2}
    together, in_twos = demand(4, own, unit=4), demand(4, own, unit=2)
    PartialPlacement([together], [4, 4, 4], 2)
    PartialPlacement([in_twos], [4, 4, 4], 2)
    assert together.laid == {}, "it was promised four on one node"
    assert in_twos.laid == {2: 2, 0: 2}


def test_repack_where_all_fit_moves_no_job() -> None:
    claims = [demand(1, {0: 1}), demand(1, {1: 1}), demand(2), demand(2)]
    partial = made([4, 4], *claims)
    assert [claim.laid for claim in claims] == [{0: 1}, {1: 1}, {}, {}]
    assert partial.room == [3, 3]


def test_job_that_needs_a_whole_node_moves_one_job() -> None:
    claims = [demand(1, {0: 1}), demand(1, {1: 1}), demand(4)]
    partial = made([4, 4], *claims)
    assert [claim.laid for claim in claims] == [{}, {1: 1}, {}]
    assert partial.room == [4, 3]


def test_the_fewest_jobs_leave() -> None:
    two = [demand(1, {0: 1}), demand(1, {0: 1})]
    one = demand(3, {1: 3})
    made([4, 4], *two, one, demand(4))
    assert [claim.laid for claim in (*two, one)] == [{0: 1}, {0: 1}, {}]


def test_equally_many_movers_are_the_smallest_jobs() -> None:
    small, large = demand(1, {1: 1}), demand(2, {0: 2})
    made([4, 4], large, small, demand(4))
    assert (large.laid, small.laid) == ({0: 2}, {})


def test_a_job_that_shrinks_anyway_leaves_before_two_that_stay() -> None:
    stays, shrinks = demand(1, {0: 1}), demand(2, {1: 4})
    made([4, 4], stays, shrinks, demand(4))
    assert stays.laid == {0: 1}, "a job that changes in any case may lie anywhere"
    assert shrinks.laid == {}


def test_a_job_that_left_in_vain_returns() -> None:
    """The job of 2 leaves for the one of 4. Then a job of 3 has to leave too, and its node has space for both."""
    two, first, other = demand(2, {0: 2}), demand(3, {1: 3}), demand(3, {2: 3})
    partial = made([4, 4, 4], two, first, other, demand(4, {0: 1}))
    assert [claim.laid for claim in (two, first, other)] == [{0: 2}, {}, {2: 3}]
    assert partial.room == [2, 4, 1]


def test_several_movers_leave_largest_first() -> None:
    """A block of 4 among jobs of 3, 3, 1 and 1 slots: one of each suffices, rather than both small ones and another."""
    claims = [demand(slots, {0: slots}, node_slots=8, unit=2) for slots in (3, 3, 1, 1)]
    made([8, 2, 2], *claims, demand(4, node_slots=8, unit=4), top=3)
    assert sorted(claim.slots for claim in claims if not claim.laid) == [1, 3]


def test_equal_movers_that_suffice_are_the_first() -> None:
    claims = [demand(slots, {0: slots}, node_slots=8, unit=2) for slots in (3, 3, 1)]
    made([8, 2, 2], *claims, demand(4, node_slots=8, unit=4), top=3)
    assert [claim.laid for claim in claims] == [{}, {0: 3}, {0: 1}]


def test_blocks_within_the_slots_of_one_job_are_no_gain() -> None:
    """A job of a whole node needs such a node elsewhere: it does not leave for another one."""
    claims = [demand(4, {0: 4}), demand(1, {1: 1}), demand(4)]
    made([4, 4], *claims)
    assert [claim.laid for claim in claims[:2]] == [{0: 4}, {}]


def test_a_job_leaves_all_of_its_nodes() -> None:
    wide = demand(5, {0: 4, 1: 1}, unit=4)
    partial = made([4, 4, 2], wide, demand(4))
    assert wide.laid == {}
    assert partial.room == [4, 4, 2]


def test_a_job_whose_slots_are_too_fine_leaves_when_nothing_else_helps() -> None:
    """Its two slots lie apart, although it needs two in any case: together with the other job they would fit."""
    scattered = demand(2, {0: 1, 1: 1}, node_slots=2, unit=1)
    claims = [scattered, demand(2, node_slots=2)]
    made([2, 2], *claims, top=1)
    assert scattered.laid == {}


def test_more_than_there_is_ends_without_an_error() -> None:
    claims = [demand(2, {0: 2}), demand(4), demand(8)]
    partial = made([4, 4], *claims)
    assert min(partial.slack) < 0
    assert claims[0].laid in ({}, {0: 2})


@given(rngs)
@settings(max_examples=40)
def test_all_fit_afterwards_if_the_choice_keeps_the_rows(rng: random.Random) -> None:
    cluster = random_cluster(
        rng,
        nodes=rng.randint(1, 5),
        largest=rng.choice([1, 2, 4, 6, 8]),
        jobs=rng.randint(1, 8),
        tidy=rng.random() < 0.5,
        alike=rng.random() < 0.5,
    )
    chosen = random_choice(rng, cluster, change=0.7)
    claims, top = demands_of(cluster, chosen), cluster.shapes.node_slots.bit_length() - 1
    before = PartialPlacement(claims, cluster.room.tolist(), top)
    stayed = [dict(claim.laid) for claim in claims]
    fits = min(before.slack) >= 0
    partial = PartialPlacement(claims, cluster.room.tolist(), top)
    partial.make_room()
    assert min(partial.slack) >= 0
    assert min(partial.room) >= 0
    assert partial.slack == slack_of(claims, partial.room, top + 1)
    used = [sum(claim.laid.get(node, 0) for claim in claims) for node in range(len(partial.room))]
    assert [left + taken for left, taken in zip(partial.room, used, strict=True)] == cluster.room.tolist()
    for claim, laid in zip(claims, stayed, strict=True):
        assert claim.laid in (laid, {}), "a job keeps all that it had at first, or leaves"
        assert not fits or claim.laid == laid
        if claim.laid and not claim.stays:
            assert in_pieces(claim)
