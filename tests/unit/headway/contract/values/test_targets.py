"""Targets of job files."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.spec import JobSpec
from headway.contract.spec_goal import Goal
from headway.contract.spec_submit import submit_problem
from headway.contract.values.targets import TargetRule, target_rule

numbers = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ({"loss": 1.5}, TargetRule("loss", 1.5, falls=None)),
        ({"accuracy": ">= 0.95"}, TargetRule("accuracy", 0.95, falls=False)),
        ({"val/loss": "<=-2e-3"}, TargetRule("val/loss", -0.002, falls=True)),
        ({"reward": 3}, TargetRule("reward", 3.0, falls=None)),
        ({"loss": "1e-3"}, TargetRule("loss", 0.001, falls=None)),
        ({"loss": "-.5"}, TargetRule("loss", -0.5, falls=None)),
    ],
)
def test_targets_are_read(written: dict[str, float | str], rule: TargetRule) -> None:
    assert target_rule(written) == rule
    goal = Goal.model_validate({"target": written})
    assert Goal.model_validate_json(goal.model_dump_json()) == goal
    assert target_rule(goal.target or {}) == rule


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"loss": 1.0, "accuracy": 0.9},
        {"": 1.0},
        {"x" * 129: 1.0},
        {"loss": "1.5 or so"},
        {"loss": "1.5e"},
        {"loss": "< 1.5"},
        {"loss": ">= much"},
        {"loss": ">= inf"},
        {"loss": math.nan},
        {"loss": math.inf},
    ],
)
def test_wrong_targets_are_refused(written: dict[str, float | str]) -> None:
    with pytest.raises(ValueError, match=r"metric|target|number"):
        target_rule(written)
    with pytest.raises(ValueError, match="target"):
        Goal.model_validate({"target": written})


@given(st.text(min_size=1, max_size=128), numbers, st.sampled_from(["<=", ">=", ""]))
def test_every_number_is_a_target(metric: str, value: float, sign: str) -> None:
    rule = target_rule({metric: f"{sign} {value!r}" if sign else value})
    assert rule == TargetRule(metric, value, {"<=": True, ">=": False, "": None}[sign])


@pytest.mark.parametrize(
    ("value", "read"), [(">= 1_0", 10.0), ("<= \u0663", 3.0), ("\u0663", 3.0), ("1_000", 1000.0)]
)
def test_a_stored_target_in_other_than_decimal_digits_is_read_and_refused_at_a_submit(
    value: str, read: float
) -> None:
    stored = {"name": "a", "run": "x", "goal": {"target": {"loss": value}}}
    spec = JobSpec.model_validate_json(json.dumps(stored), extra="ignore")
    assert target_rule(spec.goal.target or {}).value == read
    problem = submit_problem(spec)
    assert problem is not None
    assert (problem[0], repr(value) in problem[1]) == ("goal.target", True)


def test_a_target_that_is_no_number_is_refused_also_when_stored() -> None:
    with pytest.raises(ValueError, match="is no target"):
        target_rule({"loss": ">= 0x1"})
