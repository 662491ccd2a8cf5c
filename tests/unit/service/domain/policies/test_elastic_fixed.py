"""Tests of IBM's baseline: the decisions of elastic-dp on the goodput of the jobs' own batches."""

from __future__ import annotations

import pytest

from service.domain.policies.elastic_dp import ElasticDp
from service.domain.policies.elastic_fixed import ElasticFixed
from service.domain.policies.framework.checked import CheckedPolicy
from service.domain.policies.framework.policy import keeps_batch
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.domain.policies.rounds import a_round, brute_force, random_round


@pytest.mark.parametrize("seed", range(8))
def test_decides_as_elastic_dp_on_the_goodput_that_it_is_given(seed: int) -> None:
    given = random_round(seed, jobs=3, sizes=3)
    expected, found = (rule.choose(given, brute_force) for rule in (ElasticDp(), ElasticFixed()))
    assert found.chosen.tolist() == expected.chosen.tolist()
    assert found.utility.tolist() == expected.utility.tolist()


def test_by_hand() -> None:
    """One slot each; of the further two, the first gains 0.9 of the first job and the second 0.5 of the other."""
    given = a_round([[10, 19.0, 20.0], [10, 15.0, 18.0]], [1, 2, 3], capacity=4)
    assert ElasticFixed().choose(given, brute_force).chosen.tolist() == [1, 1]
    given = a_round([[10, 19.0, 20.0], [10, 15.0, 18.0]], [1, 2, 3], capacity=3)
    assert ElasticFixed().choose(given, brute_force).chosen.tolist() == [1, 0]


def test_only_this_policy_keeps_batches() -> None:
    assert [name for name in POLICIES if keeps_batch(policy(name))] == ["elastic-fixed"]
    assert [name for name in POLICIES if CheckedPolicy(policy(name)).keeps_batch] == ["elastic-fixed"]
    assert keeps_batch(CheckedPolicy(ElasticFixed()))
