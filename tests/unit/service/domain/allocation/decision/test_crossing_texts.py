"""Levels that a decision crosses: what is said of them, and that clusters without labels decide as before."""

from __future__ import annotations

import hashlib
import json
from functools import partial

import pytest

from benchmarks.instances import make_instance
from benchmarks.snapshots import make_snapshot
from service.domain.allocation.decision.crossing_texts import crossing_text
from service.domain.allocation.decision.plan import Action, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement.placed_speed import placed_share
from service.domain.cluster.snapshot import Measurement, Node, Snapshot
from service.domain.policies.registry import policy
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, decisions, elastic_job

RECORDED = "a3716e839d4959026ccfcc5fa342bbf15a4782f1997d954f699ab01be8287fda"
"""Digest of the actions, slots and messages that were decided before nodes had labels."""


def racks(*names: str, slots: int = 2) -> tuple[Node, ...]:
    return tuple(
        node_of(f"n{index}", slots, labels={"rack": name} if name else {}) for index, name in enumerate(names)
    )


def measured(*, across_racks: float) -> tuple[Measurement, ...]:
    """Speeds on one slot, on one node, on two nodes, and on two nodes of two racks."""
    places = [(1, 1, 100.0, ""), (2, 1, 190.0, ""), (4, 2, 300.0, ""), (4, 2, across_racks, "rack")]
    return tuple(
        Measurement(
            "cpu", slots, speed, 5000, nodes=nodes, global_batch=64, local_batch=64 // slots, crossed=crossed
        )
        for slots, nodes, speed, crossed in places
    )


def running(nodes: tuple[Node, ...], *on: str, across_racks: float = 200.0) -> Snapshot:
    job = elastic_job(state=RUNNING, low=4, high=4)
    held = {"j": [(node, slot) for node in on for slot in range(2)]}
    return snapshot_of(nodes, [job], held, {"j": measured(across_racks=across_racks)})


def said(snapshot: Snapshot, *nodes: str) -> str:
    round_ = build_round(snapshot)
    column = round_.columns.find("cpu", 4)
    return crossing_text(round_, 0, column, dict.fromkeys(nodes, (0, 1)))


def test_a_job_across_racks_is_told_what_it_costs() -> None:
    snapshot = running(racks("a", "a", "b", "b"), "n0", "n2")
    assert said(snapshot, "n0", "n2").startswith("across racks a and b: 0.")
    assert said(snapshot, "n0", "n1").startswith("within rack a: across racks it would be 0.")
    round_ = build_round(snapshot)
    column = round_.columns.find("cpu", 4)
    assert placed_share(round_, 0, column, {"n0": (0, 1), "n2": (0, 1)}) == pytest.approx(0.67, abs=0.07)
    assert placed_share(round_, 0, column, {"n0": (0, 1), "n1": (0, 1)}) == 1.0


def test_labels_that_all_nodes_share_cost_nothing() -> None:
    assert said(running(racks("a", "a"), "n0", "n1"), "n0", "n1") == "within rack a"


def test_without_labels_nothing_is_said() -> None:
    assert said(running(racks("", ""), "n0", "n1"), "n0", "n1") == ""


def test_a_single_node_crosses_nothing() -> None:
    assert said(running(racks("a", "b"), "n0", "n1"), "n0") == ""


def test_a_size_that_no_rack_holds_is_slower_than_one_that_lies_within() -> None:
    """The configuration itself counts the level that it has to cross."""
    within, across = (
        build_round(running(nodes, "n0", "n1", across_racks=200.0))
        for nodes in (racks("a", "a"), racks("a", "b"))
    )
    fast, slow = (
        float(one.estimates.table.goodput[0, one.columns.find("cpu", 4)]) for one in (within, across)
    )
    assert fast == pytest.approx(300.0, rel=0.05)
    assert slow == pytest.approx(200.0, rel=0.05)


def test_a_new_job_starts_within_a_rack() -> None:
    job = elastic_job(low=4, high=4)
    found = decisions(snapshot_of(racks("a", "b", "a", "b"), [job], {}, {}))["j"]
    assert set(found.allocation) in ({"n0", "n2"}, {"n1", "n3"})
    assert "within rack " in found.message


@pytest.mark.parametrize(("across_racks", "moves"), [(150.0, True), (299.0, False)])
def test_a_running_job_moves_into_one_rack_if_that_pays(across_racks: float, *, moves: bool) -> None:
    found = decisions(running(racks("a", "a", "b", "b"), "n0", "n2", across_racks=across_racks))["j"]
    assert (found.action is Action.CHANGE) == moves
    assert set(found.allocation) in (({"n0", "n1"}, {"n2", "n3"}) if moves else ({"n0", "n2"},))
    assert ("closer together" in found.message) == moves


def test_without_room_in_a_rack_a_running_job_stays_across() -> None:
    found = decisions(running(racks("a", "b"), "n0", "n1", across_racks=150.0))["j"]
    assert found.action is Action.KEEP


def test_without_labels_every_decision_is_as_recorded() -> None:
    snapshot = make_snapshot(make_instance(64, 256, 3, seed=0, quotas=0, dollars=False))
    plan = decide(build_round(snapshot), policy("goodput"), partial(solve, gap=0.0))
    lines = [
        f"{one.job_id} {one.action} {one.message} {json.dumps(one.allocation, sort_keys=True)}"
        for one in plan.decisions
    ]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == RECORDED
