"""The scope of a round: its jobs in order, the columns that they hold, and the slots that a spec may use."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.scope import scope_of
from service.domain.cluster.snapshot import Snapshot
from tests.unit.service.builders import NOW, clusters, node_of, snapshot_of, spec_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, running_alone, spot


def test_jobs_are_in_the_order_of_their_submission_then_of_their_ids() -> None:
    jobs = [
        elastic_job("late", age_s=0.0),
        elastic_job("b", age_s=100.0),
        elastic_job("a", age_s=100.0),
        elastic_job("first", age_s=500.0),
    ]
    scope = scope_of(snapshot_of([node_of("n")], jobs))
    assert [job.id for job in scope.jobs] == ["first", "a", "b", "late"]
    assert list(scope.holdings) == [job.id for job in scope.jobs]


def test_jobs_in_transition_are_out_of_scope() -> None:
    jobs = [
        elastic_job(state.lower(), state=state)
        for state in (JobState.STARTING, JobState.PAUSED, JobState.RESIZING)
    ]
    held = {"starting": on("n", 0), "resizing": on("n", 1)}
    assert scope_of(snapshot_of([node_of("n")], jobs, held)).jobs == ()


@pytest.mark.parametrize(
    ("nodes", "held", "current"),
    [
        ([node_of("n", 4)], on("n", 0, 1), "2 cpu slots"),
        ([node_of("n", 4)], [], ""),
        ([node_of("n", 1), node_of("m", 1)], [*on("n", 0), *on("m", 0)], "2 cpu slots"),
        # A job that must leave one of its slots has no column.
        ([node_of("n", 1), node_of("m", 1, state=NodeState.DRAINING)], [*on("n", 0), *on("m", 0)], ""),
        ([node_of("n", 1)], on("n", 0, 1), ""),
        # Private slots, of a cordoned node, have a column of their own.
        ([node_of("n", 2, state=NodeState.CORDONED)], on("n", 0, 1), "2 cpu slots"),
    ],
)
def test_the_current_column_is_that_of_a_whole_holding(
    nodes: list[Any], held: list[Any], current: str
) -> None:
    job = elastic_job(state=RUNNING if held else JobState.PENDING)
    scope = scope_of(snapshot_of(nodes, [job], {"j": held} if held else None))
    (column,) = scope.current.tolist()
    assert (scope.columns.text_of(column) if column >= 0 else "") == current


def test_a_holding_in_both_markets_has_a_column() -> None:
    nodes = [node_of("f"), spot("s", 4)]
    job = elastic_job(state=RUNNING, market="mixed", high=5)
    scope = scope_of(snapshot_of(nodes, [job], {"j": [*on("f", 0), *on("s", 0, 1, 2)]}))
    parts = scope.columns.parts_of(int(scope.current[0]))
    assert {pool.name: count for pool, count in parts.items()} == {"cpu": 1, "cpu (spot)": 3}


@pytest.mark.parametrize(
    ("spec", "usable"),
    [
        ({}, {"cpu": 3, "a100": 4}),
        ({"resources": {"devices": ["a100"]}}, {"a100": 4}),
        ({"resources": {"devices": ["h100"]}}, {}),
        ({"market": "spot"}, {"cpu": 5}),
        ({"market": "mixed"}, {"cpu": 8, "a100": 4}),
        ({"market": "mixed", "resources": {"devices": ["cpu"]}}, {"cpu": 8}),
    ],
)
def test_usable_slots_are_in_service_on_devices_and_markets_of_the_spec(
    spec: dict[str, Any], usable: dict[str, int]
) -> None:
    nodes = [
        node_of("c", 3),
        spot("s", 5),
        node_of("g", 4, kind="a100"),
        node_of("gone", 7, state=NodeState.DRAINING),
    ]
    assert scope_of(snapshot_of(nodes)).usable_slots(spec_of("j", **spec)) == usable


def test_held_slots_are_usable_too() -> None:
    assert scope_of(running_alone(3)).usable_slots(spec_of("other")) == {"cpu": 8}


@given(clusters())
@settings(max_examples=25)
def test_every_job_that_may_stay_has_the_column_of_its_slots(snapshot: Snapshot) -> None:
    scope = scope_of(snapshot)
    assert len(scope.current) == len(scope.jobs) == len(scope.holdings)
    for row, (job, holding) in enumerate(zip(scope.jobs, scope.holdings.values(), strict=True)):
        assert (scope.current[row] >= 0) == holding.whole, job.id
        if holding.whole:
            parts = scope.columns.parts_of(int(scope.current[row]))
            assert {pool.name: count for pool, count in parts.items()} == {
                pool: len(keys) for pool, keys in holding.by_pool.items()
            }


@given(clusters())
@settings(max_examples=15)
def test_the_scope_does_not_depend_on_the_order_of_the_snapshot(snapshot: Snapshot) -> None:
    backwards = replace(
        snapshot, nodes=dict(reversed(snapshot.nodes.items())), jobs=dict(reversed(snapshot.jobs.items()))
    )
    first, again = scope_of(snapshot), scope_of(backwards)
    assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
    assert (first.columns.parts == again.columns.parts).all()
    assert first.current.tolist() == again.current.tolist()


def test_a_job_that_retries_later_is_out_of_scope_until_then() -> None:
    job = elastic_job(retry_at=NOW + timedelta(seconds=9))
    snapshot = snapshot_of([node_of("n")], [job])
    assert scope_of(snapshot).jobs == ()
    assert len(scope_of(replace(snapshot, now=NOW + timedelta(seconds=9))).jobs) == 1
