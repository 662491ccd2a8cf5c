"""The allocation problem: at most one configuration for each job, and rows that bound the choice.

Maximise the sum of utilities so that no row takes more than its capacity (`J` jobs, `C` configurations, `R` rows).
Every policy is a utility and masks over this problem; the solver is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from service.domain.arrays import BoolArray, FloatArray, IntArray

NOTHING = -1
"""The choice of a job that gets no configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A limit on what the choices take together: slots of a kind, dollars per hour, a project's quota.

    `demand` (C,), not negative, is what each configuration takes. `jobs` (J,) are those that count; None: all of them.
    """

    name: str
    capacity: float
    demand: FloatArray
    jobs: BoolArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`utility` (J, C) is what a job's configuration is worth, -inf where the job may not have it; `idle` (J,) what
    having nothing is worth, which is always allowed. `current` (J,) is the choice now, `NOTHING` or a column: where
    the solver starts from.
    """

    utility: FloatArray
    idle: FloatArray
    rows: tuple[Row, ...]
    current: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """`chosen` (J,): a column, or `NOTHING`. `objective` is the sum of utilities, idle ones included, and `bound` a
    proven upper limit on it. `prices` (R,), not negative, in the order of the rows: utility that one more unit of a
    row's capacity is worth.
    """

    chosen: IntArray
    objective: float
    bound: float
    prices: FloatArray
    status: str
    """`optimal`, `within_gap`, or `limit` when the effort was spent first."""

    @property
    def gap(self) -> float:
        """How far from optimal the choice may be, relative to the bound."""
        return max(0.0, self.bound - self.objective) / max(abs(self.bound), 1e-12)


Solve: TypeAlias = Callable[[Problem], Solution]
"""How a policy calls the solver; whoever calls the policy has chosen gap and effort."""
