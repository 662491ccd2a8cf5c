"""Topology levels: a job lies in the smallest group of nodes that holds it, and every choice is still placed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.placement.packing import lay_out
from service.domain.allocation.placement.repack import SlotDemand, demands
from tests.unit.service.domain.allocation.clusters import random_choice, random_cluster
from tests.unit.service.domain.allocation.placement.layouts import blocks, demand, demands_of, in_pieces

Path = tuple[str, ...]

rngs = st.randoms(use_true_random=False)


def paths_of(*racks: str) -> list[Path]:
    return [("", rack, rack[:1]) for rack in racks]


def random_paths(rng: random.Random, nodes: int) -> list[Path]:
    """NVLink domains in racks in zones; some labels are missing."""
    levels = [rng.choice([["", ""], ["", "x"], ["x", "y"], ["x", "y", "z"]]) for _ in range(3)]
    return [(rng.choice(levels[0]), rng.choice(levels[1]), rng.choice(levels[2])) for _ in range(nodes)]


def laid(room: list[int], paths: Sequence[Path], *claims: SlotDemand) -> list[dict[int, int]]:
    lay_out(claims, room, 4, paths)
    return [claim.laid for claim in claims]


def crossed(paths: Sequence[Path], nodes: Sequence[int]) -> int:
    """The number of the largest level at which nodes differ, counted by hand."""
    return max(
        (level + 1 for level in range(3) if len({paths[node][level] for node in nodes}) > 1), default=0
    )


def least_crossing(room: Sequence[int], paths: Sequence[Path], claim: SlotDemand) -> int:
    """The smallest level that a job has to cross, by trying every group of nodes."""
    needs = demands(claim.pieces, len(claim.pieces))
    for level in range(3):
        for group in {path[level:] for path in paths}:
            inside = [slots for slots, path in zip(room, paths, strict=True) if path[level:] == group]
            if all(blocks(inside, size) >= slots for size, slots in enumerate(needs)):
                return level
    return 3


@settings(max_examples=60)
@given(rngs)
def test_a_new_job_crosses_no_level_that_it_need_not(rng: random.Random) -> None:
    room = [rng.choice([0, 1, 2, 4, 4]) for _ in range(rng.randint(2, 12))]
    paths = random_paths(rng, len(room))
    claim = demand(rng.choice([2, 3, 4, 5, 6, 8, 12, 16]), unit=rng.choice([1, 2, 4]))
    found = laid(room, paths, claim)[0]
    if found:
        assert crossed(paths, list(found)) <= least_crossing(room, paths, claim)


@settings(max_examples=40)
@given(rngs)
def test_every_choice_within_the_rows_is_placed_whatever_the_labels(rng: random.Random) -> None:
    cluster = random_cluster(rng, nodes=rng.randint(1, 10), largest=4, jobs=8)
    chosen = random_choice(rng, cluster, change=0.6)
    claims, room = demands_of(cluster, chosen), cluster.room.tolist()
    lay_out(claims, room, cluster.shapes.node_slots, random_paths(rng, len(room)))
    taken = [0] * len(room)
    for claim in claims:
        assert sum(claim.laid.values()) == claim.slots
        assert claim.stays or in_pieces(claim)
        for node, slots in claim.laid.items():
            taken[node] += slots
    assert all(used <= has for used, has in zip(taken, room, strict=True))


def test_the_largest_jobs_choose_first() -> None:
    """Both fit if the job of three nodes gets the rack of three."""
    paths = paths_of("a1", "a1", "a1", "a2", "a2")
    small, large = demand(8), demand(12)
    found = laid([4] * 5, paths, small, large)
    assert found == [{3: 4, 4: 4}, {0: 4, 1: 4, 2: 4}]


def test_without_a_group_that_holds_it_a_job_lies_in_as_few_as_possible() -> None:
    paths = paths_of("a1", "a2", "b1", "b1", "b1")
    assert laid([4] * 5, paths, demand(16))[0].keys() == {0, 2, 3, 4}


def test_the_fullest_group_is_taken() -> None:
    paths = paths_of("a1", "a1", "a1", "a2", "a2")
    assert laid([4] * 5, paths, demand(8))[0].keys() == {3, 4}


@pytest.mark.parametrize(
    ("room", "nodes"),
    [([4, 4, 4, 4], {0, 1}), ([4, 0, 4, 4], {2, 3})],
    ids=["its own rack first", "another rack if its own has no room"],
)
def test_a_growing_job_stays_together(room: list[int], nodes: set[int]) -> None:
    paths = paths_of("a1", "a1", "a2", "a2")
    assert laid(room, paths, demand(8, {0: 4}))[0].keys() == nodes


def test_a_job_that_keeps_its_size_stays_across_racks() -> None:
    paths = paths_of("a1", "a1", "a2", "a2")
    assert laid([4] * 4, paths, demand(8, {0: 4, 2: 4})) == [{0: 4, 2: 4}]


def test_free_slots_in_too_small_pieces_do_not_hide_a_group() -> None:
    """The zone a holds two nodes: its rack a1 has more free slots, but no whole node."""
    paths = paths_of("a1", "a1", "a1", "a1", "a2", "a3", "b1")
    assert laid([3, 3, 3, 3, 4, 4, 4], paths, demand(8))[0].keys() == {4, 5}
