"""Tests of what policies see of ended jobs in a replay: their classes, work, run times and loss curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.simulation.model.world import PriorService
from tests.unit.service.simulation.scenes import SPEEDING, STEADY, everyone_gets, scripted, world


def test_policies_see_the_loss_curve_so_far_and_how_far_jobs_train_beyond_it() -> None:
    scene = world((0.0, SPEEDING), (400.0, SPEEDING))
    curve = np.array([np.nan, 100.0, 90.0])
    scene = replace(scene, applications=tuple(replace(one, converged=curve) for one in scene.applications))
    _, seen = scripted(scene, everyone_gets(0))
    given = [one[0] for one in seen.rounds]
    assert np.isnan(given[0].converged[0])
    first = [one.converged[0] for one in given if one.done[0] >= 60.0]
    assert first[0] == 100.0
    beyond = given[-1].finished.beyond
    assert beyond.tolist() == [360.0 / 90.0]


def test_a_loss_curve_counts_the_work_before_the_replay() -> None:
    scene = world((0.0, STEADY), (400.0, STEADY))
    before = PriorService(served_s=(50.0, 0.0), served_slot_s=50.0, changes=0, waited_s=0.0, done=80.0)
    scene = replace(
        scene,
        applications=tuple(replace(one, converged=np.full(3, 96.0)) for one in scene.applications),
        arrivals=(replace(scene.arrivals[0], before=before), scene.arrivals[1]),
        ended={"of yesterday": ((5.0, 3.0, 2.5),)},
    )
    _, seen = scripted(scene, everyone_gets(0))
    given = [one[0] for one in seen.rounds]
    assert given[0].converged[0] == 96.0
    assert given[0].finished.beyond.tolist() == [2.5]
    assert given[-1].finished.beyond.tolist() == [2.5, (80.0 + 400.0) / 96.0]


def test_policies_see_the_jobs_that_ended_and_what_present_ones_have_done() -> None:
    scene = world((0.0, STEADY), (70.0, STEADY), (500.0, SPEEDING))
    first, *others = scene.arrivals
    before = PriorService(served_s=(50.0, 0.0), served_slot_s=50.0, changes=0, waited_s=0.0, done=80.0)
    ended = {
        min(one.name for one in scene.applications): ((9.0, 4.0, np.nan),),
        "of yesterday": ((5.0, 3.0, np.nan),),
    }
    scene = replace(scene, arrivals=(replace(first, before=before), *others), ended=ended)
    found, seen = scripted(scene, everyone_gets(1))
    given = [one[0] for one in seen.rounds]
    assert all(one.done is not None and one.finished is not None for one in given)
    assert given[0].done[0] == 80.0
    assert sorted(given[0].finished.work.tolist()) == [5.0, 9.0]
    last = given[-1].finished
    assert {480.0, 400.0} <= set(last.work.tolist()), "the first has done 80 samples before its 400"
    ran_s = 50.0 + found.jobs.end_s[0] - found.jobs.start_s[0]
    assert last.run_s[last.work == 480.0] == pytest.approx([ran_s])
    of_steady = set(last.job_class[last.work >= 400.0].tolist())
    assert of_steady == {int(given[0].job_class[0])}
