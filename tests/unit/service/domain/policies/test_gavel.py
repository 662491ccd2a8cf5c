from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.policies.framework.linear import max_min_shares
from service.domain.policies.gavel import Gavel, time_shares
from tests.unit.service.domain.policies.rounds import a_round, brute_force

POSITIVE = st.floats(0.1, 10.0)


@drawn(st.lists(st.tuples(POSITIVE, st.integers(1, 4)), min_size=1, max_size=8), st.integers(4, 12))
@settings(max_examples=40, deadline=None)
def test_on_one_kind_the_shares_are_those_of_the_closed_form(jobs, capacity: int) -> None:
    """Either the slots are the limit, shares being t / value, or the job with the least value has all the time."""
    value = np.array([[one] for one, _ in jobs])
    slots = np.array([[size] for _, size in jobs])
    shares = max_min_shares(value, slots, np.array([float(capacity)]))
    best = min(value.min(), capacity / (slots / value).sum())
    assert (value * shares).min() == pytest.approx(best, rel=1e-5)
    assert (slots * shares).sum() <= capacity * (1 + 1e-6)
    assert (shares <= 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_on_two_kinds_no_grid_of_shares_does_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, slots = rng.uniform(0.2, 5, (2, 2)), rng.integers(1, 3, (2, 2))
    capacity = np.array([2.0, 2.0])
    shares = max_min_shares(value, slots, capacity)
    step = np.linspace(0, 1, 21)
    one = np.array([(x, y) for x in step for y in step if x + y <= 1 + 1e-9])
    gains = one @ value.T
    first, second = (index.ravel() for index in np.indices((len(one), len(one))))
    used = one[first] * slots[0] + one[second] * slots[1]
    feasible = (used <= capacity + 1e-9).all(axis=1)
    grid = np.minimum(gains[first, 0], gains[second, 1])[feasible].max()
    best = (value * shares).sum(axis=1).min()
    assert grid - 1e-6 <= best <= grid + 2 * value.max() * 0.05
    assert (shares.sum(axis=1) <= 1 + 1e-6).all()
    assert ((slots * shares).sum(axis=0) <= capacity + 1e-6).all()


def test_each_job_is_sent_to_the_kind_that_it_uses_best() -> None:
    throughput = np.array([[1.0, 10.0], [1.0, 0.0]])
    ones = np.ones((2, 2), dtype=np.int64)
    shares = time_shares(throughput, ones, np.array([1.0, 1.0]), np.ones(2))
    assert shares[0, 1] == pytest.approx(1.0)
    assert shares[1, 0] > 0.9


def test_rounds_give_the_shares_of_time() -> None:
    """Two jobs, one slot of each of two kinds: what they receive over 60 rounds is what the program wants."""
    round_ = a_round([[1.0, 4.0], [1.0, 3.0]], [1, 1], kind=[0, 1], capacity=1)
    served = np.zeros((2, 2))
    for index in range(1, 61):
        now = replace(round_, served_s=served.copy(), age_s=np.full(2, index * 60.0))
        chosen = Gavel().choose(now, brute_force).chosen
        served[np.arange(2), chosen] += np.where(chosen >= 0, 60.0, 0.0)
    wanted = time_shares(round_.goodput, np.ones((2, 2), dtype=np.int64), np.ones(2), np.ones(2))
    np.testing.assert_allclose(served / 3600, wanted, atol=0.05)


def test_a_job_has_the_size_that_it_asked_for() -> None:
    round_ = a_round([[1.0, 2.0, 4.0]], [1, 2, 4], capacity=8, requested_slots=[2])
    assert Gavel().choose(round_, brute_force).chosen.tolist() == [1]
