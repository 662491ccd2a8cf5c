"""Members of a generation follow from those before it, and their ends have meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import Member
from headway.contract.values.meshes import MeshShape
from service.domain.jobs.failures import Ending, RankExit, judge
from service.domain.jobs.job import Allocation, size_of
from service.domain.jobs.membership import (
    Born,
    Crew,
    Members,
    born,
    choose_store,
    exits_to_judge,
    first_members,
    has_finished,
    newcomer_ranks,
    next_members,
    nodes_of,
    slots_of,
    without,
)
from service.domain.jobs.ranks import layout

NODES = ("n1", "n2", "n3")

allocations = st.dictionaries(
    st.sampled_from(NODES),
    st.sets(st.integers(0, 3), min_size=1).map(lambda slots: tuple(sorted(slots))),
    min_size=1,
)


def started(allocation: Allocation, generation: int = 1) -> Members:
    return first_members(layout(allocation), generation)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Members, int]:
    """Members after some changes, and the newest number."""
    members = started(draw(allocations))
    generation = 1
    for generation in range(2, draw(st.integers(2, 6))):
        members = next_members(members, draw(allocations), generation)
    return members, generation


@settings(max_examples=30)
@given(allocations)
def test_a_start_has_a_member_for_each_slot(allocation: Allocation) -> None:
    members = started(allocation, 7)
    assert [one.rank for one in members] == list(range(size_of(allocation)))
    assert slots_of(members) == dict(sorted(allocation.items()))
    assert {born(one) for one in members} == {(7, one.rank) for one in members}


@settings(max_examples=30)
@given(histories(), allocations)
def test_the_next_generation_has_exactly_its_slots_survivors_first(
    history: tuple[Members, int], target: Allocation
) -> None:
    members, generation = history
    following = next_members(members, target, generation + 1)
    assert [one.rank for one in following] == list(range(size_of(target)))
    assert slots_of(following) == dict(sorted(target.items()))
    assert len({born(one) for one in following}) == len(following)
    stay = [one for one in members if one.slot in target.get(one.node_id, ())]
    assert [born(one) for one in following[: len(stay)]] == [born(one) for one in stay], "in their order"
    assert all(born(one) == (generation + 1, one.rank) for one in following[len(stay) :])
    homes = {one.node_id: one for one in stay}
    assert all(one.node_id in homes for one in following if one.node_id in homes)


def test_newcomers_of_a_sharded_job_come_between_the_survivors() -> None:
    members = started({"n1": (0, 1)})
    following = next_members(
        members, {"n1": (0, 1), "n2": (0,)}, 2, meshes=(MeshShape(fsdp=2), MeshShape(fsdp=3))
    )
    assert [born(one) for one in following] == [(1, 0), (2, 1), (1, 1)]
    assert [one.rank for one in following] == [0, 1, 2]


@settings(max_examples=30)
@given(histories(), allocations)
def test_nodes_start_the_newcomers_and_nobody_else(history: tuple[Members, int], target: Allocation) -> None:
    members, generation = history
    following = next_members(members, target, generation + 1)
    parts = newcomer_ranks(following, generation + 1)
    ranks = {(part.node_id, one.slot): one.rank for part in parts for one in part.ranks}
    newcomers = [one for one in following if one.born_generation == generation + 1]
    assert ranks == {(one.node_id, one.slot): one.rank for one in newcomers}
    for part in parts:
        assert nodes_of(following)[part.node_rank] == part.node_id
        assert [one.local_rank for one in part.ranks] == list(range(len(part.ranks)))


@settings(max_examples=30)
@given(histories(), st.data())
def test_what_is_left_keeps_its_order(history: tuple[Members, int], data: st.DataObject) -> None:
    members, _ = history
    everybody = [born(one) for one in members]
    ended = data.draw(st.sets(st.sampled_from(everybody)))
    left = without(members, ended)
    assert [born(one) for one in left] == [who for who in everybody if who not in ended]
    assert [one.rank for one in left] == list(range(len(left)))


@settings(max_examples=30)
@given(histories(), st.data())
def test_a_store_belongs_to_a_member(history: tuple[Members, int], data: st.DataObject) -> None:
    members, _ = history
    cohorts = sorted({(one.node_id, one.born_generation) for one in members})
    known = data.draw(st.sets(st.sampled_from(cohorts)))
    ports = {cohort: 20000 + number for number, cohort in enumerate(sorted(known))}
    store = choose_store(members, {**ports, ("gone", 1): 1})
    if not known:
        assert store is None
        return
    assert store is not None
    assert ports[store.node_id, store.generation] == store.port
    first = (members[0].node_id, members[0].born_generation)
    assert first not in known or (store.node_id, store.generation) == first, "rank 0's, if it has one"


def crew(
    running: Members, coming: Members = (), *, ordered: bool = False, generation: int = 1, following: int = 2
) -> Crew:
    return Crew(
        generation=generation,
        running=running,
        next_generation=following if coming else None,
        coming=coming,
        ordered=ordered,
    )


TWO = started({"n1": (0, 1)})
GROWN = next_members(TWO, {"n1": (0, 1, 2)}, 2)
SHRUNK = next_members(TWO, {"n1": (1,)}, 2)
MOVED = next_members(TWO, {"n2": (0, 1)}, 2)


@pytest.mark.parametrize(
    ("crew_", "who", "generation", "rank", "allowed"),
    [
        (crew(TWO), (1, 1), 1, 1, True),
        (crew(TWO), (1, 1), 1, 0, False),
        (crew(TWO), (1, 1), 0, 1, False),
        (crew(TWO), (1, 2), 1, 2, False),
        (crew(TWO, GROWN), (2, 2), 2, 2, True),
        (crew(TWO, GROWN), (2, 2), 1, 2, False),
        (crew(TWO, GROWN), (1, 0), 2, 0, False),
        (crew(TWO, GROWN, ordered=True), (1, 0), 2, 0, True),
        (crew(TWO, GROWN, ordered=True), (1, 0), 1, 0, True),
        (crew(TWO, SHRUNK, ordered=True), (1, 1), 2, 0, True),
        (crew(TWO, SHRUNK, ordered=True), (1, 1), 2, 1, False),
        (crew(TWO, SHRUNK, ordered=True), (1, 0), 2, 0, False),
        (crew(TWO, SHRUNK, ordered=True), (1, 0), 1, 0, True),
    ],
)
def test_who_may_say_what(crew_: Crew, who: Born, generation: int, rank: int, *, allowed: bool) -> None:
    assert crew_.may_report(who, generation, rank) is allowed


def test_who_goes_and_who_comes() -> None:
    assert not crew(TWO, SHRUNK).is_leaver((1, 0)), "not before the order"
    assert crew(TWO, SHRUNK, ordered=True).is_leaver((1, 0))
    assert not crew(TWO, SHRUNK, ordered=True).is_leaver((1, 1))
    assert crew(TWO, GROWN).is_newcomer((2, 2))
    assert not crew(TWO, GROWN).is_newcomer((1, 1))
    assert crew(TWO, GROWN).lasting() == TWO
    assert crew(TWO, GROWN, ordered=True).lasting() == GROWN
    assert crew(TWO, MOVED).on_node("n2") == ((2, 0), (2, 1))
    assert crew(TWO, GROWN).on_node("n1") == ((1, 0), (1, 1), (2, 2))
    assert crew(TWO).member((2, 2)) is None


def ended(rank: int, **how: Any) -> RankExit:
    fields: dict[str, Any] = {
        "exit_code": None,
        "signal": None,
        "stopped_by_agent": False,
        "completed": False,
    }
    return RankExit(rank=rank, **{**fields, **how})


def born_of(name: str) -> Born:
    generation, rank = name[1:].split("r")
    return int(generation), int(rank)


def exits(**by_name: Mapping[str, Any]) -> dict[Born, RankExit]:
    """`g1r0={...}` is how (1, 0) ended."""
    names = {name: born_of(name) for name in by_name}
    return {names[name]: ended(names[name][1], **how) for name, how in by_name.items()}


DONE = {"exit_code": 0, "completed": True}
LEFT = {"exit_code": 0}
KILLED = {"signal": 9}
KILLED_BY_US = {"signal": 9, "stopped_by_agent": True}


@pytest.mark.parametrize(
    ("crew_", "exits_", "finished", "ending"),
    [
        (crew(TWO), exits(g1r0=DONE), False, Ending.DONE),
        (crew(TWO), exits(g1r0=DONE, g1r1=LEFT), True, Ending.DONE),
        (crew(TWO), exits(g1r0=DONE, g1r1=KILLED), False, Ending.INFRASTRUCTURE),
        (crew(TWO, GROWN), exits(g1r0=DONE, g1r1=DONE, g2r2=KILLED_BY_US), True, Ending.DONE),
        (crew(TWO, GROWN), exits(g1r0=DONE, g1r1=DONE, g2r2={"exit_code": 1}), True, Ending.DONE),
        (crew(TWO, GROWN, ordered=True), exits(g1r0=DONE, g1r1=DONE, g2r2=KILLED_BY_US), True, Ending.DONE),
        (
            crew(TWO, GROWN, ordered=True),
            exits(g1r0=DONE, g1r1=KILLED, g2r2=DONE),
            False,
            Ending.INFRASTRUCTURE,
        ),
        (crew(TWO, SHRUNK, ordered=True), exits(g1r0=LEFT), False, Ending.STOPPED),
        (crew(TWO, SHRUNK, ordered=True), exits(g1r0=LEFT, g1r1=DONE), True, Ending.DONE),
        (crew(TWO, SHRUNK, ordered=True), exits(g1r0=KILLED, g1r1=DONE), True, Ending.DONE),
        (crew(TWO, MOVED, ordered=True), exits(g1r0=LEFT, g1r1=LEFT), False, Ending.STOPPED),
        (crew(TWO, MOVED, ordered=True), exits(g1r0=DONE, g1r1=DONE, g2r0=KILLED_BY_US), True, Ending.DONE),
        (
            crew(TWO, MOVED, ordered=True),
            exits(g1r0=LEFT, g1r1=LEFT, g2r0=KILLED, g2r1=KILLED_BY_US),
            False,
            Ending.INFRASTRUCTURE,
        ),
    ],
)
def test_how_it_ended(crew_: Crew, exits_: dict[Born, RankExit], *, finished: bool, ending: Ending) -> None:
    assert has_finished(crew_, exits_) is finished
    assert judge(exits_to_judge(crew_, exits_)).ending is ending


def test_a_killed_rank_is_named_by_the_rank_that_it_had_last() -> None:
    later = (Member(rank=0, node_id="n1", slot=1, born_generation=1, born_rank=1),)
    judged = exits_to_judge(crew(later, generation=3), exits(g1r1=KILLED, g1r0=KILLED))
    assert [one.rank for one in judged] == [0]


def test_nobody_has_finished_nothing() -> None:
    assert not has_finished(crew(()), {})
