"""Allocation problem: at most one configuration for each job, and rows that limit the choice.

Maximise the sum of utilities so that no row exceeds its capacity (`J` jobs, `C` configurations, `R` rows).
Every policy is a utility and masks over this problem; the solver is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

NOTHING = -1
"""Choice of a job that gets no configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A limit on the total demand of the choices: slots of a kind, dollars per hour, a project's quota.

    `demand` (C,), not negative, is the demand of each configuration. `jobs` (J,) marks the jobs that count;
    None for all.
    """

    name: str
    capacity: float
    demand: FloatArray
    jobs: BoolArray | None = None

    def taken(self, chosen: IntArray) -> float:
        """Return the demand of the choices (J,) of the jobs that count; `NOTHING` takes none."""
        counts = chosen != NOTHING
        if self.jobs is not None:
            counts &= self.jobs
        return float(self.demand[chosen[counts]].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Input of the solver.

    `utility` (J, C) is the worth of each configuration to a job, -inf for one that the job may not have.
    `idle` (J,) is the worth of having nothing, which is always allowed. `current` (J,) is the present choice,
    `NOTHING` or a column, from which the solver starts.
    """

    utility: FloatArray
    idle: FloatArray
    rows: tuple[Row, ...]
    current: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Output of the solver.

    `chosen` (J,) is a column or `NOTHING`. `objective` is the sum of utilities, including idle ones, and
    `bound` a proven upper bound on it. `prices` (R,), not negative and in the order of the rows, are dual
    prices: the worth of one more unit of a row's capacity.
    """

    chosen: IntArray
    objective: float
    bound: float
    prices: FloatArray
    status: str
    """Status of the solution: `optimal`, `within_gap`, or `limit` if the effort was spent first."""

    @property
    def gap(self) -> float:
        """Upper bound on the distance to the optimum, relative to the bound."""
        return max(0.0, self.bound - self.objective) / max(abs(self.bound), 1e-12)


Solve: TypeAlias = Callable[[Problem], Solution]
"""Solver function as a policy calls it. The caller of the policy has already set gap and effort."""
