"""Results of policies are checked before anything follows from them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import Solve
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import PolicySetting
from service.domain.policies.fifo import Fifo
from service.domain.policies.framework.checked import CheckedPolicy, PolicyFailed
from service.domain.policies.framework.policy import Choices, Policy, RoundHistory, RoundInput
from service.domain.policies.registry import POLICIES
from tests.unit.service.domain.policies.rounds import a_round

ROUND = a_round(
    np.array([[1.0, 2.0], [1.0, 2.0]]), [1, 2], capacity=2.0, allowed=np.array([[True, True], [True, False]])
)
HISTORY = RoundHistory(
    elapsed_s=1.0, usd_per_h=0.0, job_ids=["a", "b"], classes=["c", "c"], samples=np.ones(2), state={}
)


@dataclass(frozen=True)
class Changed:
    """First in, first out, with other choices or another state."""

    changes: Mapping[str, Any]
    state: Any = None
    name: str = "changed"

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        return self, self.state

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        return replace(Fifo().choose(given, solve), **self.changes)


def chosen(*columns: int) -> dict[str, Any]:
    return {"chosen": np.array(columns)}


@pytest.mark.parametrize("name", POLICIES)
def test_built_in_policies_keep_the_rules(name: str) -> None:
    checked = CheckedPolicy(POLICIES.policy(name))
    follows, _ = checked.advance(ROUND, HISTORY)
    assert follows.choose(ROUND, solve).chosen.shape == (2,)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (chosen(0), "int64[1]"),
        ({"chosen": np.zeros(2)}, "float64[2]"),
        ({"chosen": [0, 0]}, "AttributeError"),
        (chosen(0, 2), "-1 to 1"),
        (chosen(-2, 0), "-1 to 1"),
        (chosen(-1, 1), "job 1 .* may not have, 1"),
        (chosen(1, 0), "3 of 2 "),
        ({"utility": np.zeros((2, 1))}, "utility"),
        ({"idle": np.zeros(1)}, "idle"),
        ({"solution": None}, "AttributeError"),
    ],
)
def test_invalid_choices_are_refused(changes: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(
        PolicyFailed, match="the policy changed failed: `choose`: .*" + problem.replace("[", r"\[")
    ):
        CheckedPolicy(Changed(changes)).choose(ROUND, solve)


@pytest.mark.parametrize("state", [None, {"a": float("nan")}, {"a": np.zeros(1)}, [1]])
def test_a_state_that_is_no_json_object_is_refused(state: Any) -> None:
    with pytest.raises(PolicyFailed, match="the policy changed failed: `advance`: "):
        CheckedPolicy(Changed({}, state)).advance(ROUND, HISTORY)


def test_a_missing_price_is_refused() -> None:
    choices = Fifo().choose(ROUND, solve)
    short = replace(choices.solution, prices=choices.solution.prices[1:])
    with pytest.raises(PolicyFailed, match="prices"):
        CheckedPolicy(Changed({"solution": short})).choose(ROUND, solve)


def test_the_default_policy_takes_the_place_of_one_that_fails() -> None:
    def name(_: object, policy: Policy) -> str:
        if policy.name == "fifo":
            raise PolicyFailed(policy.name, "a problem")
        return policy.name

    result, failure = POLICIES.run(PolicySetting("fifo"), name)
    assert (result, failure and failure.policy) == ("goodput", "fifo")
    assert POLICIES.run(PolicySetting("srtf"), name) == ("srtf", None)


def test_a_failure_crosses_processes() -> None:
    failure = pickle.loads(pickle.dumps(PolicyFailed("credit", "a problem")))
    assert (failure.policy, failure.problem) == ("credit", "a problem")
