"""Capacity of pools: slots in service, slots that a round may grant, and prices."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.capacity import PoolCapacity, capacities_of
from service.domain.allocation.configurations.eligibility import deciding_jobs, holding_of
from service.domain.cluster.snapshot import Snapshot
from tests.unit.service.builders import NOW, clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import elastic_job, on, running_alone, spot


def capacities(snapshot: Snapshot) -> dict[str, PoolCapacity]:
    holdings = {job.id: holding_of(job, snapshot) for job in deciding_jobs(snapshot)}
    return capacities_of(snapshot, holdings)


def room(snapshot: Snapshot) -> dict[str, dict[str, tuple[int, int]]]:
    """The slots and the room of every node, by pool."""
    return {
        name: dict(zip(one.nodes, zip(one.slots.tolist(), one.room.tolist(), strict=True), strict=True))
        for name, one in capacities(snapshot).items()
    }


def test_an_empty_cluster_has_no_pools() -> None:
    assert capacities(snapshot_of()) == {}


def test_pools_and_nodes_are_in_the_order_of_their_names() -> None:
    nodes = [node_of("b"), spot("s"), node_of("a", 3), node_of("g", kind="a100")]
    found = room(snapshot_of(nodes))
    assert list(found) == ["a100", "cpu", "cpu (spot)"]
    assert found["cpu"] == {"a": (3, 3), "b": (2, 2)}


def test_a_node_with_two_kinds_lies_in_two_pools() -> None:
    mixed = replace(node_of("m"), slots={0: "cpu", 1: "a100", 2: "cpu"})
    assert room(snapshot_of([mixed])) == {"a100": {"m": (1, 1)}, "cpu": {"m": (2, 2)}}


@pytest.mark.parametrize(
    ("state", "room_left"),
    [
        # A round may move a running job, and grants none of the slots of other jobs.
        (JobState.RUNNING, 4),
        (JobState.STARTING, 2),
        (JobState.RESIZING, 2),
        (JobState.CANCELLING, 2),
    ],
)
def test_slots_of_jobs_that_may_be_moved_can_be_granted(state: JobState, room_left: int) -> None:
    snapshot = snapshot_of([node_of("n", 4)], [elastic_job(state=state)], {"j": on("n", 0, 1)})
    assert room(snapshot) == {"cpu": {"n": (4, room_left)}}


def test_a_job_that_never_changes_keeps_its_slots_from_others() -> None:
    fixed = elastic_job(state=JobState.RUNNING, elastic={"resize": "never"})
    assert room(snapshot_of([node_of("n", 4)], [fixed], {"j": on("n", 0)})) == {"cpu": {"n": (4, 3)}}


@pytest.mark.parametrize(
    ("state", "reclaimed", "in_service"),
    [
        (NodeState.READY, False, True),
        (NodeState.READY, True, False),
        (NodeState.CORDONED, False, False),
        (NodeState.DRAINING, False, False),
        (NodeState.LOST, False, False),
    ],
)
def test_only_nodes_that_take_jobs_have_capacity(state: NodeState, reclaimed: bool, in_service: bool) -> None:
    """Slots on a cordoned node that a job may keep are no capacity either: no other job could have them."""
    node = node_of("n", 8, state=state, reclaim_at=NOW + timedelta(seconds=60) if reclaimed else None)
    snapshot = running_alone(2, (node, node_of("m", 1)))
    expected = {"m": (1, 1), **({"n": (8, 8)} if in_service else {})}
    assert room(snapshot) == {"cpu": expected}


def test_a_pool_whose_only_node_leaves_stays_a_pool_without_capacity() -> None:
    assert room(snapshot_of([node_of("n", state=NodeState.DRAINING)])) == {"cpu": {}}


@pytest.mark.parametrize(
    ("prices", "states", "mean"),
    [
        ((1.0, 1.0), (NodeState.READY, NodeState.READY), 1.0),
        ((1.0, 2.0), (NodeState.READY, NodeState.READY), 1.5),
        ((1.0, 2.0), (NodeState.READY, NodeState.DRAINING), 1.0),
        ((1.0, 2.0), (NodeState.DRAINING, NodeState.DRAINING), 1.5),
        # Without a price of its own a node costs that of its kind, here 0.3.
        ((None, 0.5), (NodeState.READY, NodeState.READY), 0.4),
        ((0.0, None), (NodeState.READY, NodeState.READY), 0.15),
    ],
)
def test_a_pool_costs_the_mean_of_its_nodes_that_take_jobs(
    prices: tuple[float | None, ...], states: tuple[NodeState, ...], mean: float
) -> None:
    nodes = [
        node_of(f"n{index}", state=state, usd_per_slot_h=price)
        for index, (price, state) in enumerate(zip(prices, states, strict=True))
    ]
    snapshot = replace(snapshot_of(nodes), usd_per_slot_h={"cpu": 0.3})
    assert capacities(snapshot)["cpu"].usd_per_slot_h == pytest.approx(mean)


def test_equal_prices_stay_exact() -> None:
    """The mean of three times 0.1 differs from 0.1 in the last digit."""
    nodes = [node_of(f"n{index}", usd_per_slot_h=0.1) for index in range(3)]
    assert capacities(snapshot_of(nodes))["cpu"].usd_per_slot_h == 0.1


@given(clusters())
@settings(max_examples=25)
def test_capacity_is_conserved(snapshot: Snapshot) -> None:
    """Every slot of a node that takes jobs counts once, and its room is what is free or may be moved."""
    found = capacities(snapshot)
    taking = {node.id: node for node in snapshot.nodes.values() if node.takes_jobs}
    assert sum(int(one.slots.sum()) for one in found.values()) == sum(
        len(node.slots) for node in taking.values()
    )
    movable = {job.id for job in deciding_jobs(snapshot)}
    grantable = [key for key in snapshot.free if key.node_id in taking]
    for job_id in movable:
        holding = holding_of(snapshot.jobs[job_id], snapshot)
        grantable += [key for key in holding.keepable if key.node_id in taking]
    assert sum(int(one.room.sum()) for one in found.values()) == len(grantable)
    for one in found.values():
        assert (one.room <= one.slots).all()
        assert (one.room >= 0).all()
        assert list(one.nodes) == sorted(one.nodes)
        assert one.usd_per_slot_h >= 0
