"""Climbs to the best batch: their time by hand, and replays in which the first job of a class is late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.perf.batch import ENOUGH_STEPS
from service.domain.policies.fifo import Fifo
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import (
    Application,
    Arrival,
    BatchStages,
    ClusterRules,
    Kind,
    Steps,
    View,
    World,
)
from service.simulation.replay.climbs import Climbs
from service.simulation.replay.engine import replay

ONE, TWO = 0, 1
"""Columns of one and two slots."""
STEP_S = np.array([[[1.0, 1.0], [1.5, 1.25], [3.0, 2.0], [6.0, 4.0]]])
GOODPUT = np.array([[[64.0, 64.0], [80.0, 96.0], [60.0, 120.0], [40.0, 100.0]]])
"""Goodput at 64, 128, 256 and 512 samples a step: one slot is best at 128, two slots at 256."""


def world(arrivals: int = 1, *, submit_s: float = 0.0, stages: bool = True) -> World:
    kinds = (Kind(name="cpu", node_slots=(2,)),)
    configurations = configurations_of(kinds)
    assert configurations.slots.tolist() == [1, 2]
    best = GOODPUT.max(axis=1)
    steps = Steps(
        global_batch=np.array([[128.0, 256.0]]),
        accumulation=np.ones((1, 2)),
        step_s=np.array([[1.5, 2.0]]),
        sync_s=np.full((1, 2), np.nan),
        noise_scale=np.array([1000.0]),
        reference_batch=64.0,
        max_batch=512.0,
        max_local=np.array([np.inf]),
        stages=BatchStages(batch=64.0 * 2.0 ** np.arange(4), step_s=STEP_S, goodput=GOODPUT)
        if stages
        else None,
    )
    application = Application(
        name="gpt", boundaries=np.array([0.0, 80_000.0]), goodput=best, restart_s=10.0, steps=steps
    )
    return World(
        kinds=kinds,
        configurations=configurations,
        applications=(application,),
        arrivals=tuple(
            Arrival(id=f"gpt-{number}", submit_s=number * submit_s, application=0, max_slots=1)
            for number in range(arrivals)
        ),
        rules=ClusterRules(view=View.ORACLE, on_events=True),
    )


def climbs(jobs: int = 1) -> Climbs:
    return Climbs(world(), np.zeros(jobs, dtype=np.int64))


def begin(one: Climbs, column: int, *, starts: bool, row: int = 0) -> None:
    one.begin(np.array([row]), np.array([0]), np.array([column]), np.array([starts]))


def clock(one: Climbs, trained_s: float, row: int = 0) -> float:
    return float(one.clock_after(np.array([row]), np.array([trained_s]))[0])


def note(one: Climbs, trained_s: float, row: int = 0) -> None:
    one.note(np.array([row]), np.array([trained_s]))


def test_the_first_job_of_a_class_doubles_its_batch_up_to_the_best_one() -> None:
    """Two slots: 100 steps of 1 s at 64 of 120 samples/s, then 100 steps of 1.25 s at 96 of 120."""
    one = climbs()
    begin(one, TWO, starts=True)
    assert clock(one, 50.0) == pytest.approx(50 * 64 / 120)
    assert clock(one, 225.0) == pytest.approx(100 * 64 / 120 + 125 * 96 / 120)
    assert clock(one, 1225.0) == pytest.approx(100 * 64 / 120 + 125 * 96 / 120 + 1000)


def test_a_change_brings_twice_the_largest_batch_that_was_tried() -> None:
    one = climbs()
    begin(one, ONE, starts=True)
    note(one, 10.0)
    begin(one, TWO, starts=False)
    assert clock(one, 125.0) == pytest.approx(125 * 96 / 120), "from 128, since 64 was tried"
    note(one, 125.0)
    begin(one, TWO, starts=False)
    assert clock(one, 125.0) == 125.0, "256 comes with the change"


def test_a_start_has_what_other_jobs_of_the_class_have_tried() -> None:
    one = climbs(3)
    begin(one, TWO, starts=True)
    note(one, 1000.0)
    begin(one, TWO, starts=True, row=1)
    assert clock(one, 100.0, row=1) == 100.0
    begin(one, TWO, starts=False, row=2)
    assert clock(one, 100.0, row=2) == pytest.approx(64 / 120 * 100), "a change has only its own"


def test_a_job_that_has_not_trained_has_tried_nothing() -> None:
    one = climbs()
    begin(one, TWO, starts=True)
    note(one, 0.0)
    begin(one, TWO, starts=True)
    assert clock(one, 100.0) == pytest.approx(64 / 120 * 100)


@given(st.floats(0, 1e6), st.sampled_from([ONE, TWO]), st.floats(0, 500))
def test_the_clock_is_behind_and_the_two_ways_agree(trained_s: float, column: int, before_s: float) -> None:
    one = climbs()
    begin(one, ONE, starts=True)
    note(one, before_s)
    begin(one, column, starts=False)
    behind = clock(one, trained_s)
    assert behind <= trained_s
    back = one.trained_after(np.array([0]), np.array([behind]))[0]
    assert back == pytest.approx(trained_s, abs=1e-6)


def test_without_stages_a_job_has_its_best_batch_from_the_start() -> None:
    one = Climbs(world(stages=False), np.zeros(1, dtype=np.int64))
    begin(one, TWO, starts=True)
    note(one, 10.0)
    assert clock(one, 7.0) == 7.0


def test_a_replay_is_late_by_the_climb_of_the_first_job_only() -> None:
    """One slot: 100 steps of 1 s at 64 instead of 80 samples/s are 20 s behind."""
    done = replay(world(2, submit_s=2000.0), Fifo()).jobs
    took_s = done.end_s - done.start_s
    assert took_s.tolist() == pytest.approx([10 + 1000 + ENOUGH_STEPS * 1.0 * (1 - 64 / 80), 10 + 1000])
    flat = replay(world(2, submit_s=2000.0, stages=False), Fifo()).jobs
    assert (flat.end_s - flat.start_s).tolist() == pytest.approx([1010, 1010])


def test_a_policy_that_keeps_batches_does_not_climb() -> None:
    given_world = world()
    (application,) = given_world.applications
    assert application.steps is not None
    reference = replace(
        application, goodput=GOODPUT[:, 0], steps=replace(application.steps, stages=None, max_batch=64.0)
    )
    kept = replace(given_world, applications=(replace(application, at_reference=reference),))
    done = replay(kept.at_reference_batches(), Fifo()).jobs
    assert (done.end_s - done.start_s).tolist() == pytest.approx([10 + 80_000 / 64])
