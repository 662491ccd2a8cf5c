"""Checks of a policy's results. A policy of an installed package may raise, or break the rules of its interface."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.cluster.contention_rules import Rhythm
from service.domain.policies.framework.policy import (
    Choices,
    Policy,
    RoundHistory,
    RoundInput,
    StatefulPolicy,
    keeps_batch,
    rhythm_of,
)

_ROUNDING = 1e-9
"""Relative and absolute tolerance of a capacity, for the rounding errors of sums of demands."""


class PolicyFailed(Exception):
    """Error for a policy that raised, or whose result is invalid. The cause is the error that it raised."""

    def __init__(self, policy: str, problem: str) -> None:
        super().__init__(policy, problem)
        self.policy = policy
        self.problem = problem

    def __str__(self) -> str:
        """Return the message, which names the policy and its problem."""
        return f"the policy {self.policy} failed: {self.problem}"


@dataclass(frozen=True, slots=True)
class CheckedPolicy:
    """A policy whose results are checked. Its methods raise PolicyFailed, and nothing else."""

    policy: Policy

    @property
    def name(self) -> str:
        """Name by which a cluster chooses the policy."""
        return self.policy.name

    @property
    def keeps_batch(self) -> bool:
        """True if jobs keep their batches under the policy."""
        return keeps_batch(self.policy)

    @property
    def rhythm(self) -> Rhythm:
        """Return the rhythm of the policy itself."""
        return rhythm_of(self.policy)

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        """Return the policy of this round, checked as well, and its next state; empty without state."""
        if not isinstance(self.policy, StatefulPolicy):
            return self, {}
        try:
            follows, state = self.policy.advance(given, history)
            # A state that JSON cannot express would fail in the database.
            json.dumps(dict(state), allow_nan=False)
        except Exception as error:
            raise PolicyFailed(self.name, f"`advance`: {type(error).__name__}: {error}") from error
        return CheckedPolicy(follows), state

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the policy's choices, which keep the rules of the interface."""
        try:
            choices = self.policy.choose(given, solve)
            problem = problem_of_choices(given, choices)
        except Exception as error:
            raise PolicyFailed(self.name, f"`choose`: {type(error).__name__}: {error}") from error
        if problem:
            raise PolicyFailed(self.name, f"`choose`: {problem}")
        return choices


def problem_of_choices(given: RoundInput, choices: Choices) -> str:
    """Return the rule that the choices break; empty if they keep all."""
    jobs, columns = given.goodput.shape
    chosen = choices.chosen
    if chosen.shape != (jobs,) or chosen.dtype.kind != "i":
        return (
            f"`chosen` is {chosen.dtype}{list(chosen.shape)}, and not a whole number for each of {jobs} jobs"
        )
    if ((chosen < NOTHING) | (chosen >= columns)).any():
        return f"`chosen` has a column outside of -1 to {columns - 1}"
    if choices.utility.shape != (jobs, columns) or choices.idle.shape != (jobs,):
        return f"`utility` is not of shape ({jobs}, {columns}), or `idle` not of shape ({jobs},)"
    if len(choices.solution.prices) < len(given.rows):
        return f"`solution` has {len(choices.solution.prices)} prices for {len(given.rows)} rows"
    has = np.flatnonzero(chosen != NOTHING)
    forbidden = has[~given.allowed[has, chosen[has]]]
    if len(forbidden):
        return f"job {forbidden[0]} got a configuration that it may not have, {chosen[forbidden[0]]}"
    for row in given.rows:
        taken = row.taken(chosen)
        if taken > max(row.capacity, 0.0) * (1 + _ROUNDING) + _ROUNDING:
            return f"jobs got {taken:g} of {row.capacity:g} {row.name}"
    return ""
