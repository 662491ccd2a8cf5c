"""Rows of a round: slots of every pool first, then the rows that make every choice placeable."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings

from headway.contract.agents import NodeState
from service.domain.allocation.configurations.rows import rows_of
from service.domain.allocation.configurations.scope import scope_of
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.snapshot import Snapshot
from tests.unit.service.builders import clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, running_alone, spot


def capacities(snapshot: Snapshot) -> dict[str, float]:
    return {row.name: row.capacity for row in rows_of(scope_of(snapshot))[0]}


def test_every_pool_has_a_row_of_its_slots_in_the_order_of_the_columns_kinds() -> None:
    nodes = [node_of("c", 4), spot("s", 3), node_of("g", 2, kind="a100")]
    scope = scope_of(snapshot_of(nodes, [elastic_job(market="mixed", high=4)]))
    rows, exempt = rows_of(scope)
    assert [(row.name, row.capacity) for row in rows[:3]] == [
        ("slots/a100", 2.0),
        ("slots/cpu", 4.0),
        ("slots/cpu (spot)", 3.0),
    ]
    assert tuple(row.name.removeprefix("slots/") for row in rows[:3]) == scope.columns.configurations.kinds
    demand = np.array([row.demand for row in rows[:3]]).T
    assert (demand == scope.columns.parts).all(), "no slot is private"
    assert exempt.tolist() == [False]


def test_an_empty_cluster_has_no_rows() -> None:
    rows, exempt = rows_of(scope_of(snapshot_of([], [elastic_job()])))
    assert rows == ()
    assert exempt.tolist() == [False]


def test_two_half_free_nodes_have_no_place_for_a_whole_one() -> None:
    """Two nodes of four with three free slots each: six slots, of which pairs take four and fours none."""
    jobs = [
        elastic_job(low=4, high=4),
        *(elastic_job(name, state=RUNNING, elastic={"resize": "never"}) for name in "ab"),
    ]
    snapshot = snapshot_of([node_of("n", 4), node_of("m", 4)], jobs, {"a": on("n", 0), "b": on("m", 0)})
    found = capacities(snapshot)
    assert found["slots/cpu"] == 6.0
    assert found.get("packing/cpu/2", 4.0) == 4.0


def test_private_slots_take_nothing_from_the_pool() -> None:
    """Two slots on a cordoned node and two in service: the job takes one of those for a size of three."""
    nodes = (node_of("n", 2, state=NodeState.CORDONED), node_of("m", 2))
    scope = scope_of(running_alone(2, nodes))
    row = rows_of(scope)[0][0]
    own = scope.columns.private.sum(axis=1) > 0
    taken = dict(zip(scope.columns.configurations.slots[own].tolist(), row.demand[own].tolist(), strict=True))
    assert row.capacity == 2.0
    assert {size: taken[size] for size in (1, 2, 3, 4) if size in taken} == {
        size: max(0, size - 2) for size in (1, 2, 3, 4) if size in taken
    }
    assert taken[2] == 0.0


def test_a_scattered_job_is_exempt_if_it_breaks_a_row() -> None:
    """A pair lies on two nodes, and the other pair cannot be placed whole while it does."""
    nodes = [node_of("n", 2), node_of("m", 2)]
    jobs = [
        elastic_job("a", 2, 2, state=RUNNING),
        elastic_job("b", 1, 1, state=RUNNING, elastic={"resize": "never"}),
    ]
    scope = scope_of(snapshot_of(nodes, jobs, {"a": [*on("n", 0), *on("m", 0)], "b": on("n", 1)}))
    rows, exempt = rows_of(scope)
    assert [job.id for job in scope.jobs] == ["a"]
    packing = [row for row in rows if row.name.startswith("packing/")]
    assert exempt.tolist() == [True] or all(row.taken(scope.current) <= row.capacity for row in packing)


def test_the_rows_of_a_pool_do_not_count_jobs_that_are_scattered_in_it() -> None:
    nodes = [node_of("n", 2), node_of("m", 2)]
    jobs = [elastic_job(name, 2, 2, state=RUNNING) for name in "ab"]
    held = {"a": [*on("n", 0), *on("m", 0)], "b": [*on("n", 1), *on("m", 1)]}
    scope = scope_of(snapshot_of(nodes, jobs, held))
    rows, exempt = rows_of(scope)
    assert all(row.taken(scope.current) <= row.capacity for row in rows)
    assert not exempt.any(), "two pairs fit two nodes: moving them is enough"


@given(clusters())
@settings(max_examples=25)
def test_every_job_may_stay_as_it_is(snapshot: Snapshot) -> None:
    scope = scope_of(snapshot)
    rows, exempt = rows_of(scope)
    assert len(exempt) == len(scope.jobs)
    for row in rows:
        assert row.taken(scope.current) <= row.capacity + 1e-9, row.name
        assert (row.demand >= 0).all()


@given(clusters())
@settings(max_examples=25)
def test_the_slot_rows_admit_exactly_the_choices_that_the_room_allows(snapshot: Snapshot) -> None:
    """Compared with a count of slots by pool for every choice of the first two jobs."""
    scope = scope_of(snapshot)
    rows, _ = rows_of(scope)
    slot_rows = [row for row in rows if row.name.startswith("slots/")]
    columns = range(-1, min(len(scope.columns.parts), 6))
    rooms = [int(one.room.sum()) for one in scope.capacities.values()]
    for pair in itertools.product(columns, repeat=min(len(scope.jobs), 2)):
        chosen = np.full(len(scope.jobs), NOTHING)
        chosen[: len(pair)] = pair
        demand = sum((scope.columns.demand[column] for column in pair if column >= 0), np.zeros(len(rooms)))
        fits = bool((demand <= np.array(rooms)).all()) if rooms else not any(column >= 0 for column in pair)
        assert all(row.taken(chosen) <= row.capacity for row in slot_rows) == fits
