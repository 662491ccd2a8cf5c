from __future__ import annotations

import pytest

from service.domain.policies.fair import Fair
from service.domain.policies.goodput import Goodput
from service.domain.policies.las import Las
from service.domain.policies.registry import DEFAULT, POLICIES, policy
from service.domain.shared.errors import InvalidField


def test_every_policy_is_there_under_its_name() -> None:
    names = [
        "goodput",
        "budget",
        "elastic-dp",
        "fair",
        "fifo",
        "gavel",
        "idle-fill",
        "las",
        "ones",
        "pollux",
        "sia",
        "srtf",
    ]
    assert list(POLICIES) == names
    assert all(policy(name).name == name for name in names)
    assert policy(DEFAULT) == Goodput()


def test_parameters_replace_defaults() -> None:
    assert policy("fair", {"p": -2}) == Fair(p=-2.0)
    assert policy("las", {"queue_limits_slot_s": [60, 600.0]}) == Las(queue_limits_slot_s=(60.0, 600.0))


@pytest.mark.parametrize(
    ("name", "parameters", "field", "says"),
    [
        ("best", {}, "policy", "there are goodput"),
        ("goodput", {"q": 1}, "parameters.q", "it has p, shortest_first"),
        ("fifo", {"p": 1}, "parameters.p", "it has none"),
        ("goodput", {"p": 1.5}, "parameters.p", "above 0, at most 1"),
        ("goodput", {"p": float("nan")}, "parameters.p", "above 0"),
        ("goodput", {"patience_s": 10**400}, "parameters.patience_s", "at least 1"),
        ("goodput", {"p": True}, "parameters.p", "is a number"),
        ("goodput", {"p": "0.5"}, "parameters.p", "is a number"),
        ("las", {"queue_limits_slot_s": 3250}, "parameters.queue_limits_slot_s", "list of numbers"),
        ("las", {"queue_limits_slot_s": [-1]}, "parameters.queue_limits_slot_s", "at least 0"),
        ("las", {"queue_limits_slot_s": []}, "parameters.queue_limits_slot_s", "at least one number"),
        ("las", {"queue_limits_slot_s": [5, 1]}, "parameters.queue_limits_slot_s", "ascending"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(name, parameters, field, says) -> None:
    with pytest.raises(InvalidField, match=says) as refused:
        policy(name, parameters)
    assert refused.value.field == field


def test_every_policy_and_parameter_is_described() -> None:
    for one in POLICIES.describe():
        assert one.sentence.endswith("."), one.name
        assert "\n" not in one.sentence
        for parameter in one.parameters:
            assert parameter.meaning.endswith("."), parameter.name
            assert policy(one.name, {parameter.name: parameter.default}) == policy(one.name)
