"""The snapshot of a cluster: which slots can be granted, which pools they form, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from service.domain.cluster.contention_rules import RUN_COSTS, USUAL
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import (
    BUDGET_ROWS,
    FIRM_ROWS,
    LENT_ROWS,
    QUOTA_ROWS,
    Cap,
    Measurement,
    Node,
    SlotKey,
    Snapshot,
    allocation_of,
    budget_row,
    lent_row,
    quota_row,
)
from service.domain.jobs.job import Job, size_of
from tests.unit.service.builders import NOW, clusters, job_of, node_of, snapshot_of, spec_of

READY, CORDONED, LOST = NodeState.READY, NodeState.CORDONED, NodeState.LOST
SOON = NOW + timedelta(seconds=90)


@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("reclaim_at", [None, SOON])
def test_a_node_takes_jobs_if_it_is_ready_and_keeps_them_if_it_is_cordoned(
    state: NodeState, reclaim_at: Any
) -> None:
    node = node_of("n", state=state, reclaim_at=reclaim_at)
    assert node.takes_jobs is (state is READY and reclaim_at is None)
    assert node.keeps_jobs is (state in {READY, CORDONED} and reclaim_at is None)


@pytest.mark.parametrize(
    ("samples_per_s", "steps", "believable"),
    [
        (100.0, 1, True),
        (100.0, 0, False),
        (100.0, -1, False),
        (1e-9, 1, True),
        (0.9e-9, 1, False),
        (1e15, 1, True),
        (1.1e15, 1, False),
        (0.0, 1, False),
        (-5.0, 1, False),
        (float("nan"), 1, False),
        (float("inf"), 1, False),
    ],
)
def test_an_absurd_measurement_is_not_believed(samples_per_s: float, steps: int, believable: bool) -> None:
    assert Measurement("cpu", 1, samples_per_s, steps).believable is believable


def test_rows_are_named_by_their_limit() -> None:
    assert (budget_row("team"), quota_row("red"), lent_row("red")) == ("budget/team", "quota/red", "lent/red")
    assert Cap("team", None, 1.0).row == "budget/team"
    prefixes = (BUDGET_ROWS, QUOTA_ROWS, LENT_ROWS, FIRM_ROWS)
    assert not any(one.startswith(other) for one in prefixes for other in prefixes if one is not other)


@pytest.mark.parametrize(
    ("keys", "allocation"),
    [
        ([], {}),
        ([("b", 1)], {"b": (1,)}),
        ([("b", 2), ("a", 1), ("b", 0)], {"a": (1,), "b": (0, 2)}),
        ([("n", 10), ("n", 9)], {"n": (9, 10)}),
    ],
)
def test_slots_by_node_are_in_order(
    keys: list[tuple[str, int]], allocation: dict[str, tuple[int, ...]]
) -> None:
    found = allocation_of(SlotKey(*key) for key in keys)
    assert found == allocation
    assert list(found) == sorted(found)


@given(st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 9))), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_an_allocation_has_every_slot_once_whatever_the_order(keys: set[tuple[str, int]], rng: Any) -> None:
    shuffled = sorted(keys)
    rng.shuffle(shuffled)
    found = allocation_of(SlotKey(*key) for key in shuffled)
    assert {(node, slot) for node, slots in found.items() for slot in slots} == keys
    assert size_of(found) == len(keys)


def keys(*pairs: tuple[str, int]) -> tuple[SlotKey, ...]:
    return tuple(SlotKey(*pair) for pair in pairs)


def test_slots_held_are_the_inverse_of_holders_in_a_stable_order() -> None:
    held = {"j": [("b", 1), ("a", 0), ("b", 0)], "k": [("a", 1)]}
    snapshot = snapshot_of([node_of("b"), node_of("a")], [job_of("j"), job_of("k")], held)
    assert snapshot.slots_held_by("j") == keys(("a", 0), ("b", 0), ("b", 1))
    assert snapshot.slots_held_by("k") == keys(("a", 1))
    assert snapshot.slots_held_by("nobody") == ()
    assert set(snapshot.holdings) == {"j", "k"}


@pytest.mark.parametrize(
    ("fields", "free"),
    [
        ({}, [("a", 1), ("b", 0), ("b", 1)]),
        ({"state": CORDONED}, [("b", 0), ("b", 1)]),
        ({"state": NodeState.DRAINING}, [("b", 0), ("b", 1)]),
        ({"state": LOST}, [("b", 0), ("b", 1)]),
        ({"reclaim_at": SOON}, [("b", 0), ("b", 1)]),
        ({"slots": 1}, [("b", 0), ("b", 1)]),
        ({"slots": 0}, [("b", 0), ("b", 1)]),
    ],
)
def test_free_slots_are_those_of_nodes_that_take_jobs(
    fields: dict[str, Any], free: list[tuple[str, int]]
) -> None:
    """Slot 0 of node `a` is held."""
    node = node_of("a", **fields)
    snapshot = snapshot_of([node_of("b"), node], [job_of("j")], {"j": [("a", 0)]})
    assert snapshot.free == keys(*free)


@given(clusters())
@settings(max_examples=15)
def test_every_slot_has_a_pool_and_is_free_held_or_of_a_node_that_takes_no_jobs(snapshot: Snapshot) -> None:
    free, held = set(snapshot.free), set(snapshot.held)
    assert len(free) == len(snapshot.free)
    assert not free & held
    for node in snapshot.nodes.values():
        for slot in node.slots:
            key = SlotKey(node.id, slot)
            assert (key in free) is (node.takes_jobs and key not in held)
    assert {key for slots in snapshot.holdings.values() for key in slots} == held
    assert all(snapshot.held[key] == job for job, slots in snapshot.holdings.items() for key in slots)
    for node in snapshot.nodes.values():
        for slot, kind in node.slots.items():
            key = SlotKey(node.id, slot)
            pool = snapshot.pool_of(key)
            assert snapshot.kind_of(key) == kind
            assert pool is not None
            assert (pool.kind, pool.market) == (kind, node.market)
            assert pool == snapshot.pool_on(node, kind)
    for key in [SlotKey("nowhere", 0), *(SlotKey(node, 99) for node in snapshot.nodes)]:
        assert (snapshot.kind_of(key), snapshot.pool_of(key)) == ("", None)
        assert snapshot.usd_per_slot_h_of_key(key) == 0.0


def host(node_id: str, *, containers: bool, **fields: Any) -> Node:
    return node_of(node_id, 2, "a100", containers=containers, **fields)


def needs_containers(**fields: Any) -> Job:
    return job_of("c", spec=spec_of("c", image="torch:2", **fields))


def names(snapshot: Snapshot) -> dict[str, str]:
    """The pool of each node, with a mark for nodes that cannot start containers."""
    pools = {node.id: snapshot.pool_on(node, "a100") for node in snapshot.nodes.values()}
    return {node: f"{pool.name}{'' if pool.containers else ' without'}" for node, pool in pools.items()}


@pytest.mark.parametrize(
    ("nodes", "jobs", "pools"),
    [
        # All nodes alike: one pool, whatever the jobs need.
        ([host("a", containers=True)], [needs_containers()], {"a": "a100"}),
        ([host("a", containers=False)], [needs_containers()], {"a": "a100 without"}),
        # Different nodes, but no job with an image.
        (
            [host("a", containers=True), host("b", containers=False)],
            [job_of("j")],
            {"a": "a100 without", "b": "a100 without"},
        ),
        # A job with an image keeps to the nodes that can start it.
        (
            [host("a", containers=True), host("b", containers=False)],
            [job_of("j"), needs_containers()],
            {"a": "a100 (containers)", "b": "a100 without"},
        ),
        # It would not run on this kind or market anyway.
        (
            [host("a", containers=True), host("b", containers=False)],
            [needs_containers(resources={"devices": ["h100"]})],
            {"a": "a100 without", "b": "a100 without"},
        ),
        (
            [host("a", containers=True), host("b", containers=False)],
            [needs_containers(market="spot")],
            {"a": "a100 without", "b": "a100 without"},
        ),
        # Markets are apart in any case.
        (
            [host("a", containers=True), host("b", containers=False, market=Market.SPOT)],
            [needs_containers(market="mixed")],
            {"a": "a100", "b": "a100 (spot) without"},
        ),
        # A lost node divides nothing, but it has a pool.
        (
            [host("a", containers=True), host("b", containers=False, state=LOST)],
            [needs_containers()],
            {"a": "a100", "b": "a100"},
        ),
        (
            [host("a", containers=True, state=LOST), host("b", containers=False, state=LOST)],
            [needs_containers()],
            {"a": "a100 (containers)", "b": "a100 without"},
        ),
    ],
)
def test_nodes_that_can_start_containers_are_a_pool_of_their_own_while_it_matters(
    nodes: list[Node], jobs: list[Job], pools: dict[str, str]
) -> None:
    assert names(snapshot_of(nodes, jobs)) == pools


def test_a_node_of_several_kinds_is_in_several_pools() -> None:
    node = replace(node_of("n"), slots={0: "cpu", 1: "a100", 2: "a100"})
    snapshot = snapshot_of([node])
    found = Counter(snapshot.pool_of(SlotKey("n", slot)) for slot in node.slots)
    assert found == {Pool("cpu"): 1, Pool("a100"): 2}


@pytest.mark.parametrize(
    ("of_node", "of_kinds", "usd"),
    [
        (None, {}, 0.0),
        (None, {"cpu": 0.5}, 0.5),
        (None, {"a100": 3.0}, 0.0),
        (2.0, {"cpu": 0.5}, 2.0),
        (0.0, {"cpu": 0.5}, 0.0),
        (-1.0, {"cpu": 0.5}, 0.0),
        (None, {"cpu": -0.5}, 0.0),
    ],
)
def test_the_price_of_a_node_comes_before_the_price_of_its_kind(
    of_node: float | None, of_kinds: dict[str, float], usd: float
) -> None:
    node = node_of("n", usd_per_slot_h=of_node)
    snapshot = replace(snapshot_of([node]), usd_per_slot_h=of_kinds)
    assert snapshot.usd_per_slot_h_of(node, "cpu") == usd
    assert snapshot.usd_per_slot_h_of_key(SlotKey("n", 1)) == usd


def test_a_slot_in_quarantine_is_neither_free_nor_priced() -> None:
    node = replace(node_of("n", 2, usd_per_slot_h=1.0), slots={0: "cpu"}, quarantined={1: "Xid 79"})
    snapshot = snapshot_of([node], [job_of("j")], {"j": [("n", 1)]})
    assert snapshot.free == keys(("n", 0))
    assert snapshot.kind_of(SlotKey("n", 1)) == ""
    assert snapshot.usd_per_slot_h_of_key(SlotKey("n", 1)) == 0.0
    assert snapshot.slots_held_by("j") == keys(("n", 1)), "the job holds it until it leaves"


def test_a_short_run_is_protected_for_a_minute_and_a_wait_ends_within_half_an_hour() -> None:
    assert (USUAL.min_run_s, USUAL.max_wait_s) == (60.0, 1800.0)
    assert 1 / RUN_COSTS == 0.05, "a start and a stop take at most 5 % of a run"
