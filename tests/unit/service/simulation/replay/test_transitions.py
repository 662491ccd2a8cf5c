"""Tests of changes with latencies: the training, the slots held and the slots free for others meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.domain.allocation.inputs.notes import MIN_RUNTIME_S
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S
from service.domain.policies.framework.policy import RoundInput
from service.simulation.model.world import BadInput, ClusterRules, Latencies, Replay, SpotTrace, View
from tests.unit.service.simulation.scenes import (
    CONFIGURATIONS,
    STEADY,
    Scripted,
    everyone_gets,
    scripted,
    world,
)

LIVE = ClusterRules(
    view=View.ORACLE,
    interval_s=50.0,
    on_events=True,
    live_pause_s=0.5,
    latencies=Latencies(run_s=1.0, grow_s=3.0, shrink_s=2.0, stop_s=4.0),
)
ONE, TWO, FOUR, FAST = 0, 1, 2, 3
"""Columns of slow slots and a fast one. The first step comes 7 s after a start; a slot trains a sample per second."""

Plan = list[tuple[float, int]]
"""Times from which a job is to have each column."""


def planned(
    *jobs: tuple[float, Plan], rules: ClusterRules = LIVE, declares_length: bool = True
) -> tuple[Replay, Scripted]:
    """Replay steady jobs that are submitted at these times and get their planned columns in every round."""
    scene = world(*[(at_s, STEADY) for at_s, _ in jobs], rules=rules)
    # The requested slots are not evaluated here; they identify the job.
    named = tuple(
        replace(one, requested_slots=index + 1, declares_length=declares_length)
        for index, one in enumerate(scene.arrivals)
    )

    def decide(seen: RoundInput) -> list[int]:
        asked = []
        for name, age_s in zip(seen.requested_slots.tolist(), seen.age_s.tolist(), strict=True):
            at_s, plan = jobs[name - 1]
            asked.append([column for from_s, column in plan if from_s <= at_s + age_s][-1])
        return asked

    return scripted(replace(scene, arrivals=named), decide)


def at(found: Replay, seen: Scripted, time_s: float) -> RoundInput:
    """Return the input of the round at this time."""
    return seen.rounds[found.rounds.time_s.tolist().index(time_s)][0]


def test_rounds_follow_what_happens_and_else_the_last_one() -> None:
    found, _ = planned((0.0, [(0.0, ONE)]))
    # The job is given slots, runs and trains, and then nothing else happens to it.
    assert found.rounds.time_s[:5].tolist() == [0.0, 1.0, 7.0, 57.0, 107.0]


def test_a_job_trains_on_while_its_newcomers_come_up() -> None:
    found, _ = planned((0.0, [(0.0, ONE), (57.0, FOUR)]))
    assert found.segments.to_s[0] == 60.0
    assert found.jobs.end_s[0] == pytest.approx(60.0 + 0.5 + (400.0 - 53.0) / 4)
    assert found.jobs.lost_s[0] == pytest.approx(7.0 + 0.5)


def test_slots_are_kept_for_newcomers_that_come_up() -> None:
    found, seen = planned((0.0, [(0.0, ONE), (57.0, FOUR)]), (58.0, [(58.0, NOTHING), (200.0, ONE)]))
    given_then = at(found, seen, 58.0)
    assert given_then.current.tolist() == [NOTHING], "who changes is left alone"
    assert given_then.rows[0].capacity == 0.0


@pytest.mark.parametrize(("then", "free_s"), [(ONE, 2.0), (NOTHING, 4.0), (FAST, 3.0)])
def test_what_a_job_gives_up_is_there_for_others_once_it_is_free(then: int, free_s: float) -> None:
    found, _ = planned((0.0, [(0.0, FOUR), (50.0, then), (500.0, ONE)]), (50.0, [(50.0, TWO)]))
    assert found.jobs.start_s[1] == 50.0 + free_s


def test_a_job_that_is_stopped_loses_no_work_and_trains_no_more() -> None:
    found, _ = planned((0.0, [(0.0, ONE), (57.0, NOTHING), (61.0, ONE)]))
    assert found.segments.to_s[0] == 61.0
    assert found.jobs.end_s[0] == pytest.approx(61.0 + 7.0 + 400.0 - 50.0)
    assert found.jobs.restarts[0] == 1


def test_a_job_may_end_before_its_newcomers_are_there() -> None:
    # A job that declares its length does not grow just before its end.
    plan = (0.0, [(0.0, ONE), (405.0, FOUR)]), (405.0, [(405.0, FAST)])
    found, _ = planned(*plan, declares_length=False)
    assert found.jobs.end_s[0] == 407.0
    assert np.isfinite(found.jobs.end_s).all()


def test_after_its_last_step_a_job_keeps_its_slots_for_a_while() -> None:
    scene = world((0.0, STEADY), rules=LIVE)
    slow_to_end = replace(scene, applications=tuple(replace(one, end_s=9.0) for one in scene.applications))
    found, seen = scripted(slow_to_end, everyone_gets(ONE))
    assert found.jobs.end_s[0] == 407.0 + 9.0
    assert seen.rounds[-1][0].remaining[0] >= 0


def test_a_script_says_how_long_it_is_when_it_trains() -> None:
    found, seen = planned((0.0, [(0.0, ONE)]))
    assert np.isnan(at(found, seen, 0.0).remaining[0])
    assert np.isnan(at(found, seen, 1.0).remaining[0])
    assert at(found, seen, 7.0).remaining[0] == 400.0


def test_who_was_just_started_does_not_grow() -> None:
    found, seen = planned((0.0, [(0.0, TWO)]), (20.0, [(20.0, FAST)]), (40.0, [(40.0, FAST + 1)]))
    young, old = at(found, seen, 20.0), at(found, seen, 40.0)
    slots = CONFIGURATIONS.slots
    assert slots[young.allowed[0]].max() == 2
    assert young.goodput[0].max() == 2.0, "more is worth no more to it"
    assert slots[old.allowed[0]].max() == 4
    assert 20.0 < 1.0 + MIN_RUNTIME_S < 40.0


def test_a_change_is_believed_to_cost_what_the_last_one_did() -> None:
    found, seen = planned((0.0, [(0.0, TWO), (57.0, ONE)]))
    assert [at(found, seen, time_s).change_s[0] for time_s in (0.0, 7.0, 59.0)] == [
        RESTART_S,
        LIVE_CHANGE_S,
        0.5,
    ]


@pytest.mark.parametrize(
    "wrong", [{"on_events": False}, {"live_pause_s": None}, {"failures_per_node_h": 1.0}]
)
def test_latencies_are_those_of_live_changes_on_nodes_that_stay(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="latencies"):
        replace(LIVE, **wrong)


def test_latencies_are_not_those_of_spot_nodes() -> None:
    scene = world((0.0, STEADY), rules=LIVE)
    comes_and_goes = replace(scene.kinds[0], spot_nodes=1, spot=SpotTrace(gap_s=60.0, available=(0, 1)))
    with pytest.raises(BadInput, match="neither fail nor leave"):
        replace(scene, kinds=(comes_and_goes, scene.kinds[1]))
