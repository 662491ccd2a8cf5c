"""Changes that take their time, as they do live: what jobs train, hold and let others have meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.notes import MIN_RUNTIME_S
from service.domain.allocation.round import LIVE_CHANGE_S, RESTART_S
from service.domain.policies.policy import RoundInput
from service.domain.policies.registry import policy
from service.simulation.engine import replay
from service.simulation.world import BadInput, Latencies, Replay, Rules, SpotTrace, View
from tests.unit.simulation.scenes import (
    CONFIGURATIONS,
    STEADY,
    Scripted,
    anything_that_fits,
    everyone_gets,
    scripted,
    world,
)

LIVE = Rules(
    view=View.ORACLE,
    interval_s=50.0,
    on_events=True,
    live_pause_s=0.5,
    latencies=Latencies(run_s=1.0, grow_s=3.0, shrink_s=2.0, stop_s=4.0),
)
ONE, TWO, FOUR, FAST = 0, 1, 2, 3
"""Columns: slow slots, and a fast one. Starts take 7 s to the first step, and a slot trains a sample per second."""

Plan = list[tuple[float, int]]
"""From when on a job is to have which column."""


def planned(*jobs: tuple[float, Plan], rules: Rules = LIVE) -> tuple[Replay, Scripted]:
    """Steady jobs that come at these times, and get what is planned for them whenever a round asks."""
    scene = world(*[(at_s, STEADY) for at_s, _ in jobs], rules=rules)
    # What a job asks for is not looked at here: it says which job it is.
    named = tuple(replace(one, requested_slots=index + 1) for index, one in enumerate(scene.arrivals))

    def decide(seen: RoundInput) -> list[int]:
        asked = []
        for name, age_s in zip(seen.requested_slots.tolist(), seen.age_s.tolist(), strict=True):
            at_s, plan = jobs[name - 1]
            asked.append([column for from_s, column in plan if from_s <= at_s + age_s][-1])
        return asked

    return scripted(replace(scene, arrivals=named), decide)


def at(found: Replay, seen: Scripted, time_s: float) -> RoundInput:
    """What the round at this time saw."""
    return seen.rounds[found.rounds.time_s.tolist().index(time_s)][0]


def test_rounds_follow_what_happens_and_else_the_last_one() -> None:
    found, _ = planned((0.0, [(0.0, ONE)]))
    # It is given slots, runs, trains, and then nothing happens to it.
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
    found, _ = planned((0.0, [(0.0, ONE), (405.0, FOUR)]), (405.0, [(405.0, FAST)]))
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
    with pytest.raises(BadInput, match="nodes that stay"):
        replace(scene, kinds=(comes_and_goes, scene.kinds[1]))


@settings(max_examples=12, deadline=None)
@given(
    submits_s=st.sets(st.integers(-100, 900), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    latencies=st.builds(
        Latencies,
        run_s=st.sampled_from([0.0, 1.0]),
        grow_s=st.sampled_from([0.0, 3.0, 80.0]),
        shrink_s=st.sampled_from([0.0, 2.0]),
        stop_s=st.sampled_from([0.0, 60.0]),
    ),
)
def test_slots_add_up_whatever_is_decided_and_however_long_it_takes(
    submits_s: set[int], seed: int, latencies: Latencies
) -> None:
    rules = replace(LIVE, latencies=latencies)
    scene = world(*[(float(at_s), STEADY) for at_s in sorted(submits_s)], rules=rules)
    found, _ = scripted(scene, anything_that_fits(seed))
    assert (np.diff(found.rounds.time_s) > 0).all()
    assert np.isfinite(found.jobs.end_s).all()
    segments = found.segments
    for at_s in found.rounds.time_s:
        columns = segments.column[(segments.from_s <= at_s) & (at_s < segments.to_s)]
        for index, kind in enumerate(scene.kinds):
            assert CONFIGURATIONS.slots[columns[CONFIGURATIONS.kind[columns] == index]].sum() <= kind.slots


@pytest.mark.parametrize("name", ["goodput", "fifo", "srtf", "sia", "budget"])
def test_every_policy_brings_all_jobs_to_their_end(name: str) -> None:
    rules = replace(LIVE, view=View.LEARNED, interval_s=5.0)
    found = replay(world(*[(30.0 * index, STEADY) for index in range(8)], rules=rules), policy(name))
    assert np.isfinite(found.jobs.end_s).all()
