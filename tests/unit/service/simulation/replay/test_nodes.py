"""Tests of nodes that fail, and of spot nodes that come and go."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.registry import policy
from service.simulation.model.spot import changes_of
from service.simulation.model.world import SpotTrace, World
from service.simulation.replay.engine import replay
from service.simulation.replay.nodes import ReplayNodes
from tests.unit.service.simulation.scenes import EVERY_MINUTE, KINDS, STEADY, everyone_gets, scripted, world

GAP_S = 50.0


def with_spot(*available: int) -> World:
    """Return a world with one long job on a cluster whose slow nodes are both spot."""
    trace = SpotTrace(gap_s=GAP_S, available=available)
    slow = replace(KINDS[0], spot_nodes=2, spot=trace)
    scene = world((0.0, STEADY), rules=replace(EVERY_MINUTE, on_events=True))
    return replace(scene, kinds=(slow, KINDS[1]))


def test_a_trace_says_how_many_are_there() -> None:
    length_s, at_s, counts = changes_of(SpotTrace(gap_s=10.0, available=(2, 2, 1, 3)), 2)
    assert (length_s, at_s.tolist(), counts.tolist()) == (40.0, [0.0, 20.0, 30.0], [2, 1, 2])
    # A trace of one instance moves all nodes together.
    assert changes_of(SpotTrace(gap_s=10.0, available=(1, 0)), 4)[2].tolist() == [4, 0]


def test_a_spot_node_that_leaves_takes_its_jobs_with_it() -> None:
    found, seen = scripted(with_spot(2, 2, 0, 2, 2, 2, 2, 2, 2, 2), everyone_gets_what_fits)
    # It trains from 7 s to 100 s, is away till 150 s, and starts again.
    assert found.jobs.end_s[0] == pytest.approx(150.0 + 7.0 + (400.0 - 4 * 93.0) / 4)
    assert (found.jobs.restarts[0], found.jobs.lost_s[0]) == (1, 14.0)
    room = {
        at_s: given.rows[0].capacity
        for at_s, (given, _) in zip(found.rounds.time_s, seen.rounds, strict=True)
    }
    assert (room[60.0], room[100.0], room[120.0], room[150.0]) == (4.0, 0.0, 0.0, 4.0)


def everyone_gets_what_fits(given: RoundInput) -> list[int]:
    """Give all slow slots to the only job, if both nodes are present."""
    return [2 if given.rows[0].capacity == 4.0 else -1]


def test_a_failure_takes_work_back_to_the_last_checkpoint() -> None:
    rules = replace(EVERY_MINUTE, failures_per_node_h=20.0, repair_s=60.0, checkpoint_s=50.0, on_events=True)
    scene = world(*[(0.0, STEADY)] * 2, rules=rules, seed=5)
    found = replay(scene, policy("goodput"))
    again = found.jobs.restarts > 0
    assert np.isfinite(found.jobs.end_s).all()
    assert again.any(), "no job lost a node: choose another seed"
    segments = found.segments
    slots = scene.configurations.slots[segments.column]
    held = np.bincount(segments.job, (segments.to_s - segments.from_s) * slots)
    assert (held >= 400.0).all()
    assert (found.jobs.lost_s[again] >= 14.0).all()
    assert found.rounds.slots_present.min() < 8


@pytest.mark.parametrize(
    ("column", "checkpoint_s", "expected_s"),
    [
        pytest.param(0, None, math.sqrt(2 * 7200) - 1, id="a node is lost every two hours"),
        pytest.param(2, None, math.sqrt(2 * 3600) - 1, id="one of two nodes is lost every hour"),
        pytest.param(2, 50.0, 50.0, id="a fixed interval"),
        pytest.param(2, 0.0, 0.0, id="a checkpoint at every moment"),
    ],
)
def test_jobs_save_at_the_interval_of_ranks_on_such_nodes(
    column: int, checkpoint_s: float | None, expected_s: float
) -> None:
    rules = replace(EVERY_MINUTE, failures_per_node_h=0.5, checkpoint_s=checkpoint_s)
    nodes = ReplayNodes(world((0.0, STEADY), rules=rules, seed=3))
    nodes.place(np.array([0]), np.array([column]))
    lost: list[tuple[list[int], list[float]]] = []
    while not lost:
        lost = [(rows.tolist(), every_s.tolist()) for rows, every_s in nodes.advance(nodes.next_s)]
    assert lost == [([0], [pytest.approx(expected_s)])]


def test_what_leaves_comes_back_when_the_trace_begins_anew() -> None:
    scene = with_spot(0, 2)
    scene = replace(scene, rules=replace(scene.rules, give_up_s=300.0))
    found, _ = scripted(scene, lambda given: [-1])
    there = dict(zip(found.rounds.time_s.tolist(), found.rounds.slots_present.tolist(), strict=True))
    assert [there[at_s] for at_s in (0.0, 50.0, 100.0, 150.0, 200.0)] == [4, 8, 4, 8, 4]


@pytest.mark.parametrize("name", ["goodput", "sia", "fifo"])
def test_nobody_holds_what_is_away(name: str) -> None:
    trace = SpotTrace(gap_s=30.0, available=(2, 1, 0, 1, 2))
    rules = replace(EVERY_MINUTE, on_events=True, failures_per_node_h=1.0)
    scene = world(*[(20.0 * index, STEADY) for index in range(4)], rules=rules)
    scene = replace(scene, kinds=(replace(KINDS[0], spot_nodes=2, spot=trace), KINDS[1]))
    found = replay(scene, policy(name))
    assert (found.rounds.slots_used <= found.rounds.slots_present).all()
    assert np.isfinite(found.jobs.end_s).all()


def test_without_events_nodes_stay() -> None:
    found, _ = scripted(world((0.0, STEADY)), everyone_gets(0))
    assert set(found.rounds.slots_present.tolist()) == {8}
