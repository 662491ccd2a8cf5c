"""Masks of the configurations that specs allow and that measurements cover."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from headway.contract.agents import NodeState
from service.domain.allocation.configurations.masks import (
    allowed_by_spec,
    columns_of_size,
    measured_configurations,
)
from service.domain.allocation.configurations.scope import scope_of
from service.domain.cluster.snapshot import Measurement, Node, Snapshot
from tests.unit.service.builders import clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, speeds, spot, texts

NODES = [node_of("c", 4), spot("s", 4), node_of("g", 2, kind="a100")]


def allowed(snapshot: Snapshot, row: int = 0) -> list[str]:
    scope = scope_of(snapshot)
    return texts(scope, allowed_by_spec(scope)[row])


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({"high": 2}, ["1 a100 slot", "2 a100 slots", "1 cpu slot", "2 cpu slots"]),
        ({"high": 2, "resources": {"devices": ["a100"]}}, ["1 a100 slot", "2 a100 slots"]),
        ({"high": 2, "resources": {"devices": ["h100"]}}, []),
        ({"high": 2, "market": "spot"}, ["1 cpu (spot) slot", "2 cpu (spot) slots"]),
        ({"low": 3, "high": 4, "resources": {"devices": ["cpu"]}}, ["3 cpu slots", "4 cpu slots"]),
        (
            {"high": 4, "elastic": {"sizes": "pow2"}, "resources": {"devices": ["cpu"]}},
            ["1 cpu slot", "2 cpu slots", "4 cpu slots"],
        ),
        (
            {"high": 4, "elastic": {"sizes": [1, 3]}, "resources": {"devices": ["cpu"]}},
            ["1 cpu slot", "3 cpu slots"],
        ),
        ({"high": 2, "pinned_size": 3}, ["3 cpu slots"]),
        ({"low": 5, "high": 9}, []),
    ],
)
def test_pools_and_sizes_of_a_spec(fields: dict[str, Any], columns: list[str]) -> None:
    assert allowed(snapshot_of(NODES, [elastic_job(**fields)])) == columns


def test_a_mixed_job_may_also_have_an_anchor_on_demand_with_the_rest_on_spot() -> None:
    job = elastic_job(low=2, high=2, market="mixed", resources={"devices": ["cpu"]})
    assert allowed(snapshot_of(NODES, [job])) == [
        "2 cpu slots",
        "2 cpu (spot) slots",
        "2 cpu slots (1 on-demand as anchor, 1 spot)",
    ]


@pytest.mark.parametrize(("containers", "columns"), [(True, ["1 cpu slot"]), (False, [])])
def test_an_image_needs_a_container_engine(containers: bool, columns: list[str]) -> None:
    nodes = [node_of("n", containers=containers)]
    job = elastic_job(high=1, image="registry/image:1")
    assert allowed(snapshot_of(nodes, [job])) == columns
    assert allowed(snapshot_of(nodes, [elastic_job(high=1)])) == ["1 cpu slot"]


def cordoned() -> Snapshot:
    """`a` holds two slots of a cordoned node; `b` waits; another node has four free slots."""
    nodes = [node_of("old", state=NodeState.CORDONED), node_of("new", 4)]
    jobs = [elastic_job("a", high=3, state=RUNNING), elastic_job("b", high=3)]
    return snapshot_of(nodes, jobs, {"a": on("old", 0, 1)})


def test_columns_with_private_slots_are_for_their_holder_only() -> None:
    scope = scope_of(cordoned())
    mask = allowed_by_spec(scope)
    private = scope.columns.private.sum(axis=1)
    sizes = scope.columns.configurations.slots
    assert set(sizes[mask[0]].tolist()) == {1, 2, 3}
    assert (private[mask[0]] == np.minimum(sizes[mask[0]], 2)).any()
    assert (private[mask[1]] == 0).all()
    assert not (mask[0] & mask[1] & (private > 0)).any()


def test_jobs_with_equal_specs_have_equal_masks() -> None:
    jobs = [elastic_job(name, high=3) for name in ("a", "b")]
    mask = allowed_by_spec(scope_of(snapshot_of(NODES, jobs)))
    assert (mask[0] == mask[1]).all()


@given(clusters())
@settings(max_examples=25)
def test_every_allowed_column_serves_the_job_at_one_of_its_sizes(snapshot: Snapshot) -> None:
    scope = scope_of(snapshot)
    mask = allowed_by_spec(scope)
    for row, job in enumerate(scope.jobs):
        for column in np.flatnonzero(mask[row]).tolist():
            parts = scope.columns.parts_of(column)
            assert all(pool.serves(job.spec) for pool in parts)
            assert sum(parts.values()) in job.sizes
            own = scope.columns.private_of(scope.holdings[job.id])
            assert (scope.columns.private[column] <= own).all()


def measured(
    points: tuple[Measurement, ...], *, of_class: bool = False, nodes: list[Node] | None = None
) -> tuple[list[str], list[str], Any]:
    job = elastic_job("gpt-1", high=4, name="gpt-1", market="mixed")
    snapshot = snapshot_of(nodes or NODES, [job], {}, {} if of_class else {"gpt-1": points})
    if of_class:
        snapshot = replace(
            snapshot, class_measurements={"default/gpt": points, "default/other": speeds((1, 9.0))}
        )
    scope = scope_of(snapshot)
    found = measured_configurations(scope)
    return texts(scope, found.tried[0]), texts(scope, found.alike[0]), found


def test_a_measured_size_counts_on_every_market_of_its_kind() -> None:
    tried, alike, found = measured(speeds((2, 100.0)))
    assert tried == ["2 cpu slots", "2 cpu (spot) slots", "2 cpu slots (1 on-demand as anchor, 1 spot)"]
    assert alike == []
    assert (found.known == found.tried).all()


def test_the_class_of_a_job_has_tried_sizes_too() -> None:
    tried, alike, found = measured(speeds((2, 100.0), kind="a100"), of_class=True)
    assert (tried, alike) == ([], ["2 a100 slots"])
    assert found.known.sum() == 1
    assert found.observed.job.size == 0, "only the jobs' own speeds are observed"


@pytest.mark.parametrize(
    "point",
    [
        Measurement("cpu", 2, 0.0, 50),
        Measurement("cpu", 2, float("inf"), 50),
        Measurement("cpu", 2, float("nan"), 50),
        Measurement("cpu", 2, 100.0, 0),
        Measurement("h100", 2, 100.0, 50),
        Measurement("cpu", 64, 100.0, 50),
    ],
)
def test_measurements_that_are_absurd_or_of_no_column_are_left_out(point: Measurement) -> None:
    for of_class in (False, True):
        tried, alike, found = measured((point,), of_class=of_class)
        assert tried == alike == []
        assert found.observed.samples_per_s.size == 0


def test_an_observation_has_the_speed_batch_and_steps_of_its_measurement() -> None:
    points = (Measurement("a100", 2, 250.0, 40, global_batch=128), Measurement("a100", 1, 140.0, 7))
    _, _, found = measured(points)
    observed = found.observed
    assert observed.job.tolist() == [0, 0]
    assert observed.samples_per_s.tolist() == [250.0, 64 * 140.0], (
        "a step of unknown size counts as 64 samples"
    )
    assert observed.global_batch[0] == 128
    assert observed.global_batch[1] > 0, "a usual batch without a reported one"
    assert observed.steps.tolist() == [40.0, 7.0]


def test_a_speed_over_more_nodes_than_the_column_has_is_tried_but_not_observed() -> None:
    nodes = [node_of("c", 4), node_of("d", 4)]
    spread = Measurement("cpu", 2, 100.0, 50, nodes=2)
    tried, _, found = measured((spread,), nodes=nodes)
    assert tried == ["2 cpu slots"]
    assert found.observed.samples_per_s.size == 0
    together = replace(spread, nodes=1)
    assert measured((together,), nodes=nodes)[2].observed.samples_per_s.tolist() == [64 * 100.0]


@pytest.mark.parametrize(
    ("kind", "slots", "count"), [("cpu", 2, 3), ("a100", 1, 1), ("a100", 3, 0), ("tpu", 1, 0)]
)
def test_the_columns_of_a_size(kind: str, slots: int, count: int) -> None:
    scope = scope_of(snapshot_of(NODES, [elastic_job(market="mixed")]))
    assert int(columns_of_size(kind, slots, scope.columns.by_kind).sum()) == count


def test_a_round_without_jobs_has_empty_masks() -> None:
    scope = scope_of(snapshot_of([node_of("n")]))
    found = measured_configurations(scope)
    assert (
        allowed_by_spec(scope).shape
        == found.tried.shape
        == found.alike.shape
        == (0, len(scope.columns.parts))
    )
