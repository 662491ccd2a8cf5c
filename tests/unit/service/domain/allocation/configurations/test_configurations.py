"""Columns: sizes of every pool, two pools together, and private slots, with price, nodes and demand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.eligibility import Holding
from service.domain.allocation.configurations.masks import allowed_by_spec
from service.domain.allocation.configurations.scope import RoundScope, scope_of
from service.domain.cluster.snapshot import Node, Snapshot
from service.domain.jobs.job import Job
from tests.unit.service.builders import clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, spot


def scope(nodes: list[Node], *jobs: Job, held: dict[str, list[tuple[str, int]]] | None = None) -> RoundScope:
    return scope_of(snapshot_of(nodes, jobs, held))


def names(columns: Columns) -> list[str]:
    return [columns.text_of(column) for column in range(len(columns.parts))]


def test_a_cluster_without_jobs_or_nodes_has_no_columns() -> None:
    assert names(scope([node_of("n")]).columns) == []
    assert names(scope([], elastic_job()).columns) == []


def test_every_size_of_some_job_that_the_pool_has_gets_a_column() -> None:
    jobs = elastic_job("a", 1, 2), elastic_job("b", 4, 9)
    assert names(scope([node_of("n", 5)], *jobs).columns) == [
        "1 cpu slot",
        "2 cpu slots",
        "4 cpu slots",
        "5 cpu slots",
    ]


def test_a_pinned_size_gets_a_column() -> None:
    columns = scope([node_of("n", 8)], elastic_job(high=2, pinned_size=7)).columns
    assert "7 cpu slots" in names(columns)


def test_held_sizes_get_a_column_though_nodes_leave() -> None:
    """The pool has one slot left, and the job holds three that it must leave."""
    nodes = [node_of("old", 3, state=NodeState.DRAINING), node_of("new", 1)]
    columns = scope(nodes, elastic_job(state=RUNNING), held={"j": on("old", 0, 1, 2)}).columns
    assert names(columns) == ["1 cpu slot", "3 cpu slots"]


@pytest.mark.parametrize(
    ("market", "mixes"),
    [("on-demand", []), ("spot", []), ("mixed", [(1, 1), (1, 2), (2, 1)])],
)
def test_mixes_have_one_slot_or_one_node_on_demand_and_the_rest_on_spot(
    market: str, mixes: list[tuple[int, int]]
) -> None:
    columns = scope([node_of("f", 2), spot("s", 4)], elastic_job(low=2, high=3, market=market)).columns
    both = columns.parts[(columns.parts > 0).all(axis=1)]
    assert [tuple(one) for one in both.tolist()] == mixes


def test_a_mix_needs_both_markets_of_one_kind() -> None:
    for nodes in ([node_of("f")], [spot("s")], [node_of("f", kind="a100"), spot("s")]):
        columns = scope(nodes, elastic_job(market="mixed")).columns
        assert ((columns.parts > 0).sum(axis=1) == 1).all()


def test_a_held_mix_gets_a_column_whatever_its_anchor() -> None:
    held = {"j": [*on("f", 0, 1, 2), *on("s", 0)]}
    found = scope([node_of("f", 4), spot("s", 4)], elastic_job(state=RUNNING, market="mixed"), held=held)
    assert found.columns.parts[found.current[0]].tolist() == [3, 1]


def test_prices_are_those_of_all_parts_and_nodes_are_added() -> None:
    nodes = [node_of("f", 2, usd_per_slot_h=3.0), spot("s", 4, usd_per_slot_h=0.5)]
    columns = scope(nodes, elastic_job(low=3, high=3, market="mixed")).columns
    by_name = dict(zip(names(columns), columns.configurations.usd_per_h.tolist(), strict=True))
    assert {name: usd for name, usd in by_name.items() if name.startswith("3")} == {
        "3 cpu (spot) slots": 1.5,
        "3 cpu slots (1 on-demand as anchor, 2 spot)": 4.0,
        "3 cpu slots (2 on-demand as anchor, 1 spot)": 6.5,
    }
    counts = dict(zip(names(columns), columns.configurations.nodes.tolist(), strict=True))
    assert counts["3 cpu slots (1 on-demand as anchor, 2 spot)"] == 2
    assert counts["3 cpu (spot) slots"] == 1


def test_a_mix_counts_as_spot_and_both_markets_as_one_kind() -> None:
    columns = scope(
        [node_of("f"), spot("s"), node_of("g", kind="a100")], elastic_job(high=2, market="mixed")
    ).columns
    configurations, by_kind = columns.configurations, columns.by_kind
    assert configurations.kinds == ("a100", "cpu", "cpu (spot)")
    assert by_kind.kinds == ("a100", "cpu")
    mix = names(columns).index("2 cpu slots (1 on-demand as anchor, 1 spot)")
    assert configurations.kinds[configurations.kind[mix]] == "cpu (spot)"
    assert by_kind.kinds[by_kind.kind[mix]] == "cpu"


def private_scope() -> RoundScope:
    """`a` holds two slots of a cordoned node and one of a free one."""
    nodes = [node_of("old", state=NodeState.CORDONED), node_of("new", 3)]
    jobs = elastic_job("a", 1, 4, state=RUNNING), elastic_job("b", 1, 4)
    return scope(nodes, *jobs, held={"a": [*on("old", 0, 1), *on("new", 0)]})


def test_private_slots_repeat_columns_at_a_lower_demand() -> None:
    columns = private_scope().columns
    own = columns.private.sum(axis=1)
    sizes = columns.configurations.slots
    demand = {
        size: taken
        for size, taken, part in zip(
            sizes.tolist(), columns.demand.sum(axis=1).tolist(), own.tolist(), strict=True
        )
        if part
    }
    assert demand == {1: 0, 2: 0, 3: 1}
    assert {size for size, part in zip(sizes.tolist(), own.tolist(), strict=True) if not part} == {1, 2, 3}


def test_the_held_column_has_its_private_slots() -> None:
    found = private_scope()
    column = int(found.current[0])
    assert found.columns.parts[column].tolist() == [3]
    assert found.columns.private[column].tolist() == [2]
    assert found.columns.unit_of(column, 0) == 1, "private columns guarantee no node"


def test_finding_columns_by_pool_and_size() -> None:
    columns = scope([node_of("f", 2), spot("s", 2)], elastic_job(market="mixed", high=2)).columns
    assert names(columns)[columns.find("cpu", 2)] == "2 cpu slots"
    assert names(columns)[columns.find("cpu (spot)", 1)] == "1 cpu (spot) slot"
    assert columns.find("cpu", 3) == columns.find("tpu", 1) == columns.find(None, 1) == -1
    assert columns.held(Holding()) == -1


def test_a_large_pool_has_columns_for_regular_sizes_and_the_smallest_of_each_job() -> None:
    """3000 sizes would be possible on 400 nodes of eight."""
    nodes = [node_of(f"n{index:03}", 8) for index in range(400)]
    jobs = elastic_job("a", 1, 3000), elastic_job("b", 301, 3000), elastic_job("c", pinned_size=777)
    sizes = scope(nodes, *jobs).columns.configurations.slots
    assert len(sizes) < 200
    assert {1, 2, 4, 8, 16, 301, 777, 3000} <= set(sizes.tolist())
    assert 333 not in sizes.tolist()
    # Up to 16 whole nodes every number, then eight in every doubling.
    assert 8 * 15 in sizes.tolist()
    assert 8 * 17 not in sizes.tolist()
    assert 8 * 18 in sizes.tolist()


@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.integers(2, 20))
@settings(max_examples=40)
def test_a_running_job_is_offered_its_maximum_or_all_slots_of_nodes_of_any_sizes(
    slots: list[int], high: int
) -> None:
    job = elastic_job("j", high=high, state=RUNNING, allocation={"n0": (0,)})
    nodes = [node_of(f"n{index}", count) for index, count in enumerate(slots)]
    found = scope_of(snapshot_of(nodes, [job], {"j": [("n0", 0)]}))
    sizes = found.columns.configurations.slots[allowed_by_spec(found)[0]]
    assert int(sizes.max()) == min(high, sum(slots))


def test_a_pool_with_few_sizes_has_a_column_for_each() -> None:
    nodes = [node_of(f"n{index:03}", 8) for index in range(32)]
    assert len(scope(nodes, elastic_job("a", 1, 256)).columns.configurations.slots) == 256


@given(clusters())
@settings(max_examples=25)
def test_columns_are_distinct_consistent_and_found_again(snapshot: Snapshot) -> None:
    columns = scope_of(snapshot).columns
    configurations = columns.configurations
    keys = [
        (*parts, *own) for parts, own in zip(columns.parts.tolist(), columns.private.tolist(), strict=True)
    ]
    assert max(Counter(keys).values(), default=0) <= 1
    assert [columns.places[key] for key in keys] == list(range(len(keys)))
    assert (configurations.slots == columns.parts.sum(axis=1)).all()
    assert (configurations.slots > 0).all()
    # A job that holds two private slots may shrink to one of them, which asks for no other.
    assert (columns.demand == np.maximum(columns.parts - columns.private, 0)).all()
    assert (configurations.nodes >= 1).all()
    assert (configurations.nodes <= configurations.slots).all()
    for column, kind in enumerate(configurations.kind.tolist()):
        assert columns.parts[column, kind] > 0
        uses = np.flatnonzero(columns.parts[column])
        if len(uses) == 2:
            assert columns.pools[kind].market is Market.SPOT


@given(clusters())
@settings(max_examples=25)
def test_groups_hold_every_public_column_once_by_ascending_size(snapshot: Snapshot) -> None:
    columns = scope_of(snapshot).columns
    grouped = [column for group in columns.groups for column in group.columns.tolist()]
    public = np.flatnonzero((columns.private == 0).all(axis=1)).tolist()
    assert sorted(grouped) == public
    for group in columns.groups:
        assert (np.diff(group.slots) > 0).all()
        assert (columns.configurations.slots[group.columns] == group.slots).all()


@given(clusters())
@settings(max_examples=15)
def test_more_jobs_only_add_columns(snapshot: Snapshot) -> None:
    extra = elastic_job("zz", 2, 3)
    before = {tuple(one) for one in scope_of(snapshot).columns.parts.tolist()}
    more = replace(snapshot, jobs={**snapshot.jobs, "zz": extra})
    assert before <= {tuple(one) for one in scope_of(more).columns.parts.tolist()}
