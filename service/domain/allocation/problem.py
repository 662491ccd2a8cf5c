"""The allocation problem: a table of configurations per job, and rows that bound the choice.

Every policy is a utility over this table; the solver is shared. Choose at most one configuration
per job so that the sum of utilities is greatest and no capacity is exceeded: a multiple-choice
knapsack with one capacity per device kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One choice for a job. `demand` is the number of shared slots of its kind that it takes:
    `slots` less those that only this job can use (held on a cordoned node).
    """

    device_kind: str
    slots: int
    demand: int
    utility: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Job id to its configurations, and shared slots per device kind.

    Having nothing is always possible. It is worth `idle_utility` of the job, zero when absent.
    """

    configurations: Mapping[str, tuple[Configuration, ...]]
    capacity: Mapping[str, int]
    idle_utility: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The chosen configuration of every job, None for nothing.

    `objective` is the sum of utilities, `bound` a proven upper limit on it.
    """

    chosen: Mapping[str, Configuration | None]
    objective: float
    bound: float
    status: str

    @property
    def gap(self) -> float:
        """How far from optimal the choice may be, relative to the bound."""
        return max(0.0, self.bound - self.objective) / max(abs(self.bound), 1e-12)
