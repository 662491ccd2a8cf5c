"""Layouts of whole rounds: together where it is worth the moves of others, apart where it is not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement.cluster_layout import places_of
from service.domain.allocation.placement.placement import Placement, PlacementStep
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of

STAY, GO, WAIT = PlacementStep.STAY, PlacementStep.GO, PlacementStep.WAIT


def job(job_id: str, high: int = 1, state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    spec = spec_of(job_id, elastic={"min": 1, "max": high, "resize": fields.pop("resize", "live")})
    return job_of(job_id, state, age_s=600, spec=spec, **fields)


def crowded(*measured: Measurement, live: bool = False) -> Snapshot:
    """Two nodes of two slots: `grows` is to have two slots, and a neighbour has the other one of its node."""
    jobs = [
        job("grows", 2, pinned_size=2, live=True),
        job("beside", live=live, resize="live" if live else "restart"),
        job("else", live=True),
    ]
    held = {"grows": [("a", 0)], "beside": [("a", 1)], "else": [("b", 0)]}
    return snapshot_of([node_of("a"), node_of("b")], jobs, held, {"grows": measured})


def across(two_nodes: float) -> tuple[Measurement, ...]:
    """Speeds of one slot, of two on one node, and of two on two nodes."""
    return (
        Measurement("cpu", 1, 100.0, 5000, global_batch=64),
        Measurement("cpu", 2, 190.0, 5000, global_batch=64),
        Measurement("cpu", 2, two_nodes, 5000, global_batch=64, nodes=2),
    )


def decisions(snapshot: Snapshot) -> dict[str, Decision]:
    return {one.job_id: one for one in decide(build_round(snapshot), Goodput(), solve).decisions}


def placed(snapshot: Snapshot, **slots: int) -> dict[str, Placement]:
    """The layout if jobs get so many slots, the others what they hold."""
    round_ = build_round(snapshot)
    return places_of(round_, chosen(round_, **slots))


def chosen(round_: Round, **slots: int) -> list[int]:
    sizes = round_.columns.configurations.slots
    shared = ~round_.columns.private.any(axis=1)
    columns = round_.given.current.tolist()
    for row, one in enumerate(round_.jobs):
        if one.id in slots:
            fitting = np.flatnonzero((sizes == slots[one.id]) & shared)
            columns[row] = int(fitting[0]) if slots[one.id] else NOTHING
    return columns


def test_nobody_is_restarted_for_a_gain_that_nobody_has_seen() -> None:
    plan = decisions(crowded())
    assert plan["grows"].allocation == {"a": (0,), "b": (1,)}
    assert {plan["beside"].action, plan["else"].action} == {Action.KEEP}


def test_a_job_that_is_slow_across_nodes_lies_together() -> None:
    plan = decisions(crowded(*across(40.0)))
    assert plan["beside"].action is Action.CHANGE
    assert plan["beside"].allocation == {"b": (1,)}
    assert "make room for grows" in plan["beside"].message
    assert plan["else"].action is Action.KEEP


@pytest.mark.parametrize(
    ("two_nodes", "together"), [(40.0, True), (80.0, True), (190.0, False), (250.0, False)]
)
def test_the_loss_of_speed_over_ten_minutes_is_weighed_against_the_restart(
    two_nodes: float, together: bool
) -> None:
    """The neighbour loses 3 s of one slot; the job loses 600 s times its two slots times the slow-down."""
    found = placed(crowded(*across(two_nodes)), grows=2)
    assert found["grows"].allocation == ({"a": (0, 1)} if together else {"a": (0,), "b": (1,)})
    assert found["beside"].step is (GO if together else STAY)
    assert found["beside"].makes_room_for == ("grows" if together else "")
    assert found["else"].step is STAY


def test_nothing_is_scattered_where_nobody_has_to_move() -> None:
    snapshot = crowded()
    snapshot = replace(snapshot, held={key: one for key, one in snapshot.held.items() if one != "beside"})
    without = {name: one for name, one in snapshot.jobs.items() if name != "beside"}
    found = placed(replace(snapshot, jobs=without), grows=2)
    assert found["grows"] == Placement(allocation={"a": (0, 1)}, step=GO)


def test_a_job_that_gets_nothing_leaves_its_slots_to_others() -> None:
    found = placed(crowded(), grows=2, beside=0)
    assert "beside" not in found
    assert found["grows"].allocation in ({"a": (0, 1)}, {"a": (0,), "b": (1,)})
    assert found["else"].step is STAY


def test_without_jobs_there_is_nothing_to_place() -> None:
    assert places_of(build_round(snapshot_of([node_of("a")])), []) == {}
    waits = job("j", state=JobState.PENDING)
    assert placed(snapshot_of([node_of("a")], [waits]), j=0) == {}


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.LOST])
def test_slots_of_nodes_that_keep_no_jobs_are_left(state: NodeState) -> None:
    nodes = [node_of("a", state=state), node_of("b")]
    found = placed(snapshot_of(nodes, [job("j", live=True)], {"j": [("a", 0)]}), j=1)
    assert found["j"] == Placement(allocation={"b": (0,)}, step=GO)


def test_slots_of_a_cordoned_node_are_kept_and_go_to_nobody_else() -> None:
    nodes = [node_of("a", state=NodeState.CORDONED), node_of("b", 1)]
    jobs = [job("stays", live=True), job("new", state=JobState.PENDING)]
    snapshot = snapshot_of(nodes, jobs, {"stays": [("a", 0)]})
    found = placed(snapshot, new=1)
    assert found["stays"] == Placement(allocation={"a": (0,)}, step=STAY)
    assert found["new"] == Placement(allocation={"b": (0,)}, step=GO)


def test_a_job_that_backs_off_is_not_moved_for_others() -> None:
    """Its new ranks failed a moment ago: it keeps its slots, and no other job gets them."""
    resting = job("beside", live=True, grow_after=NOW + timedelta(seconds=30))
    snapshot = crowded(*across(40.0))
    found = placed(replace(snapshot, jobs={**snapshot.jobs, "beside": resting}), grows=2)
    assert "beside" not in found
    assert all(1 not in one.allocation.get("a", ()) for one in found.values())
    assert found["grows"].allocation == {"b": (0, 1)}, "the other neighbour moves in its place"
    assert found["else"].makes_room_for == "grows"


def test_shrinking_jobs_keep_slots_that_they_hold() -> None:
    wide = job("wide", 4, live=True)
    held = {"wide": [("a", 0), ("a", 1), ("b", 0), ("b", 1)]}
    snapshot = snapshot_of([node_of("a"), node_of("b")], [wide, job("new", state=JobState.PENDING)], held)
    found = placed(snapshot, wide=2, new=1)
    assert found["wide"] == Placement(allocation={"a": (0, 1)}, step=GO)
    assert found["new"] == Placement(allocation={"b": (0,)}, step=WAIT, waits_for=("wide",))


def test_free_slots_of_nodes_that_take_no_jobs_are_not_used() -> None:
    nodes = [node_of("a", state=NodeState.CORDONED), node_of("b"), node_of("c", reclaim_at=NOW)]
    found = placed(snapshot_of(nodes, [job("j", 2, state=JobState.PENDING)]), j=2)
    assert found["j"] == Placement(allocation={"b": (0, 1)}, step=GO)
