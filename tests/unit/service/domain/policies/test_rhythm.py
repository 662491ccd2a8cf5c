"""Rhythms of policies: what they change in the rules of a cluster."""

from __future__ import annotations

import pytest

from service.domain.cluster.contention_rules import ContentionRules, Rhythm
from service.domain.policies.framework.checked import CheckedPolicy
from service.domain.policies.framework.followed import following
from service.domain.policies.framework.policy import rhythm_of
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.builders import node_of, snapshot_of


@pytest.mark.parametrize(
    ("name", "round_s", "lease_s", "whole_epochs", "in_place"),
    [
        ("gavel", 360.0, 360.0, False, False),
        ("ones", 60.0, 0.0, True, True),
        ("pollux", 60.0, 0.0, False, False),
        ("sia", 60.0, 0.0, False, False),
        ("goodput", 60.0, 0.0, False, False),
    ],
)
def test_published_rhythms(
    name: str, round_s: float, lease_s: float, whole_epochs: bool, in_place: bool
) -> None:
    expected = Rhythm(round_s=round_s, lease_s=lease_s, whole_epochs=whole_epochs, in_place=in_place)
    assert rhythm_of(policy(name)) == rhythm_of(CheckedPolicy(policy(name))) == expected


def test_a_lease_lengthens_the_minimum_run_and_never_shortens_it() -> None:
    rhythm = Rhythm(lease_s=360.0)
    assert rhythm.applied(ContentionRules()) == ContentionRules(min_run_s=360.0, lease_s=360.0)
    assert rhythm.applied(ContentionRules(min_run_s=900.0)).min_run_s == 900.0
    assert Rhythm().applied(ContentionRules(whole_epochs=True)).whole_epochs


@pytest.mark.parametrize("name", POLICIES)
def test_a_snapshot_that_follows_a_policy_follows_it_once(name: str) -> None:
    snapshot = snapshot_of([node_of("n")], [])
    once = following(snapshot, policy(name))
    assert following(once, policy(name)) == once
    assert once.keeps_batch == (name == "elastic-fixed")
    assert once.contention.min_run_s == (360.0 if name == "gavel" else 60.0)
