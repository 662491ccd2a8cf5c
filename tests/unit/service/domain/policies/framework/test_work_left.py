"""Remaining work of recurring jobs, by values worked out by hand and by properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.framework.policy import FinishedJobs, RoundInput
from service.domain.policies.framework.work_left import (
    LEAST_OWN_JOBS,
    OWN_JOBS,
    VALUES,
    ranks,
    work_left,
)
from tests.unit.service.domain.policies.rounds import a_round

UNIT = np.array([1.0])
"""One reference sample a second."""


def finished(*jobs: tuple[int, float, float]) -> FinishedJobs:
    """Ended jobs by class, work and run time."""
    job_class, work, run_s = np.array(jobs, dtype=np.float64).reshape(len(jobs), 3).T
    return FinishedJobs(job_class=job_class.astype(np.int64), work=work, run_s=run_s)


def one_job(ended: FinishedJobs | None, **fields: object) -> RoundInput:
    return replace(a_round([[1.0]], [1], capacity=1, **fields), finished=ended)


def left_of(ended: FinishedJobs, per_s: float = 1.0, **fields: object) -> np.ndarray:
    left = work_left(one_job(ended, **fields), np.array([per_s]))
    assert left is not None
    return left[0]


@pytest.mark.parametrize("ended", [None, finished()], ids=["unknown", "none"])
def test_without_ended_jobs_nothing_is_learned(ended: FinishedJobs | None) -> None:
    assert work_left(one_job(ended), UNIT) is None


def test_a_declared_length_needs_no_estimate() -> None:
    ended = finished((0, 100.0, 100.0))
    assert work_left(one_job(ended, remaining=[7.0]), UNIT) is None
    two = replace(a_round([[1.0], [1.0]], [1], capacity=1, remaining=[7.0, np.nan]), finished=ended)
    left = work_left(two, np.ones(2))
    assert left is not None
    assert left[0].tolist() == [7.0] * VALUES
    assert left[1].max() > left[1].min()


def test_nineteen_equal_jobs_of_the_class_outweigh_the_prior() -> None:
    left = left_of(finished(*[(0, 1000.0, 1000.0)] * 19), done=[400.0])
    assert (left == 600.0).sum() >= VALUES - 1


def test_a_job_beyond_all_of_its_class_lasts_as_long_again() -> None:
    # Only the heavy tail is left: half of the jobs at 5,400 s last another 600 + 5,400 s.
    left = left_of(finished((0, 1000.0, 1000.0)), done=[5400.0])
    assert np.median(left) == pytest.approx(6000.0, rel=0.1)


def test_fewer_ended_jobs_of_a_class_say_no_more_of_it_than_of_any_other() -> None:
    few, enough = ([(0, 10.0, 10.0)] * count for count in (LEAST_OWN_JOBS - 1, LEAST_OWN_JOBS))
    for ended in (few, [*few, (1, 900.0, 900.0)]):
        assert np.array_equal(left_of(finished(*ended)), left_of(finished(*ended), job_class=[2]))
    assert np.median(left_of(finished(*enough))) == 10.0


def test_only_the_jobs_that_took_more_count() -> None:
    ended = finished(*[(0, 100.0, 100.0)] * 10, *[(0, 5000.0, 5000.0)] * 5)
    assert np.median(left_of(ended)) == 100.0
    assert np.median(left_of(ended, done=[200.0])) == 4800.0


def test_a_new_class_has_the_run_times_of_the_others_each_class_counting_once() -> None:
    # Two classes of 1 and of 30 jobs, and the tail as a third: 100 s and 9,000 s weigh the same.
    ended = finished((1, 0.0, 100.0), *[(2, 0.0, 9000.0)] * 30)
    left = left_of(ended, per_s=2.0, job_class=[5])
    assert (left == 200.0).sum() == pytest.approx(VALUES / 3, abs=1)
    assert (left == 18_000.0).sum() == pytest.approx(VALUES / 3, abs=1)


def test_the_latest_jobs_of_a_class_count() -> None:
    before = [(0, 50.0, 50.0)] * 30
    left = left_of(finished(*before, *[(0, 700.0, 700.0)] * OWN_JOBS))
    assert (left == 700.0).sum() >= VALUES - 2


def test_run_times_stand_for_work_that_nobody_reported() -> None:
    left = left_of(finished(*[(0, 0.0, 300.0)] * 19), per_s=4.0, served_s=[[100.0]], done=[0.0])
    assert np.median(left) == 4 * 200.0


def with_curves(ended: FinishedJobs, *beyond: float) -> FinishedJobs:
    return replace(ended, beyond=np.array(beyond))


def test_a_loss_curve_says_more_than_the_run_times_of_other_classes() -> None:
    # Two classes, which trained 2 and 6 times as far as to convergence, and the tail as a third.
    ended = with_curves(finished((1, 50.0, 50.0), (2, 90.0, 90.0), (2, 95.0, 95.0)), 2.0, 6.0, np.nan)
    left = left_of(ended, job_class=[5], converged=[1000.0], done=[400.0])
    # The tail counts by its part beyond the work done: 0.6 of a class.
    assert (left == 1600.0).sum() == pytest.approx(VALUES * 0.4, abs=1)
    assert (left == 5600.0).sum() == pytest.approx(VALUES * 0.4, abs=1)
    alone = left_of(ended, job_class=[5], converged=[np.nan], done=[10.0])
    assert (alone == 40.0).sum() == pytest.approx(VALUES / 3, abs=1)


def test_a_loss_curve_without_one_of_an_ended_job_says_nothing() -> None:
    ended = finished((1, 50.0, 50.0))
    for one in (ended, with_curves(ended, np.nan)):
        assert np.array_equal(left_of(one, job_class=[5], converged=[1000.0]), left_of(one, job_class=[5]))


def test_ended_jobs_of_the_class_outweigh_its_loss_curve() -> None:
    ended = with_curves(finished(*[(0, 1000.0, 1000.0)] * 19), *[5.0] * 19)
    assert (left_of(ended, converged=[7000.0]) == 1000.0).sum() >= VALUES - 1


def test_ranks_of_known_times() -> None:
    left_s = np.repeat(np.array([30.0, 10.0, 30.0, 90.0])[:, None], 4, axis=1)
    assert ranks(left_s).tolist() == [2.5, 4.0, 2.5, 1.0]


def test_ranks_of_likely_times() -> None:
    # The first job takes 1 or 9 s, the second 5 s: either outlasts the other in half of the cases.
    assert ranks(np.array([[1.0, 9.0], [5.0, 5.0]])).tolist() == [1.5, 1.5]
    assert ranks(np.array([[1.0, 2.0], [2.0, 9.0]])).tolist() == [1.875, 1.125]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), jobs=st.integers(0, 8))
def test_ranks_are_those_of_all_pairs(seed: int, jobs: int) -> None:
    left_s = np.sort(np.random.default_rng(seed).integers(1, 9, (jobs, 4)).astype(float), axis=1)

    def outlasts(one: np.ndarray, other: np.ndarray) -> float:
        pairs = [(a > b) + 0.5 * (a == b) for a in one for b in other]
        return float(np.mean(pairs))

    expected = [
        1.0 + sum(outlasts(other, one) for index, other in enumerate(left_s) if index != row)
        for row, one in enumerate(left_s)
    ]
    assert ranks(left_s).tolist() == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ended=st.integers(1, 40))
def test_values_ascend_stay_positive_and_grow_with_the_unit(seed: int, ended: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = finished(
        *[
            (int(rng.integers(3)), rng.choice([0.0, rng.uniform(1, 1e6)]), rng.uniform(0, 1e5))
            for _ in range(ended)
        ]
    )
    given_ = replace(
        a_round(
            np.ones((4, 1)),
            [1],
            capacity=4,
            job_class=rng.integers(0, 4, 4),
            done=rng.choice([np.nan, 0.0, 10.0, 1e5, 1e7], 4),
            served_s=rng.uniform(0, 1e5, (4, 1)),
        ),
        finished=jobs,
    )
    per_s = rng.uniform(0.1, 1e4, 4)
    left = work_left(given_, per_s)
    assert left is not None
    assert left.shape == (4, VALUES)
    assert np.isfinite(left).all()
    assert (left > 0).all()
    assert (np.diff(left, axis=1) >= 0).all()
    assert ranks(left).sum() == pytest.approx(10.0)
