"""Tests of the policies' views: they depend only on past steps, and approach the truth over time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.registry import policy
from service.simulation.model.world import ClusterRules, View, World
from service.simulation.replay.engine import replay
from tests.unit.service.simulation.scenes import CONFIGURATIONS, STEADY, everyone_gets, scripted, world

LEARNED = ClusterRules(view=View.LEARNED, measurement_noise=0.05)


def doubles(given: RoundInput) -> list[int]:
    """Choose the largest size that may be tried on slow nodes."""
    return [
        int(np.flatnonzero(row & (CONFIGURATIONS.kind == 0)).max(initial=NOTHING)) for row in given.allowed
    ]


def long(scene: World) -> World:
    return replace(scene, arrivals=tuple(replace(one, work=4000.0) for one in scene.arrivals))


def test_a_job_starts_small_and_may_grow_to_twice_what_it_tried() -> None:
    _, seen = scripted(long(world((0.0, STEADY), rules=replace(LEARNED, measurement_noise=0.0))), doubles)
    first = seen.rounds[0][0]
    assert CONFIGURATIONS.slots[first.allowed[0]].tolist() == [1, 1]
    sizes = [CONFIGURATIONS.slots[chosen[0]] for _, chosen in seen.rounds]
    assert sorted(set(sizes)) == [1, 2, 4]
    assert all(after <= 2 * before for before, after in pairwise(sizes))


def test_what_was_measured_is_near_the_truth_and_not_exact() -> None:
    _, seen = scripted(long(world((0.0, STEADY), rules=LEARNED)), doubles)
    last, chosen = seen.rounds[-1]
    believed = last.goodput[0, chosen[0]]
    assert believed == pytest.approx(CONFIGURATIONS.slots[chosen[0]], rel=0.2)
    assert believed != CONFIGURATIONS.slots[chosen[0]]


def test_a_class_that_ran_speaks_for_its_next_job() -> None:
    # Half a sample per second and slot, which no prior predicts.
    halved = replace(STEADY, goodput=STEADY.goodput / 2)
    scene = world((0.0, STEADY), (900.0, STEADY), rules=LEARNED)
    _, seen = scripted(replace(scene, applications=(halved, *scene.applications[1:])), everyone_gets(0))
    fresh = [given.goodput[0, 0] for given, _ in seen.rounds if given.current[0] == NOTHING]
    assert len(fresh) == 2
    assert abs(np.log(fresh[1] / 0.5)) < 0.2 < abs(np.log(fresh[0] / 0.5))


def test_only_lengths_that_are_declared_are_seen() -> None:
    scene = world((0.0, STEADY), (0.0, STEADY))
    silent = replace(scene.arrivals[1], declares_length=False)
    _, seen = scripted(replace(scene, arrivals=(scene.arrivals[0], silent)), everyone_gets(0))
    assert np.isnan(seen.rounds[0][0].remaining).tolist() == [False, True]


def test_what_is_seen_does_not_depend_on_the_future() -> None:
    """Until a job ends or another is submitted, two worlds that differ only later are equal."""
    short, more = world((0.0, STEADY), rules=LEARNED), world((0.0, STEADY), (300.0, STEADY), rules=LEARNED)
    rounds = [scripted(scene, everyone_gets(0))[1].rounds[:4] for scene in (short, long(short), more)]
    for other in rounds[1:]:
        for (one, _), (two, _) in zip(rounds[0], other, strict=True):
            assert one.goodput.tolist() == two.goodput.tolist()
            assert one.allowed.tolist() == two.allowed.tolist()


def test_learning_costs_time_but_everything_ends() -> None:
    jobs = [(50.0 * index, STEADY) for index in range(8)]
    mean_s = {}
    for view in View:
        scene = long(world(*jobs, rules=ClusterRules(view=view)))
        found = replay(scene, policy("goodput"))
        mean_s[view] = float((found.jobs.end_s - found.jobs.submit_s).mean())
    assert mean_s[View.ORACLE] < mean_s[View.LEARNED] < 1.5 * mean_s[View.ORACLE]


@pytest.mark.parametrize(("left_s", "is_enough"), [(700.0, True), (300.0, False)])
def test_a_deadline_is_judged_by_what_was_learned(left_s: float, is_enough: bool) -> None:
    """One slot takes about 407 s. The first job has shown sizes up to four when the second one comes."""
    scene = world((0.0, STEADY), (700.0, STEADY), rules=LEARNED)
    first, second = scene.arrivals
    scene = replace(
        scene, arrivals=(replace(first, work=4_000.0), replace(second, deadline_s=720.0 + left_s))
    )
    _, seen = scripted(scene, lambda given: [*doubles(given)[:1], *[NOTHING] * (len(given.current) - 1)])
    given = next(one for one, _ in seen.rounds if len(one.current) == 2)
    slots = given.configurations.slots
    assert given.allowed[1, slots == 1].any() == is_enough
    assert given.allowed[1, slots == 4].any()
