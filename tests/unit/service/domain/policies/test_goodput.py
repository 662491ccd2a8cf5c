from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Solution
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.framework.policy import FinishedJobs, RoundInput
from service.domain.policies.framework.work_left import LEAST_OWN_JOBS
from service.domain.policies.goodput import Goodput
from tests.unit.service.domain.policies.rounds import (
    a_round,
    brute_force,
    every_choice,
    is_feasible,
    random_round,
)


def exactly(problem: Problem) -> Solution:
    return solve(problem, gap=0.0)


def by_hand(round_: RoundInput, choice: np.ndarray, policy: Goodput) -> float:
    """The sum that the policy maximises, job by job as its docstring says."""
    goodput = round_.goodput
    slots = round_.configurations.slots
    fair = np.ceil(
        sum(row.capacity for row in round_.rows[: len(round_.configurations.kinds)]) / len(goodput)
    )
    limits = [max(slots[row > 0].min(initial=10**9), fair) for row in goodput]
    usual = np.array(
        [row[slots <= limit].max(initial=0) or 1.0 for row, limit in zip(goodput, limits, strict=True)]
    )
    known = np.isfinite(round_.remaining)
    jobs = len(choice)
    to_go = round_.remaining / usual
    time_s = np.where(known, to_go, np.maximum(round_.served_s.sum(axis=1), 600.0))

    def outlasts(one: int, other: int) -> float:
        if known[one] and known[other]:
            return 0.5 * (float(to_go[one] > to_go[other]) + float(to_go[one] >= to_go[other]))
        return float(time_s[one] / (time_s[one] + time_s[other]))

    total = 0.0
    for job, column in enumerate(choice):
        rank = 1 + sum(outlasts(other, job) for other in range(jobs) if other != job)
        waited_s = max(round_.age_s[job] - round_.served_s[job].sum(), round_.waited_s[job])
        weight = (
            round_.weight[job]
            * rank**policy.shortest_first
            * (1 + waited_s / (round_.served_s[job].sum() + policy.patience_s)) ** 2
        )
        cost, held = 2 * round_.change_s[job], round_.current[job]
        stop_s = round_.change_s if round_.stop_s is None else round_.stop_s
        stop = 2 * max(stop_s[job], round_.change_s[job])
        usual_s = max(policy.settled_s, 0.75 * round_.age_s[job] / (1 + round_.changes[job]))

        def after_change(speedup: float, cost=cost, job=job, usual_s=usual_s) -> float:
            lasts_s = min(usual_s, to_go[job] / speedup) if known[job] else usual_s
            return lasts_s / (lasts_s + cost)

        worth = 0.0
        if column >= 0:
            if goodput[job, column] == 0:
                return -np.inf
            speedup = goodput[job, column] / usual[job]
            worth = speedup**policy.p
            total += weight * worth * (1.0 if column == held else after_change(speedup)) ** policy.p
        if held >= 0 and goodput[job, held] > 0:
            speedup = goodput[job, held] / usual[job]
            given_up = max(speedup**policy.p - worth, 0.0)
            back = after_change(speedup, stop if column < 0 else cost)
            total -= weight * given_up * (1 - back)
    return total


@pytest.mark.parametrize("policy", [Goodput(), Goodput(p=1.0, shortest_first=0.0, patience_s=60.0)])
@pytest.mark.parametrize("solve_", [brute_force, exactly])
@pytest.mark.parametrize("seed", range(5))
def test_what_it_says_to_maximise_is_at_its_highest(seed: int, solve_, policy: Goodput) -> None:
    rng = np.random.default_rng(seed)
    round_ = random_round(
        seed,
        jobs=3,
        kinds=2,
        sizes=2,
        age_s=rng.uniform(100, 90000, 3),
        changes=rng.integers(0, 4, 3),
        served_s=rng.uniform(0, 50, (3, 2)),
        waited_s=rng.uniform(0, 900, 3),
    )
    choices = every_choice(3, 4)
    best = max(by_hand(round_, choice, policy) for choice in choices[is_feasible(round_.rows, choices)])
    chosen = policy.choose(round_, solve_).chosen
    assert by_hand(round_, chosen, policy) == pytest.approx(best, rel=1e-6)


TWO = [[10.0, 19.0, 28.0], [10.0, 19.0, 28.0]]


def test_the_shorter_job_gets_the_larger_share() -> None:
    round_ = a_round(TWO, [1, 2, 3], capacity=4, remaining=[1e6, 1e3])
    assert Goodput().choose(round_, brute_force).chosen.tolist() == [0, 2]


def test_jobs_of_unknown_length_share_evenly() -> None:
    round_ = a_round(TWO, [1, 2, 3], capacity=4, served_slot_s=[0.0, 1e6])
    assert Goodput().choose(round_, brute_force).chosen.tolist() == [1, 1]


def test_of_jobs_of_unknown_length_the_one_that_was_served_least_counts_most() -> None:
    round_ = a_round(TWO, [1, 2, 3], capacity=4, age_s=[7200.0, 200.0], served_s=[[7200.0], [200.0]])
    assert Goodput().choose(round_, brute_force).chosen.tolist() == [0, 2]


@pytest.mark.parametrize(("served_s", "expected"), [(36_000.0, [0, 2]), (60.0, [2, 0])])
def test_a_job_of_unknown_length_is_weighed_against_a_known_one_by_what_it_was_served(
    served_s: float, expected: list[int]
) -> None:
    """The second one, at a fair share of two slots, has an hour to go."""
    round_ = a_round(
        TWO,
        [1, 2, 3],
        capacity=4,
        remaining=[np.nan, 19.0 * 3600],
        age_s=[served_s] * 2,
        served_s=[[served_s]] * 2,
    )
    assert Goodput().choose(round_, brute_force).chosen.tolist() == expected


def test_the_job_of_higher_priority_gets_the_larger_share() -> None:
    round_ = a_round(TWO, [1, 2, 3], capacity=4, weight=[4.0, 1.0])
    assert Goodput().choose(round_, brute_force).chosen.tolist() == [2, 0]


RUNNING = {"age_s": [3600.0, 0.0], "served_s": [[3600.0], [0.0]], "served_slot_s": [3600.0, 0.0]}


def test_a_running_job_does_not_lose_all_to_an_equal_one() -> None:
    round_ = a_round([[10.0]] * 2, [1], capacity=1, current=[NOTHING, 0], change_s=[30.0] * 2)
    assert Goodput().choose(round_, brute_force).chosen.tolist() == [NOTHING, 0]


def test_a_job_shrinks_to_let_a_newcomer_start() -> None:
    round_ = a_round(TWO, [1, 2, 3], capacity=3, current=[2, NOTHING], change_s=[30.0] * 2, **RUNNING)
    assert sorted(Goodput().choose(round_, brute_force).chosen.tolist()) == [0, 1]


@pytest.mark.parametrize(("change_s", "expected"), [(1.0, [0, 2]), (250.0, [2, 0])])
def test_a_job_with_a_long_restart_is_not_sent_to_a_few_slots_for_a_short_one(
    change_s: float, expected: list[int]
) -> None:
    """The second job comes while the first one has nearly all slots, and gains much from them; each can run on one."""
    round_ = a_round(
        [[1.0, 10.0, 20.0]] * 2,
        [1, 2, 3],
        capacity=4,
        current=[2, NOTHING],
        change_s=[change_s, 5.0],
        changes=[3, 0],
        remaining=[1e6, 1e3],
        **RUNNING,
    )
    assert Goodput().choose(round_, brute_force).chosen.tolist() == expected


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    change_s=st.floats(0, 1e4),
    stop_s=st.none() | st.floats(0, 1e4),
    held=st.integers(0, 5),
)
def test_less_of_what_a_job_has_is_worth_no_more_than_that_and_no_less_than_nothing(
    seed: int, change_s: float, stop_s: float | None, held: int
) -> None:
    rng = np.random.default_rng(seed)
    round_ = a_round(
        [np.sort(rng.uniform(0.1, 100, 6)).tolist()],
        [1, 2, 3, 4, 5, 6],
        capacity=6,
        current=[held],
        change_s=[change_s],
        age_s=[float(rng.uniform(0, 1e5))],
        **({} if stop_s is None else {"stop_s": [stop_s]}),
    )
    choices = Goodput().choose(round_, exactly)
    smaller = choices.utility[0, :held]
    assert (smaller <= choices.utility[0, held]).all()
    assert (smaller > choices.idle[0]).all()


def test_a_change_must_pay_before_the_end() -> None:
    """Going from 2 to 3 slots spares a third of the time to go: not worth a minute in the last minute."""
    for remaining, expected in [(19.0 * 60, 1), (19.0 * 36_000, 2)]:
        round_ = a_round(
            TWO[:1],
            [1, 2, 3],
            capacity=3,
            current=[1],
            change_s=[60.0],
            remaining=[remaining],
            age_s=[9e5],
            served_s=[[9e5]],
        )
        assert Goodput().choose(round_, brute_force).chosen.tolist() == [expected]


def test_a_job_that_was_changed_often_is_left_alone() -> None:
    for changes, expected in [(0, 2), (50, 1)]:
        round_ = a_round(
            TWO[:1],
            [1, 2, 3],
            capacity=3,
            current=[1],
            change_s=[120.0],
            age_s=[3600.0],
            served_s=[[3600.0]],
            served_slot_s=[7200.0],
            changes=[changes],
        )
        assert Goodput().choose(round_, brute_force).chosen.tolist() == [expected]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("change_s", [0.0, 30.0])
def test_no_job_starves(change_s: float, seed: int) -> None:
    """Endless jobs on one slot, of other priorities and lengths: each has had its turn."""
    jobs, interval_s = 6, 300.0
    rng = np.random.default_rng(seed)
    weight, remaining = rng.choice([1.0, 2.0, 4.0], jobs), 10 ** rng.uniform(4, 7, jobs)
    served_s, waited_s, changes = np.zeros((jobs, 1)), np.zeros(jobs), np.zeros(jobs, dtype=np.int64)
    current = np.full(jobs, NOTHING)
    for index in range(200):
        round_ = a_round(
            [[10.0]] * jobs,
            [1],
            capacity=1,
            current=current,
            weight=weight,
            remaining=remaining,
            age_s=np.full(jobs, index * interval_s),
            served_s=served_s,
            served_slot_s=served_s[:, 0],
            waited_s=waited_s,
            changes=changes,
            change_s=np.full(jobs, change_s),
        )
        before, current = current, Goodput(patience_s=600.0).choose(round_, brute_force).chosen
        runs = current != NOTHING
        changes = changes + (runs & (before == NOTHING))
        served_s = served_s + runs[:, None] * interval_s
        waited_s = np.where(runs, 0.0, waited_s + interval_s)
    assert (served_s > 0).all()
    assert changes.sum() * change_s <= 0.1 * served_s.sum(), "nor do turns eat up the time"


def test_nearly_equal_choices_do_not_flap() -> None:
    """Goodputs that are measured anew, a few percent apart, change nothing among running jobs."""
    rng = np.random.default_rng(0)
    table = np.array([[10.0, 18.0, 25.0, 31.0]] * 4)
    current = np.array([1, 1, 1, 1])
    for index in range(1, 21):
        round_ = a_round(
            table * rng.uniform(0.97, 1.03, table.shape),
            [1, 2, 3, 4],
            capacity=8,
            current=current,
            age_s=np.full(4, 600.0 * index),
            served_s=np.full((4, 1), 600.0 * index),
            change_s=np.full(4, 60.0),
        )
        current = Goodput().choose(round_, brute_force if index == 1 else exactly).chosen
    assert current.tolist() == [1, 1, 1, 1]


def test_a_bad_configuration_more_gives_a_job_no_weight() -> None:
    """With goodput over its row's least, as Sia has it, the first job would count many times as much."""
    table = [[10.0, 19.0, 28.0, 1e-3], [10.0, 19.0, 28.0, 0.0]]
    round_ = a_round(table, [1, 2, 3, 4], capacity=4)
    assert Goodput().choose(round_, brute_force).chosen.tolist() == [1, 1]


def test_when_nodes_are_lost_everybody_goes_on_with_less() -> None:
    round_ = a_round(TWO, [1, 2, 3], capacity=3, current=[2, 1], change_s=[30.0] * 2, age_s=[9e3] * 2)
    chosen = Goodput().choose(round_, exactly).chosen
    assert is_feasible(round_.rows, chosen[None, :])[0]
    assert (chosen != NOTHING).all()


@pytest.mark.parametrize(("own", "winner"), [((100.0, 3000.0), 0), ((3000.0, 100.0), 1)])
def test_of_two_equal_jobs_the_one_of_the_shorter_class_gets_the_slot(
    own: tuple[float, float], winner: int
) -> None:
    assert winner_of(own, runs=LEAST_OWN_JOBS) == [winner]


def test_a_second_run_of_any_length_does_not_jump_the_queue_by_the_first_one() -> None:
    """It may have ten times the epochs, which it says only once it runs."""
    assert winner_of((3000.0, 10.0), runs=1) == [0]


def winner_of(own: tuple[float, float], runs: int) -> list[int]:
    """Return which of two equal waiting jobs, the first of class 0, get the slot after `runs` ended jobs of each class."""
    took = np.repeat(own, runs)
    ended = FinishedJobs(job_class=np.repeat([0, 1], runs), work=took, run_s=took)
    round_ = a_round([[1.0], [1.0]], [1], capacity=1, job_class=[0, 1], done=[0.0, 0.0])
    chosen = Goodput().choose(replace(round_, finished=ended), exactly).chosen
    return np.flatnonzero(chosen != NOTHING).tolist()


def test_a_job_that_soon_ends_by_its_class_does_not_move_and_a_long_one_does() -> None:
    """A move to twice the speed costs 50 s, once there and once back, of 60 s or of an hour that are left."""
    moved = []
    for total in (1060.0, 4600.0):
        ended = FinishedJobs(
            job_class=np.zeros(20, dtype=np.int64), work=np.full(20, total), run_s=np.full(20, total)
        )
        round_ = a_round(
            [[1.0, 1.9]],
            [1, 2],
            capacity=2,
            current=[0],
            age_s=[1000.0],
            served_s=[[1000.0]],
            change_s=[50.0],
            done=[1000.0],
        )
        chosen = Goodput().choose(replace(round_, finished=ended), exactly).chosen
        moved.append(int(chosen[0]))
    assert moved == [0, 1]
