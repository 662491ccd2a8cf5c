"""Tests of sweeps: every engine returns the same replays in the same order."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from service.domain.policies.registry import policy
from service.simulation.model.world import BadInput, ClusterRules, View
from service.simulation.sweep import Engine, Point, sweep
from tests.unit.service.simulation.scenes import STEADY, world

SCENE = world(
    (0.0, STEADY),
    (10.0, STEADY),
    rules=ClusterRules(view=View.ORACLE, failures_per_node_h=20.0, repair_s=60.0),
)
POLICIES = {"fifo": policy("fifo"), "ours": policy("goodput")}


def test_processes_give_what_one_gives() -> None:
    told: list[float] = []
    alone = list(sweep(SCENE, POLICIES, (1, 2), on_progress=told.append))
    assert [point for point, _ in alone] == [Point(name, seed) for name in POLICIES for seed in (1, 2)]
    assert told == sorted(told)
    assert told[-1] == 1.0
    ends_s = [found.jobs.end_s.tolist() for _, found in alone]
    assert ends_s[0] != ends_s[1]
    together = sweep(SCENE, POLICIES, (1, 2), parallel=2)
    assert [found.jobs.end_s.tolist() for _, found in together] == ends_s


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_an_engine_that_is_not_installed_is_named() -> None:
    with pytest.raises(BadInput, match="ray is not installed"):
        next(sweep(SCENE, POLICIES, (1,), parallel=2, engine=Engine.RAY))
