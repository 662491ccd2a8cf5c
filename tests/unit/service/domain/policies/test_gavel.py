from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from service.domain.policies.gavel import Gavel, time_shares
from tests.unit.service.domain.policies.rounds import a_round, brute_force

POSITIVE = st.floats(0.1, 10.0)


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
