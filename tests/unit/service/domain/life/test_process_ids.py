"""Process ids of ranks: stored with the members of each generation that the processes belong to."""

from __future__ import annotations

from headway.contract.views.ranks import RankPart
from service.domain.jobs.membership import born, living
from service.domain.life.effects import StoreMembers
from service.domain.life.life import Life
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import JOB, THREE, TWO, life_of, ordered, prepared, starting


def pids(life: Life, generation: int) -> dict[tuple[int, int], int | None]:
    return {born(one): one.pid for one in life.generations[generation].members}


def parts(cluster: Cluster) -> dict[tuple[int, int], RankPart]:
    life = life_of(cluster)
    found = living(life.crew, life.loaded_footprint.held, life.loaded_footprint.exits)
    return {born(one): part for one, part in found}


def test_process_ids_of_a_node_leave_other_nodes_alone() -> None:
    life = life_of(starting(THREE)).with_pids("n0", 1, {0: 50, 1: 51, 2: 52})
    here = {born(one) for one in life.generations[1].members if one.node_id == "n0"}
    assert pids(life, 1) == {(1, rank): 50 + rank if (1, rank) in here else None for rank in range(3)}
    assert life.effects == (StoreMembers(1, life.generations[1].members),)


def test_process_ids_reported_twice_have_no_effect() -> None:
    life = life_of(starting(TWO)).with_pids("n0", 1, {0: 50}).settled()
    assert life.with_pids("n0", 1, {0: 50}) is life


def test_process_ids_of_newcomers_are_kept_while_the_job_runs() -> None:
    cluster = prepared(THREE, TWO)
    (newcomer,) = [one for one in life_of(cluster).crew.coming if one.born_generation == 2]
    life = life_of(cluster).with_pids(newcomer.node_id, 2, {newcomer.born_rank: 77})
    assert pids(life, 2)[born(newcomer)] == 77
    assert set(pids(life, 1).values()) == {None}


def test_process_ids_of_survivors_reach_the_next_generation() -> None:
    cluster = starting(TWO)
    cluster.store(life_of(cluster).with_pids("n0", 1, {0: 50, 1: 51}))
    cluster.settle()
    cluster.take_first_step(JOB)
    cluster.settle()
    cluster.change(JOB, THREE)
    assert [one.pid for one in life_of(cluster).crew.coming] == [50, 51, None]


def test_a_change_shows_newcomers_beside_the_members_that_train() -> None:
    joining = parts(prepared(THREE, TWO))
    assert sorted(joining.values()) == [RankPart.JOINS, RankPart.TRAINS, RankPart.TRAINS]
    assert [who for who, part in joining.items() if part is RankPart.JOINS] == [(2, 2)]


def test_a_member_that_was_ordered_to_leave_is_shown_as_leaving() -> None:
    cluster = ordered({"n0": (0,)}, TWO)
    assert parts(cluster) == {(1, 0): RankPart.TRAINS, (1, 1): RankPart.LEAVES}


def test_members_without_slots_or_with_an_end_are_not_living() -> None:
    life = life_of(ordered({"n0": (0,)}, TWO))
    held = life.loaded_footprint.held
    assert living(life.crew, {}, ()) == ()
    assert [born(one) for one, _ in living(life.crew, held, {(1, 1)})] == [(1, 0)]
