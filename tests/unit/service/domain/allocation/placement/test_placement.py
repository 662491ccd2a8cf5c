"""Every choice that keeps to the rows is placed, and few jobs move for it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.configurations.shapes import pieces_of
from service.domain.allocation.placement.placement import (
    Placement,
    PlacementRequest,
    PlacementStep,
    PoolSlots,
    describe_move,
    place_all,
)
from service.domain.allocation.placement.repack import demands
from service.domain.jobs.job import Allocation, size_of
from tests.unit.service.domain.allocation.clusters import KIND, Cluster, random_choice, random_cluster

rngs = st.randoms(use_true_random=False)


def keys(*parts: Allocation) -> list[tuple[str, int]]:
    return [(node, slot) for part in parts for node, slots in part.items() for slot in slots]


def some_cluster(rng: random.Random) -> Cluster:
    return random_cluster(
        rng,
        nodes=rng.randint(1, 6),
        largest=rng.choice([1, 2, 3, 4, 6, 8, 12, 16]),
        jobs=rng.randint(1, 10),
        tidy=rng.random() < 0.4,
        alike=rng.random() < 0.5,
    )


def lies_in_pieces(counts: list[int], want: PlacementRequest, node_slots: int) -> bool:
    pieces = pieces_of(want.slots, node_slots, want.unit)
    return all(
        sum(count >> level << level for count in counts) >= slots
        for level, slots in enumerate(demands(pieces, len(pieces)))
    )


@given(rngs)
@settings(max_examples=60)
def test_whatever_keeps_to_the_rows_is_placed(rng: random.Random) -> None:
    cluster = some_cluster(rng)
    wants = cluster.wants(random_choice(rng, cluster, change=rng.choice([0.3, 0.6, 1.0])))
    placements = place_all(wants, {KIND: cluster.pool})
    given_out = [key for placement in placements.values() for key in keys(placement.allocation)]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(keys(cluster.free, *cluster.held))
    assert set(placements) == {want.job_id for want in wants if want.slots}
    for want in wants:
        if want.slots:
            allocation = placements[want.job_id].allocation
            assert size_of(allocation) == want.slots
            assert all(list(slots) == sorted(slots) for slots in allocation.values())
            counts = [len(slots) for slots in allocation.values()]
            if placements[want.job_id].step is not PlacementStep.STAY:
                assert lies_in_pieces(counts, want, cluster.shapes.node_slots)


@given(rngs)
@settings(max_examples=40)
def test_steps_tell_whose_slots_are_missing(rng: random.Random) -> None:
    cluster = some_cluster(rng)
    wants = cluster.wants(random_choice(rng, cluster, change=0.7))
    placements = place_all(wants, {KIND: cluster.pool})
    free, held = set(keys(cluster.free)), {want.job_id: set(keys(want.held)) for want in wants}
    for job, placement in placements.items():
        mine = set(keys(placement.allocation))
        holders = {other for other, slots in held.items() if other != job and slots & mine}
        assert set(placement.waits_for) == holders
        assert (placement.step is PlacementStep.STAY) == (mine == held[job])
        assert (placement.step in {PlacementStep.WAIT, PlacementStep.YIELD}) == bool(holders)
        assert bool(holders) or mine <= free | held[job]
        assert placement.makes_room_for == "" or held[placement.makes_room_for] is not held[job]
        if placement.step is PlacementStep.YIELD:
            assert held[job]


@given(rngs)
@settings(max_examples=40)
def test_everybody_gets_there_in_the_end(rng: random.Random) -> None:
    """Jobs that go, leave or give way free their slots, until all the others can go: nobody waits for ever."""
    cluster = some_cluster(rng)
    wants = cluster.wants(random_choice(rng, cluster, change=1.0))
    placements = place_all(wants, {KIND: cluster.pool})
    waiting = {job for job, one in placements.items() if one.step is PlacementStep.WAIT}
    while waiting:
        able = {job for job in waiting if not waiting & set(placements[job].waits_for)}
        assert able
        waiting -= able


@given(rngs)
@settings(max_examples=40)
def test_placement_without_changes_moves_no_job(rng: random.Random) -> None:
    cluster = some_cluster(rng)
    placements = place_all(cluster.wants(cluster.current), {KIND: cluster.pool})
    assert {one.step for one in placements.values()} <= {PlacementStep.STAY}


def layouts(slots: int, room: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(room) == 1:
        if slots <= room[0]:
            yield (slots,)
        return
    for here in range(min(slots, room[0]) + 1):
        yield from ((here, *rest) for rest in layouts(slots - here, room[1:]))


def fewest_moves(cluster: Cluster, wants: list[PlacementRequest]) -> int:
    """Brute force over all layouts: how many jobs that keep their size must move."""
    best = len(wants) + 1

    def search(at: int, room: tuple[int, ...], moves: int) -> None:
        nonlocal best
        if moves >= best:
            return
        if at == len(wants):
            best = moves
            return
        want = wants[at]
        own = tuple(len(want.held.get(str(node), ())) for node in range(len(room)))
        keeps = sum(own) == want.slots
        ways = [own] if keeps else []
        ways += [
            way
            for way in layouts(want.slots, room)
            if way != own and lies_in_pieces(list(way), want, cluster.shapes.node_slots)
        ]
        for way in ways:
            if all(count <= left for count, left in zip(way, room, strict=True)):
                after = tuple(left - count for count, left in zip(way, room, strict=True))
                search(at + 1, after, moves + (keeps and way != own))

    search(0, tuple(int(left) for left in cluster.room), 0)
    return best


def test_as_few_jobs_move_as_possible() -> None:
    """Against brute force on small clusters: nobody moves without need, and hardly ever one more than must."""
    needed = moved = 0
    for seed in range(500):
        rng = random.Random(seed)
        largest = rng.choice([4, 6, 8])
        cluster = random_cluster(
            rng, nodes=rng.randint(2, 3), largest=largest, jobs=rng.randint(2, 5), tidy=True, alike=True
        )
        wants = cluster.wants(random_choice(rng, cluster, change=0.4))
        steps = place_all(wants, {KIND: cluster.pool})
        moves = sum(
            size_of(want.held) == want.slots > 0 and steps[want.job_id].step is not PlacementStep.STAY
            for want in wants
        )
        if moves:
            fewest = fewest_moves(cluster, wants)
            assert fewest > 0
            assert moves <= fewest + 1
            needed += fewest
            moved += moves
    assert needed >= 10
    assert moved <= 1.05 * needed


@given(rngs, st.sampled_from([2, 4, 8]))
@settings(max_examples=40)
def test_jobs_of_several_nodes_share_none(rng: random.Random, node_slots: int) -> None:
    """On like nodes, in whole nodes: two of them never meet, whatever small jobs do."""
    nodes = rng.randint(2, 8)
    free = {f"n{node}": tuple(range(node_slots)) for node in range(nodes)}
    wants, left = [], nodes * node_slots
    for job in range(12):
        slots = rng.choice([1, 2, node_slots, 2 * node_slots, 3 * node_slots])
        if slots <= left:
            left -= slots
            wants.append(PlacementRequest(job_id=f"j{job}", kind=KIND, slots=slots, unit=node_slots))
    placements = place_all(wants, {KIND: PoolSlots(free=free, node_slots=node_slots)})
    wide = [one.allocation for one in placements.values() if size_of(one.allocation) > node_slots]
    used = [node for allocation in wide for node in allocation]
    assert len(used) == len(set(used))
    assert all(len(allocation) * node_slots == size_of(allocation) for allocation in wide)


counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8), min_size=1)


def fewest(slots: int, counts: list[int]) -> int:
    """Return the least number of these counts that sum to at least `slots`."""
    return next(n for n in range(len(counts) + 1) if sum(sorted(counts, reverse=True)[:n]) >= slots)


@given(counts, st.data())
@settings(max_examples=40)
def test_where_any_slots_will_do_a_job_spans_as_few_nodes_as_possible(
    room: dict[str, int], data: st.DataObject
) -> None:
    slots = data.draw(st.integers(1, sum(room.values())))
    free = {node: tuple(range(count)) for node, count in room.items()}
    new = place_all([want("x", slots, unit=1)], one_pool(8, **free))["x"]
    assert len(new.allocation) == fewest(slots, list(room.values()))
    smaller = place_all([want("x", slots, unit=1, **free)], one_pool(8, other=tuple(range(8))))["x"]
    assert len(smaller.allocation) == fewest(slots, list(room.values()))
    assert set(smaller.allocation) <= set(room)


def one_pool(node_slots: int = 4, **free: tuple[int, ...]) -> dict[str, PoolSlots]:
    return {KIND: PoolSlots(free=free, node_slots=node_slots)}


def want(job: str, slots: int, *, unit: int = 4, **held: tuple[int, ...]) -> PlacementRequest:
    return PlacementRequest(
        job_id=job, kind=KIND, slots=slots, unit=unit, held_kind=KIND if held else "", held=held
    )


def test_rests_of_two_wide_jobs_lie_apart() -> None:
    pool = one_pool(**dict.fromkeys("abcdef", (0, 1, 2, 3)))
    placements = place_all([want("x", 6), want("y", 6), want("z", 1)], pool)
    assert not set(placements["x"].allocation) & set(placements["y"].allocation)
    assert [len(placements[job].allocation) for job in "xyz"] == [2, 2, 1]


def test_a_small_job_makes_room_for_one_that_needs_a_whole_node() -> None:
    wants = [want("small", 1, a=(0,)), want("other", 1, b=(0,)), want("big", 4)]
    placements = place_all(wants, one_pool(a=(1, 2, 3), b=(1, 2, 3)))
    assert placements["big"] == Placement(
        allocation={"a": (0, 1, 2, 3)}, step=PlacementStep.WAIT, waits_for=("small",)
    )
    assert placements["small"] == Placement(
        allocation={"b": (1,)}, step=PlacementStep.GO, makes_room_for="big"
    )
    assert placements["other"].step is PlacementStep.STAY
    sentence = describe_move(wants[0].held, {"b": (1,)}, heir="big", node_names={"a": "n1", "b": "n2"})
    assert sentence == "moves from n1 to n2 to make room for big, which needs the slots together"
    assert (
        describe_move({"a": (0,)}, {"b": (1,)}, heir="", node_names={})
        == "moves from a to b so that all jobs fit"
    )


def test_growing_happens_at_home_and_shrinking_leaves_nodes() -> None:
    pool = one_pool(a=(1, 3), b=(0, 1, 2, 3))
    assert place_all([want("x", 2, a=(0,)), want("y", 1, a=(2,))], pool)["x"].allocation == {"a": (0, 1)}
    wide = place_all([want("x", 4, a=(0, 2), b=(0, 1, 2, 3))], one_pool(a=(1, 3)))["x"]
    assert wide.allocation == {"b": (0, 1, 2, 3)}
    assert wide.step is PlacementStep.GO


def test_odd_sizes_lie_on_one_node_where_that_harms_nobody() -> None:
    placements = place_all([want("x", 3), want("y", 3)], one_pool(a=(0, 1, 2, 3), b=(0, 1, 2, 3)))
    assert [len(one.allocation) for one in placements.values()] == [1, 1]
    squeezed = place_all([want("x", 3), want("y", 3), want("z", 2)], one_pool(a=(0, 1, 2, 3), b=(0, 1, 2, 3)))
    assert sum(size_of(one.allocation) for one in squeezed.values()) == 8
    assert len(squeezed["z"].allocation) == 1


def test_two_jobs_that_change_kinds_do_not_wait_for_each_other_for_ever() -> None:
    wants = [
        PlacementRequest(job_id="x", kind="h100", slots=2, unit=2, held_kind="a100", held={"a": (0, 1)}),
        PlacementRequest(job_id="y", kind="a100", slots=2, unit=2, held_kind="h100", held={"b": (0, 1)}),
    ]
    pools = {kind: PoolSlots(free={}, node_slots=2) for kind in ("a100", "h100")}
    placements = place_all(wants, pools)
    assert placements["x"] == Placement(allocation={"b": (0, 1)}, step=PlacementStep.WAIT, waits_for=("y",))
    assert placements["y"] == Placement(allocation={"a": (0, 1)}, step=PlacementStep.YIELD, waits_for=("x",))


def test_slots_of_a_leaving_job_are_free_only_later() -> None:
    leaving = PlacementRequest(job_id="old", held_kind=KIND, held={"a": (0, 1)})
    placements = place_all([leaving, want("new", 4), want("tiny", 2)], one_pool(a=(2, 3), b=(0, 1)))
    assert placements["new"] == Placement(
        allocation={"a": (0, 1, 2, 3)}, step=PlacementStep.WAIT, waits_for=("old",)
    )
    assert placements["tiny"].step is PlacementStep.GO
    assert "old" not in placements


def test_equal_nodes_give_the_one_that_is_free_now() -> None:
    leaving = PlacementRequest(job_id="old", held_kind=KIND, held={"a": (0, 1, 2, 3)})
    new = place_all([leaving, want("new", 4)], one_pool(b=(0, 1, 2, 3)))["new"]
    assert new == Placement(allocation={"b": (0, 1, 2, 3)}, step=PlacementStep.GO)


def test_the_free_slots_of_a_node_go_to_those_who_can_start_with_them() -> None:
    leaving = PlacementRequest(job_id="old", held_kind=KIND, held={"a": (0, 1, 2, 3, 4, 5)})
    placements = place_all([leaving, want("big", 4), want("small", 2)], one_pool(8, a=(6, 7)))
    assert [placements[job].step for job in ("big", "small")] == [PlacementStep.WAIT, PlacementStep.GO]


def test_private_slots_are_kept_and_go_to_no_other_job() -> None:
    private = {"held_kind": KIND, "private": {"c": (0, 1)}}
    grows = PlacementRequest(job_id="x", kind=KIND, slots=4, unit=4, **private)
    assert place_all([grows], one_pool(a=(0, 1)))["x"].allocation == {"a": (0, 1), "c": (0, 1)}
    stays = PlacementRequest(job_id="x", kind=KIND, slots=2, unit=4, **private)
    assert place_all([stays], one_pool())["x"] == Placement(allocation={"c": (0, 1)}, step=PlacementStep.STAY)
    leaves = PlacementRequest(job_id="x", **private)
    assert place_all([leaves, want("y", 2)], one_pool())["y"].allocation == {}


def test_more_than_the_rows_let_through_is_placed_as_far_as_it_goes() -> None:
    """No exception, and nobody is promised what there is not."""
    placements = place_all([want("x", 4), want("y", 4), want("z", 100)], one_pool(a=(0, 1, 2, 3), b=()))
    assert sorted(size_of(one.allocation) for one in placements.values()) == [0, 0, 4]
    assert {one.step for one in placements.values() if not one.allocation} == {PlacementStep.WAIT}
    assert size_of(place_all([want("x", 2, unit=64)], one_pool(a=(0, 1)))["x"].allocation) == 2
    assert place_all([want("x", 1)], {})["x"].allocation == {}
    assert place_all([want("x", 1, a=(0,))], {})["x"].step is PlacementStep.WAIT
    assert place_all([want("x", -3), want("y", 0)], one_pool(a=(0,))) == {}
    assert place_all([], one_pool()) == {}


@given(rngs)
@settings(max_examples=40)
def test_the_same_input_gives_the_same_places(rng: random.Random) -> None:
    cluster = some_cluster(rng)
    wants = cluster.wants(random_choice(rng, cluster, change=0.7))
    turned = PoolSlots(free=dict(reversed(cluster.free.items())), node_slots=cluster.shapes.node_slots)
    assert place_all(wants, {KIND: cluster.pool}) == place_all(wants, {KIND: turned})


def test_a_large_cluster_is_filled_to_the_last_slot() -> None:
    rng = random.Random(1)
    free = {f"n{node:03}": tuple(range(8)) for node in range(300)}
    wants, left = [], 2400
    while left:
        slots = min(left, rng.choice([1, 2, 3, 4, 5, 8, 16, 64]))
        left -= slots
        wants.append(want(f"j{len(wants)}", slots, unit=8))
    placements = place_all(wants, {KIND: PoolSlots(free=free, node_slots=8)})
    assert all(size_of(placements[one.job_id].allocation) == one.slots for one in wants)
    spans = np.array([len(placements[one.job_id].allocation) for one in wants])
    assert spans.sum() <= 1.05 * sum(-(-one.slots // 8) for one in wants)
