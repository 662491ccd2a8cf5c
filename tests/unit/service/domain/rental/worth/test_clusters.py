"""Tests of the service's hypothetical clusters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from service.domain.cluster.snapshot import Cap
from service.domain.policies.registry import policy
from service.domain.rental.candidates import made_up_node
from service.domain.rental.worth.clusters import RentalJob, SnapshotCluster
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.rental.decisions.test_autoscale import GOOD_SCALING, runs, waiting


def cluster() -> SnapshotCluster:
    """A host and a rented machine of two slots each, with a job on the machine and one that waits."""
    return SnapshotCluster(
        snapshot_of(
            [node_of("own"), node_of("rented")],
            [runs("gpt"), waiting("bert")],
            {"gpt": [("rented", 0), ("rented", 1)]},
            {"gpt": GOOD_SCALING},
        ),
        frozenset({"rented"}),
    )


def test_a_round_has_the_jobs_with_their_sizes_and_the_slots_that_are_not_rented() -> None:
    round_ = cluster().round(policy("goodput"))
    assert sorted(job.id for job in round_.jobs) == ["bert", "gpt"]
    assert round_.pools == [("cpu", Market.ON_DEMAND)]
    assert round_.own.tolist() == [2.0]
    assert round_.parts.max() == 4
    assert cluster().sizes == [(1, 8), (1, 4)]


def test_more_machines_are_rented_and_one_less_is_drained() -> None:
    more = cluster().plus([made_up_node("new", 4, "cpu", Market.ON_DEMAND, 0.5)])
    assert more.rented == {"rented", "~new"}
    assert more.round(policy("goodput")).parts.max() == 8
    assert more.round(policy("goodput")).own.tolist() == [2.0]
    less = cluster().without("rented")
    assert less.snapshot.nodes["rented"].state is NodeState.DRAINING
    assert less.round(policy("goodput")).parts.max() <= 4
    assert cluster().snapshot.nodes["rented"].state is NodeState.READY, "the first cluster is unchanged"


def test_the_next_step_is_the_next_size_of_the_job() -> None:
    job = RentalJob(id="j", name="j", objective="cost", sizes=[2, 4, 8])
    assert [job.next_step(slots) for slots in (0, 2, 3, 4, 8, 9)] == [2, 2, 1, 4, 1, 1]


@pytest.mark.parametrize(
    ("state", "judged"), [(NodeState.READY, True), (NodeState.DRAINING, False), (NodeState.LOST, False)]
)
def test_a_node_that_jobs_are_leaving_is_not_judged(state: NodeState, *, judged: bool) -> None:
    here = cluster()
    node = replace(here.snapshot.nodes["rented"], state=state)
    changed = replace(here, snapshot=replace(here.snapshot, nodes={**here.snapshot.nodes, "rented": node}))
    assert changed.is_judged("rented") is judged
    assert not changed.is_judged("missing")


def test_equal_nodes_are_alike_unless_jobs_hold_them() -> None:
    nodes = [node_of("a"), node_of("b"), node_of("c", slots=4)]
    empty = SnapshotCluster(snapshot_of(nodes), frozenset({"a", "b", "c"}))
    assert empty.likeness("a") == empty.likeness("b") != empty.likeness("c")
    held = SnapshotCluster(snapshot_of(nodes, [runs("gpt")], {"gpt": [("a", 0)]}), frozenset({"a", "b"}))
    assert held.holders("a") == {"gpt"}
    assert held.holders("b") == frozenset()
    assert held.likeness("a") != held.likeness("b")


def test_the_smallest_cap_on_all_projects_counts() -> None:
    caps = (Cap("team", "team", 0.1), Cap("all", None, 3.0), Cap("more", None, 5.0))
    here = cluster()
    assert here.cap_usd_per_h == math.inf
    assert replace(here, snapshot=replace(here.snapshot, caps=caps)).cap_usd_per_h == 3.0
