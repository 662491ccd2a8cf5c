"""Tests of the replay engine: results equal those computed by hand, and no work is lost under any decisions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.budget import BudgetState, stored_state
from service.domain.policies.framework.checked import PolicyFailed
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.registry import policy
from service.domain.shared.arrays import FloatArray, IntArray
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import Arrival, BadInput, ClusterRules, PriorService, Replay, View, World
from service.simulation.replay.engine import replay
from service.simulation.replay.metrics import summary
from service.simulation.replay.policy_state import PolicyState
from tests.unit.service.simulation.scenes import (
    CONFIGURATIONS,
    EVERY_MINUTE,
    KINDS,
    SPEEDING,
    STEADY,
    anything_that_fits,
    everyone_gets,
    scripted,
    world,
)

LIVE = replace(EVERY_MINUTE, live_pause_s=1.0)
ON_EVENTS = replace(EVERY_MINUTE, on_events=True)


def test_one_job_ends_when_arithmetic_says() -> None:
    found, _ = scripted(world((10.0, STEADY)), everyone_gets(1))
    jobs = found.jobs
    assert jobs.start_s.tolist() == [60.0]  # The first round after its submission.
    assert jobs.end_s[0] == pytest.approx(60.0 + 7.0 + 400.0 / 2)
    assert jobs.served_slot_s[0] == pytest.approx(2 * (7.0 + 200.0))
    assert (jobs.changes[0], jobs.restarts[0], jobs.lost_s[0]) == (0, 0, 7.0)
    assert found.end_s == jobs.end_s[0]


def test_early_end_frees_the_slots_at_once_and_keeps_what_was_served() -> None:
    scene = replace(world((0.0, STEADY), (0.0, STEADY)), rules=EVERY_MINUTE)
    seen: list[float] = []

    def first_ends_at_100(rows: IntArray, progress: FloatArray) -> Any:
        seen.extend(progress[rows == 0].tolist())
        return (rows == 0) & (progress >= 100.0)

    whole = replay(scene, policy("goodput"))
    found = replay(scene, policy("goodput"), early_ends=first_ends_at_100)
    assert found.jobs.end_s[0] < whole.jobs.end_s[0]
    assert found.jobs.end_s[0] % 60.0 == 0.0
    assert seen == sorted(seen)
    assert seen[-1] >= 100.0
    assert found.jobs.served_slot_s[0] < whole.jobs.served_slot_s[0]
    assert np.isfinite(found.jobs.end_s).all()
    held = found.segments.to_s[found.segments.job == 0]
    assert held.max() == found.jobs.end_s[0]
    later = found.rounds.time_s > found.jobs.end_s[0]
    assert (found.rounds.running[later] <= 1).all()


def test_a_policy_that_keeps_batches_has_the_speed_of_the_users_batch() -> None:
    twice = replace(STEADY, goodput=2.0 * STEADY.goodput, at_reference=STEADY)
    given = replace(world((0.0, STEADY)), applications=(twice,))
    ends = {name: replay(given, policy(name)).jobs.end_s[0] for name in ("elastic-dp", "elastic-fixed")}
    plain = replay(replace(given, applications=(STEADY,)), policy("elastic-dp")).jobs.end_s[0]
    assert ends["elastic-fixed"] == plain > ends["elastic-dp"]
    assert given.at_reference_batches().applications[0] is STEADY
    assert given.at_reference_batches().at_reference_batches().applications[0] is STEADY


def test_the_speed_is_that_of_each_phase() -> None:
    found, seen = scripted(world((0.0, SPEEDING)), everyone_gets(0))
    assert found.jobs.end_s[0] == pytest.approx(60.0 + 5.0 + 60.0 + 300.0 / 3)
    at_180_s = seen.rounds[2][0]
    assert at_180_s.remaining[0] == pytest.approx(300.0 - 3 * (180.0 - 125.0))
    assert at_180_s.goodput[0, 0] == 3.0


def test_the_work_of_a_job_stretches_its_phases() -> None:
    scene = world((0.0, SPEEDING))
    scene = replace(scene, arrivals=(replace(scene.arrivals[0], work=720.0, done=60.0),))
    found, _ = scripted(scene, everyone_gets(0))
    # 120 samples at rate 1, of which 60 are done, and 600 at rate 3.
    assert found.jobs.end_s[0] == pytest.approx(60.0 + 5.0 + 60.0 + 600.0 / 3)


def test_a_deadline_is_kept_that_the_policy_alone_would_miss() -> None:
    """The same rule as in the service: four jobs share the cluster, and the last one needs four slots."""
    due_s = 190.0
    scene = world(*[(0.0, STEADY)] * 4, rules=LIVE)
    last = replace(scene.arrivals[3], deadline_s=due_s, weight=0.001)
    for arrival, in_time in ((last, True), (replace(last, deadline_s=math.inf), False)):
        found = replay(replace(scene, arrivals=(*scene.arrivals[:3], arrival)), policy("goodput"))
        assert bool(found.jobs.end_s[3] <= due_s) is in_time


def test_a_promise_precedes_an_earlier_deadline() -> None:
    scene = world((0.0, STEADY), (0.0, STEADY), rules=LIVE)
    both = [replace(one, deadline_s=170.0 + index, min_slots=4) for index, one in enumerate(scene.arrivals)]
    # One node of four slots for two jobs: only one of them ends in time.
    small = replace(scene, kinds=KINDS[1:], configurations=configurations_of(KINDS[1:]))
    goodput = np.tile(small.configurations.slots * 1.0, (2, 1))
    small = replace(small, applications=tuple(replace(one, goodput=goodput) for one in scene.applications))
    for promised in (0, 1):
        arrivals = tuple(replace(one, promised=index == promised) for index, one in enumerate(both))
        found = replay(replace(small, arrivals=arrivals), policy("goodput"))
        assert (found.jobs.end_s <= 172.0).tolist() == [promised == 0, promised == 1]


@pytest.mark.parametrize(("rules", "pause_s", "restarts"), [(EVERY_MINUTE, 7.0, 1), (LIVE, 1.0, 0)])
def test_a_change_costs_a_restart_or_a_live_pause(rules: ClusterRules, pause_s: float, restarts: int) -> None:
    def grows(given: RoundInput) -> list[int]:
        return [0 if given.age_s[0] < 300.0 else 2]

    found, seen = scripted(world((0.0, STEADY), rules=rules), grows)
    assert found.jobs.end_s[0] == pytest.approx(300.0 + pause_s + (400.0 - (240.0 - 7.0)) / 4)
    assert (found.jobs.changes[0], found.jobs.restarts[0]) == (1, restarts)
    assert found.jobs.lost_s[0] == pytest.approx(7.0 + pause_s)
    assert seen.rounds[0][0].change_s[0] == pause_s


@pytest.mark.parametrize(("rules", "from_s"), [(EVERY_MINUTE, 300.0), (LIVE, 120.0)])
@pytest.mark.parametrize("others", [0, 2])
def test_a_restarted_job_grows_only_once_no_job_is_expected_within_its_minimum_run_time(
    rules: ClusterRules, from_s: float, others: int
) -> None:
    """A restart of 7 s has to last for 147 s. The node of four slots has no room for two more jobs beside the larger size."""

    def first_grows(given: RoundInput) -> list[int]:
        return [2 if given.age_s[0] >= 120.0 and given.allowed[0, 2] else 0, *[NOTHING] * others]

    scene = world(*[(float(number), STEADY) for number in range(1 + others)], rules=rules)
    _, seen = scripted(scene, lambda given: first_grows(given)[: len(given.current)])
    grown_s = [given.age_s[0] for given, chosen in seen.rounds if chosen[0] == 2]
    assert grown_s[0] == from_s


def test_a_start_from_nothing_is_a_restart_even_where_changes_are_live() -> None:
    def stops_for_a_round(given: RoundInput) -> list[int]:
        return [NOTHING if given.age_s[0] == 120.0 else 0]

    found, seen = scripted(world((0.0, STEADY), rules=LIVE), stops_for_a_round)
    assert found.jobs.end_s[0] == pytest.approx(180.0 + 7.0 + 400.0 - (60.0 - 7.0))
    assert found.jobs.restarts[0] == 1
    assert [one.waited_s[0] for one, _ in seen.rounds[:4]] == [60.0, 0.0, 60.0, 0.0]


def test_rounds_follow_events_where_they_should() -> None:
    found, seen = scripted(world((10.0, STEADY), (500.0, STEADY), rules=ON_EVENTS), everyone_gets(0))
    assert found.jobs.start_s.tolist() == [10.0, 500.0]
    assert found.jobs.end_s.tolist() == [417.0, 907.0]
    times_s = found.rounds.time_s
    assert np.diff(times_s[times_s < 417.0]).max() <= 60.0
    assert len(seen.rounds) == len(times_s)


def test_what_is_there_at_the_start_goes_on() -> None:
    scene = world((0.0, STEADY))
    old = Arrival(id="old", submit_s=-300.0, application=0, done=200.0, holds=0)
    found, seen = scripted(replace(scene, arrivals=(old, *scene.arrivals)), everyone_gets(0))
    assert found.jobs.end_s.tolist() == [200.0, 60.0 + 7.0 + 400.0]
    assert found.jobs.served_slot_s[0] == 200.0
    first = seen.rounds[0][0]
    assert (first.age_s.tolist(), first.current.tolist()) == ([360.0, 60.0], [0, NOTHING])


def test_policies_see_what_a_job_had_before_and_figures_do_not() -> None:
    scene = world((0.0, STEADY))
    had = PriorService(served_s=(200.0, 30.0), served_slot_s=500.0, changes=3, waited_s=0.0)
    runs = Arrival(id="runs", submit_s=-300.0, application=0, holds=0, before=had)
    waits = Arrival(id="waits", submit_s=-200.0, application=0, before=replace(had, waited_s=50.0))
    found, seen = scripted(replace(scene, arrivals=(runs, waits)), everyone_gets(0))
    first = seen.rounds[0][0]
    assert first.served_s.tolist() == [[260.0, 30.0], [200.0, 30.0]]
    assert first.served_slot_s.tolist() == [560.0, 500.0]
    assert first.changes.tolist() == [3, 3]
    assert first.waited_s.tolist() == [0.0, 110.0]
    assert found.jobs.served_slot_s.tolist() == [400.0, 407.0]
    assert found.jobs.changes.tolist() == [0, 0]


def test_a_budget_goes_on_with_what_it_remembers() -> None:
    state = {"budget": {"spent_usd": 5.0, "elapsed_s": 3600.0, "mu_h_per_usd": 1.0}}
    scene = world((0.0, STEADY))
    begun, goes_on = PolicyState(scene), PolicyState(replace(scene, policy_state={"state": state}))
    assert stored_state(begun.state)[0] == BudgetState()
    assert stored_state(goes_on.state)[0] == BudgetState(mu_h_per_usd=1.0, spent_usd=5.0, elapsed_s=3600.0)


def test_a_budget_learns_undeclared_lengths_at_the_end_of_jobs() -> None:
    scene = world((0.0, STEADY), (0.0, STEADY), (0.0, STEADY))
    declared, silent, late = scene.arrivals
    silent = replace(silent, declares_length=False)
    before = PriorService(served_s=(9.0, 0.0), served_slot_s=9.0, changes=0, waited_s=0.0, done=80.0)
    silent, late = replace(silent, before=before), replace(late, submit_s=2000.0)
    learned = policy("budget", {})
    told: list[Any] = []

    class Listening:
        """The budget policy, which notes what each round tells it."""

        name = "budget"

        def choose(self, given: RoundInput, solve: Any) -> Any:
            return learned.choose(given, solve)

        def advance(self, given: RoundInput, history: Any) -> Any:
            told.append(([*history.ended], np.isfinite(history.samples).tolist()))
            _, state = learned.advance(given, history)  # type: ignore[attr-defined]
            return self, state

    found = replay(replace(scene, arrivals=(declared, silent, late)), Listening())
    assert np.isfinite(found.jobs.end_s).all()
    assert told[0] == ([], [True, False])
    name = scene.applications[silent.application].name
    assert [one for ended, _ in told for one in ended] == [(name, 480.0)], "with the work before the replay"


def test_a_policy_that_gives_nothing_leaves_jobs_unfinished() -> None:
    rules = replace(EVERY_MINUTE, give_up_s=600.0)
    found, _ = scripted(world((0.0, STEADY), rules=rules), everyone_gets(NOTHING))
    figures = summary(found)
    assert (figures["unfinished"], figures["rounds"]) == (1, 11)
    assert figures["avg_jct_h"] == pytest.approx(660.0 / 3600)


def test_too_much_is_refused() -> None:
    with pytest.raises(PolicyFailed, match="6 of 4 slots/slow"):
        scripted(world(*[(0.0, STEADY)] * 3), everyone_gets(1))


def test_what_a_job_may_not_have_is_refused() -> None:
    scene = world((0.0, STEADY))
    small = replace(scene, arrivals=(replace(scene.arrivals[0], max_slots=1),))
    with pytest.raises(PolicyFailed, match="may not have"):
        scripted(small, everyone_gets(1))


def test_dollars_are_those_of_the_kinds_that_were_held() -> None:
    found, _ = scripted(world((0.0, STEADY)), everyone_gets(3))
    assert found.jobs.usd[0] == pytest.approx(3.0 * 407.0 / 3600)
    assert found.rounds.usd_per_h[0] == 3.0


def test_jobs_on_an_equal_share_of_their_own_are_treated_fairly() -> None:
    whole = [2, int(np.flatnonzero((CONFIGURATIONS.kind == 1) & (CONFIGURATIONS.slots == 4))[0])]
    scene = world((0.0, STEADY), (0.0, STEADY), rules=ON_EVENTS)
    found, _ = scripted(scene, lambda seen: whole[: len(seen.current)])
    figures = summary(found)
    assert figures["worst_fairness"] == pytest.approx(1.0)
    assert figures["avg_jct_h"] == pytest.approx(107.0 / 3600)
    assert figures["gpu_h"] == pytest.approx(8 * 107.0 / 3600)
    assert figures["utilisation"] == pytest.approx(1.0)
    assert figures["lost_share"] == pytest.approx(7.0 / 107.0)
    assert set(found.rounds.goodput.tolist()) == {8.0}


@pytest.mark.parametrize("view", list(View))
def test_a_world_without_jobs_is_over_at_once(view: View) -> None:
    found = replay(world(rules=ClusterRules(view=view)), policy("goodput"))
    figures = summary(found)
    assert found.end_s == 0.0
    assert set(figures.values()) == {0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_s": 0.0},
        {"interval_s": math.nan},
        {"failures_per_node_h": -1.0},
        {"live_pause_s": math.inf},
    ],
)
def test_rules_that_no_cluster_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        replace(EVERY_MINUTE, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"submit_s": math.nan},
        {"work": 0.0},
        {"work": math.inf},
        {"done": -1.0},
        {"submit_s": 1.0, "holds": 0},
    ],
)
def test_jobs_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    scene = world((0.0, STEADY))
    with pytest.raises(BadInput, match="job-0"):
        replace(scene, arrivals=(replace(scene.arrivals[0], **wrong),))


def test_progress_is_told_and_can_end_it() -> None:
    told: list[float] = []
    scene = world(*[(600.0 * index, STEADY) for index in range(20)])
    replay(scene, policy("fifo"), on_progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0

    def stop(share: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        replay(scene, policy("fifo"), on_progress=stop)


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("name", ["goodput", "budget", "fifo"])
def test_the_same_seed_gives_the_same_replay(name: str, view: View) -> None:
    rules = ClusterRules(view=view, failures_per_node_h=2.0, repair_s=100.0)
    scene = world(*[(100.0 * index, STEADY) for index in range(6)], rules=rules, seed=3)
    first, second = (replay(scene, policy(name)) for _ in range(2))
    assert first.jobs.end_s.tolist() == second.jobs.end_s.tolist()
    assert first.segments.column.tolist() == second.segments.column.tolist()
    assert summary(first)["unfinished"] == 0


@settings(max_examples=20, deadline=None)
@given(
    submits_s=st.sets(st.integers(-100, 900), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    live_pause_s=st.sampled_from([None, 1.0]),
)
def test_work_and_slots_add_up_whatever_is_decided(
    submits_s: set[int], seed: int, live_pause_s: float | None
) -> None:
    rules = replace(EVERY_MINUTE, live_pause_s=live_pause_s, on_events=live_pause_s is not None)
    scene = world(*[(float(at_s), STEADY) for at_s in sorted(submits_s)], rules=rules)
    found, seen = scripted(scene, anything_that_fits(seed))
    assert (np.diff(found.rounds.time_s) > 0).all()
    assert np.isfinite(found.jobs.end_s).all()
    _check_work(found)
    _check_slots(found, scene)
    for one, _ in seen.rounds:
        assert (one.remaining >= -1e-9).all()
        assert (one.age_s >= 0).all()


def _check_work(found: Replay) -> None:
    """Check that work is slot-seconds without the lost ones, and that service and cost are those of the segments."""
    segments, jobs = found.segments, found.jobs
    held_s = segments.to_s - segments.from_s
    slots = CONFIGURATIONS.slots[segments.column]
    assert (held_s >= 0).all()
    number = len(jobs.id)
    assert np.bincount(segments.job, held_s * slots, number) == pytest.approx(jobs.served_slot_s)
    usd = np.bincount(segments.job, held_s * CONFIGURATIONS.usd_per_h[segments.column], number) / 3600
    assert usd == pytest.approx(jobs.usd)
    for job in range(number):
        mine = np.flatnonzero(segments.job == job)
        order = mine[np.argsort(segments.from_s[mine], kind="stable")]
        work = _work_of(found.world.rules, segments.from_s[order], segments.to_s[order], slots[order])
        assert work == pytest.approx(400.0)
        assert (segments.from_s[order][1:] >= segments.to_s[order][:-1]).all()


def _work_of(rules: ClusterRules, from_s: FloatArray, to_s: FloatArray, slots: IntArray) -> float:
    """Return the work of a job, step by step.

    Every start costs 7 s. A change of slots costs that too, or the live pause, which is added to a start in
    progress.
    """
    work, before_s, ready_s = 0.0, -1.0, 0.0
    for start_s, end_s, width in zip(from_s.tolist(), to_s.tolist(), slots.tolist(), strict=True):
        live = start_s == before_s and rules.live_pause_s is not None
        ready_s = max(ready_s, start_s) + 1.0 if live else start_s + 7.0
        work += width * max(end_s - max(start_s, ready_s), 0.0)
        before_s = end_s
    return work


def _check_slots(found: Replay, scene: World) -> None:
    """Check that no slot is used twice at any time."""
    segments = found.segments
    for at_s in found.rounds.time_s:
        now = (segments.from_s <= at_s) & (at_s < segments.to_s)
        columns = segments.column[now]
        for index, kind in enumerate(scene.kinds):
            of_kind = CONFIGURATIONS.kind[columns] == index
            assert CONFIGURATIONS.slots[columns[of_kind]].sum() <= kind.slots
