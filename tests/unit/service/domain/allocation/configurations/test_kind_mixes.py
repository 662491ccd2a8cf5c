"""Mixes of two kinds: their number and divisions by hand, who may have them, and what holders keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.allocation.configurations.kind_mixes import MOST_MIXES, divisions
from service.domain.allocation.configurations.masks import allowed_by_spec, measured_configurations
from service.domain.allocation.configurations.rows import rows_of
from service.domain.allocation.configurations.scope import RoundScope, scope_of
from service.domain.cluster.snapshot import Measurement, Node
from service.domain.jobs.job import Job, class_of
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, spot, texts

MIX = {"mix": ["a100", "t4"]}
NODES = (node_of("n", 2, "a100"), node_of("m", 2, "t4"))


def scope(*jobs: Job, nodes: tuple[Node, ...] = NODES, held: Any = None, points: Any = None) -> RoundScope:
    return scope_of(snapshot_of(nodes, jobs, held or {}, points or {}))


def mixed(found: RoundScope) -> list[str]:
    return texts(found, found.columns.by_kind.mixed)


@pytest.mark.parametrize(
    ("sizes", "largest", "most", "expected"),
    [
        ({2}, {2}, (2, 2), [(1, 1)]),
        ({4}, {4}, (2, 2), [(2, 2)]),
        ({1}, {1}, (2, 2), []),
        ({4}, {8}, (4, 4), [(1, 3), (2, 2), (3, 1)]),
        ({3}, {8}, (4, 4), [(1, 2), (2, 1)]),
        ({7}, {8}, (4, 4), [(3, 4), (4, 3)][:0]),  # 3 is no typical part and 7 no typical size
        ({7}, {7}, (4, 4), [(3, 4), (4, 3)]),
        ({9}, {9}, (3, 6), [(3, 6)]),  # both pools as a whole
        ({9}, {9}, (4, 4), []),
    ],
)
def test_divisions_by_hand(
    sizes: set[int], largest: set[int], most: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    assert divisions(sizes, largest, most) == expected


@given(st.sets(st.integers(1, 600)), st.integers(1, 300), st.integers(1, 300))
def test_divisions_fit_and_are_few(sizes: set[int], first: int, second: int) -> None:
    found = divisions(sizes, {max(sizes, default=1)}, (first, second))
    assert len(found) == len(set(found)) <= MOST_MIXES
    assert all(
        0 < mine <= first and 0 < theirs <= second and mine + theirs in sizes for mine, theirs in found
    )


def test_only_jobs_that_mix_get_the_columns() -> None:
    both = scope(elastic_job("j", elastic=MIX), elastic_job("other"))
    assert mixed(both) == [
        "2 slots (1 a100 + 1 t4)",
        "3 slots (1 a100 + 2 t4)",
        "3 slots (2 a100 + 1 t4)",
        "4 slots (2 a100 + 2 t4)",
    ]
    allowed = allowed_by_spec(both)[:, both.columns.by_kind.mixed]
    assert allowed[0].all()
    assert not allowed[1].any()
    alone = scope(elastic_job("other"))
    assert alone.columns.by_kind.parts is None
    assert not mixed(alone)


def test_a_mix_takes_slots_of_both_pools_and_nodes_and_costs_both_prices() -> None:
    priced = scope(
        elastic_job("j", 4, elastic=MIX),
        nodes=(node_of("n", 2, "a100", usd_per_slot_h=2.0), node_of("m", 2, "t4", usd_per_slot_h=0.5)),
    )
    (column,) = priced.columns.by_kind.mixed.nonzero()[0].tolist()
    assert priced.columns.by_kind.kind_name(column) == "a100:2+t4:2"
    assert priced.columns.configurations.usd_per_h[column] == 5.0
    assert priced.columns.configurations.nodes[column] == 2
    rows, _ = rows_of(priced)
    assert {row.name: row.demand[column] for row in rows if row.name.startswith("slots/")} == {
        "slots/a100": 2.0,
        "slots/t4": 2.0,
    }


@pytest.mark.parametrize(
    ("job", "nodes", "expected"),
    [
        pytest.param({"resources": {"devices": ["a100", "t4", "v100"]}}, NODES, True, id="accepted kinds"),
        pytest.param({"elastic": {"mix": ["a100", "v100"]}}, NODES, False, id="another pair"),
        pytest.param({"market": "spot"}, NODES, False, id="the other market"),
        pytest.param({"market": "mixed"}, (NODES[0], spot("m", 2, "t4")), False, id="two markets"),
        pytest.param({"market": "spot"}, (spot("n", 2, "a100"), spot("m", 2, "t4")), True, id="both on spot"),
        pytest.param({"high": 1, "elastic": {}}, NODES, False, id="one slot"),
    ],
)
def test_who_may_mix(job: dict[str, Any], nodes: tuple[Node, ...], expected: bool) -> None:
    fields = {"high": 2, "elastic": MIX, **job}
    found = scope(elastic_job("j", 1, **fields), nodes=nodes)
    may = allowed_by_spec(found)[0] & found.columns.by_kind.mixed
    assert may.any() == expected


def test_a_holder_of_two_kinds_keeps_its_column_of_any_division() -> None:
    nodes = (node_of("n", 8, "a100"), node_of("m", 8, "t4"))
    job = elastic_job("j", 1, 16, state=RUNNING, elastic=MIX)
    held = {"j": [*on("n", 0, 1, 2), *on("m", *range(7))]}
    found = scope(job, nodes=nodes, held=held)
    assert found.columns.text_of(int(found.current[0])) == "10 slots (3 a100 + 7 t4)"
    assert found.holdings["j"].kind == "a100:3+t4:7"
    assert found.holdings["j"].whole


def test_without_mix_slots_of_another_kind_cannot_be_kept() -> None:
    held = {"j": [*on("n", 0), *on("m", 0)]}
    found = scope(elastic_job("j", state=RUNNING), held=held)
    assert (found.holdings["j"].kind, len(found.holdings["j"].keepable)) == ("t4", 1)
    assert found.current[0] == -1


def test_measurements_of_a_mix_belong_to_exactly_its_column() -> None:
    points = (
        Measurement("a100:2+t4:2", 4, 100.0, 500, nodes=2, global_batch=64),
        Measurement("a100", 2, 60.0, 500, global_batch=64),
        Measurement("a100:1+v100:1", 2, 60.0, 500, nodes=2, global_batch=64),
    )
    found = scope(elastic_job("j", elastic=MIX), points={"j": points})
    measured = measured_configurations(found)
    assert texts(found, measured.tried[0]) == ["2 a100 slots", "4 slots (2 a100 + 2 t4)"]
    assert sorted(measured.observed.samples_per_s.tolist()) == [60.0, 100.0]


def test_mixes_of_its_class_are_observed_until_the_job_has_its_own() -> None:
    """The class reaches a job by the models of its kinds, but no model fits steps of a mix."""
    job = elastic_job("j", elastic=MIX)
    of_class = {
        class_of(job.spec): (
            Measurement("a100:2+t4:2", 4, 100.0, 500, nodes=2, global_batch=64),
            Measurement("a100:1+t4:1", 2, 50.0, 500, nodes=2, global_batch=64),
            Measurement("a100", 2, 60.0, 500, global_batch=64),
        )
    }
    own = (Measurement("a100:2+t4:2", 4, 90.0, 500, nodes=2, global_batch=64),)
    for points, speeds in (((), [50.0, 100.0]), (own, [50.0, 90.0])):
        snapshot = replace(snapshot_of(NODES, [job], {}, {"j": points}), class_measurements=of_class)
        measured = measured_configurations(scope_of(snapshot))
        assert sorted(measured.observed.samples_per_s.tolist()) == speeds


def test_mixes_of_the_markets_of_one_kind_are_none_of_kinds() -> None:
    nodes = (node_of("n", 2, "a100"), spot("m", 2, "a100"), node_of("k", 2, "t4"))
    found = scope(elastic_job("j", market="mixed", elastic=MIX), nodes=nodes)
    assert Market.SPOT in {pool.market for pool in found.columns.pools}
    assert "3 a100 slots (1 on-demand as anchor, 2 spot)" in texts(found, ~found.columns.by_kind.mixed)
    assert "4 slots (2 a100 + 2 t4)" in mixed(found)
    assert all("anchor" not in text for text in mixed(found))
