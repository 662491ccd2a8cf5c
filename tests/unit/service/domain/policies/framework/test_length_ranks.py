from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.framework.length_ranks import (
    expected_ranks,
    outlasting_by_grid,
    outlasting_by_pairs,
)

MILLIONTH = 1e-6


def one_by_one(to_go_s: np.ndarray, known: np.ndarray, served_s: np.ndarray) -> np.ndarray:
    """The definition, pair by pair."""
    time_s = np.where(known, to_go_s, np.maximum(served_s, 600.0))

    def outlasts(one: int, other: int) -> float:
        if known[one] and known[other]:
            return 0.5 * (float(to_go_s[one] > to_go_s[other]) + float(to_go_s[one] >= to_go_s[other]))
        return float(time_s[one] / max(time_s[one] + time_s[other], 1e-9))

    jobs = range(len(known))
    return np.array([1.0 + sum(outlasts(other, one) for other in jobs if other != one) for one in jobs])


def times_s(rng: np.random.Generator, count: int, decades: float) -> np.ndarray:
    """Times that are spread over so many decades, some of them equal."""
    times = 10.0 ** rng.uniform(-decades / 3, decades, count)
    return np.where(rng.random(count) < 0.3, rng.choice(times, count), times) if count else times


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), jobs=st.integers(0, 12), share=st.floats(0, 1))
def test_ranks_are_those_of_the_definition(seed: int, jobs: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    to_go_s, served_s, known = times_s(rng, jobs, 7), times_s(rng, jobs, 7), rng.random(jobs) < share
    assert expected_ranks(to_go_s, known, served_s) == pytest.approx(
        one_by_one(to_go_s, known, served_s), rel=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    jobs=st.integers(1, 300),
    others=st.integers(0, 300),
    decades=st.floats(0, 24),
)
def test_the_grid_is_within_a_millionth_of_the_sum_over_pairs(
    seed: int, jobs: int, others: int, decades: float
) -> None:
    rng = np.random.default_rng(seed)
    mine, theirs = times_s(rng, jobs, decades), times_s(rng, others, decades)
    exact = outlasting_by_pairs(mine, theirs)
    np.testing.assert_allclose(outlasting_by_grid(mine, theirs), exact, rtol=MILLIONTH, atol=1e-12)


def test_equal_jobs_have_equal_ranks_on_the_grid() -> None:
    time_s = np.repeat(times_s(np.random.default_rng(3), 40, 6), 2)
    ranks = outlasting_by_grid(time_s, time_s)
    assert (ranks[::2] == ranks[1::2]).all()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_ranks_of_many_jobs_add_up_to_those_of_an_order(share: float) -> None:
    """In each pair one job outlasts the other, so the ranks of J jobs add up to 1 + 2 + … + J."""
    rng, jobs = np.random.default_rng(5), 20_000
    ranks = expected_ranks(times_s(rng, jobs, 6), rng.random(jobs) < share, times_s(rng, jobs, 6))
    assert ranks.sum() == pytest.approx(jobs * (jobs + 1) / 2, rel=MILLIONTH)
    assert ranks.min() >= 1.0
    assert ranks.max() <= jobs


def test_memory_grows_with_the_jobs_not_with_their_pairs() -> None:
    def peak_bytes(jobs: int) -> int:
        rng = np.random.default_rng(1)
        to_go_s, served_s, known = times_s(rng, jobs, 6), times_s(rng, jobs, 6), rng.random(jobs) < 0.5
        tracemalloc.start()
        expected_ranks(to_go_s, known, served_s)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(40_000) < 2.5 * peak_bytes(20_000)
