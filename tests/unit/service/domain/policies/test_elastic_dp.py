"""Tests of IBM's policy: the published dynamic program, admission by submission, and several kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import Row
from service.domain.policies.elastic_dp import ElasticDp
from tests.unit.service.domain.policies.rounds import a_round, brute_force, is_feasible, random_round

INFEASIBLE = -1e4


def published(scaling: list[list[float]], slots: list[int], capacity: int) -> float:
    """IBM's recursion as they give it: every job gets something; INFEASIBLE when it cannot."""
    best = [0.0] * (capacity + 1)
    for job in scaling:
        best = [
            max(
                (
                    factor + best[free - size]
                    for factor, size in zip(job, slots, strict=True)
                    if factor > 0 and size <= free
                ),
                default=INFEASIBLE,
            )
            for free in range(capacity + 1)
        ]
    return best[capacity]


def scaling_of(given) -> list[list[float]]:
    """Goodput against one slot of a round in which every job runs on one slot of a single kind."""
    return (given.goodput / given.goodput[:, :1]).tolist()


@pytest.mark.parametrize("seed", range(30))
def test_is_the_published_dynamic_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, sizes = int(rng.integers(1, 7)), 6
    goodput = rng.uniform(1, 100, (jobs, 1)) * np.cumsum(rng.uniform(0.1, 1.2, (jobs, sizes)), axis=1)
    capacity = int(rng.integers(jobs, jobs * sizes + 1))
    given = a_round(goodput, range(1, sizes + 1), capacity=capacity)
    choices = ElasticDp().choose(given, brute_force)
    assert (choices.chosen >= 0).all()
    assert choices.solution.objective == choices.solution.bound
    assert choices.solution.objective == pytest.approx(
        published(scaling_of(given), list(range(1, sizes + 1)), capacity)
    )


@pytest.mark.parametrize("capacity", range(6))
def test_a_queue_that_does_not_fit_is_cut_in_the_order_of_submits(capacity: int) -> None:
    # The later, the better a job scales, and it waits all the same.
    goodput = [[1.0, 1.0 + 0.2 * job] for job in range(4)]
    chosen = ElasticDp().choose(a_round(goodput, [1, 2], capacity=capacity), brute_force).chosen
    assert (chosen >= 0).tolist() == [job < capacity for job in range(4)]


def test_a_job_that_fits_nowhere_holds_up_nobody() -> None:
    given = a_round([[0, 0, 50.0], [10, 15, 0]], [1, 2, 8], capacity=4)
    assert ElasticDp().choose(given, brute_force).chosen.tolist() == [-1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_several_kinds_go_to_the_shared_solver(seed: int) -> None:
    given = random_round(seed, jobs=3, kinds=2, sizes=2, capacity=2)
    choices = ElasticDp().choose(given, brute_force)
    assert is_feasible(given.rows, choices.chosen[None]).all()
    # A faster kind counts for more: factors are against the slower one.
    can_run = (given.goodput > 0).any(axis=1)
    assert (choices.chosen[can_run] >= 0).all()
    best = np.where(np.isfinite(choices.utility), choices.utility, 0.0)
    assert choices.solution.objective == pytest.approx(best[np.arange(3), choices.chosen][can_run].sum())


def test_a_quota_binds_although_everybody_is_admitted() -> None:
    quota = Row(name="quota", capacity=2.0, demand=np.array([1.0, 2.0]), jobs=np.array([True, True, False]))
    given = a_round([[10, 20.0]] * 3, [1, 2], capacity=6, rows=(quota,))
    chosen = ElasticDp().choose(given, brute_force).chosen
    assert chosen.tolist() == [0, 0, 1]


def test_scaling_is_against_one_slot_whatever_the_smallest_size() -> None:
    # 8 slots as 4 of double the speed each: the same factor as 4 slots of a job that scales perfectly.
    given = a_round([[0, 40.0, 40.0], [10, 20, 40.0]], [1, 2, 4], capacity=9)
    utility = ElasticDp().choose(given, brute_force).utility
    assert utility[0, 1] == pytest.approx(2.0)
    assert utility[1].tolist() == pytest.approx([1.0, 2.0, 4.0])


def test_an_admitted_job_has_something_however_much_the_others_would_gain() -> None:
    given = a_round([[0, 0, 40.0]] + [[10, 35, 35.0]] * 4, [1, 2, 4], capacity=8)
    assert ElasticDp().choose(given, brute_force).chosen.tolist() == [2, 0, 0, 0, 0]


def test_a_slot_of_a_faster_kind_counts_for_more() -> None:
    given = a_round([[30.0, 10.0]], [1, 1], kind=[0, 1], capacity=1)
    assert ElasticDp().choose(given, brute_force).utility.tolist() == [[3.0, 1.0]]


@pytest.mark.parametrize(
    ("smallest", "capacity", "expected"),
    [
        ([1, 1, 1], 3, [True, True, True]),
        ([1, 2, 1], 3, [True, True, False]),
        ([2, 2, 1], 3, [True, False, False]),  # nobody overtakes the second job
        ([4, 2, 1], 3, [False, True, True]),  # the first one does not even fit alone
        ([3, 1, 1], 3, [True, False, False]),
        ([1, 1, 1], 0, [False, False, False]),
    ],
)
def test_jobs_are_admitted_in_order_at_their_smallest_size(
    smallest: list[int], capacity: int, expected: list[bool]
) -> None:
    goodput = [[10.0 * size if size >= least else 0.0 for size in (1, 2, 3, 4)] for least in smallest]
    choices = ElasticDp().choose(a_round(goodput, [1, 2, 3, 4], capacity=capacity), brute_force)
    assert np.isfinite(choices.utility).any(axis=1).tolist() == expected
    assert (choices.chosen >= 0).tolist() == expected


def test_a_job_with_a_seat_is_admitted_before_the_queue() -> None:
    crowd = {"goodput": [[10.0, 20.0]] * 3, "slots": [1, 2], "capacity": 2}
    assert ElasticDp().choose(a_round(**crowd), brute_force).chosen.tolist() == [0, 0, -1]
    seated = a_round(**crowd, seats=[-1, -1, 0])
    assert ElasticDp().choose(seated, brute_force).chosen.tolist() == [0, -1, 0]


def test_a_seat_of_a_job_that_runs_nowhere_admits_nobody() -> None:
    round_ = a_round([[10.0], [0.0]], [1], capacity=1, seats=[-1, 0])
    assert np.isfinite(ElasticDp().choose(round_, brute_force).utility).any(axis=1).tolist() == [True, False]


def test_a_waiting_job_of_an_admitted_one_costs_more_than_any_gain() -> None:
    round_ = a_round([[10.0, 20.0]] * 3, [1, 2], capacity=2)
    assert ElasticDp().choose(round_, brute_force).idle.tolist() == [-3.0, -3.0, 0.0]


def test_a_configuration_without_a_valid_demand_fits_nowhere() -> None:
    round_ = a_round([[10.0, 20.0]], [1, 2], capacity=2)
    row = round_.rows[0]
    broken = a_round([[10.0, 20.0]], [1, 2], capacity=2)
    broken = replace(broken, rows=(replace(row, demand=np.array([np.nan, 3.0])),))
    assert ElasticDp().choose(broken, brute_force).chosen.tolist() == [-1]
