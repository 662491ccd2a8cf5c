"""Rounds of a market's window: the plan that is carried from round to round, and the order of one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.market import Buyers, MarketRules, finish_target_s, plan_window
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.queueing import requested_goodput, served
from service.domain.policies.framework.speedup import (
    finite,
    holding,
    kind_capacity,
    known_length,
    remaining_s,
    weights,
)
from service.domain.shared.arrays import FloatArray

_LATEST: Final = 0.1
"""Weight of the latest target; the mean of the earlier ones has the rest."""
_LEAST_S: Final = 600.0
"""Minimum seconds that a job of unknown length is assumed to have ahead."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job in a window: the seconds with slots that the plan still gives it, its priority, and its targets.

    `target_s` is the latest time from submission to a fair finish. `sum_s2` is the integral of the targets
    over the `held_s` seconds for which they applied.
    """

    planned_s: float = 0.0
    priority: float = 0.0
    target_s: float = 0.0
    sum_s2: float = 0.0
    held_s: float = 0.0

    def with_target(self, target_s: float) -> PlannedJob:
        """Return the job with a new latest target."""
        return replace(self, target_s=target_s)

    @property
    def fair_s(self) -> float:
        """Mean of the targets so far, with the published weight of the latest one."""
        if self.held_s <= 0:
            return self.target_s
        return (1 - _LATEST) * self.sum_s2 / self.held_s + _LATEST * self.target_s

    def after(self, elapsed_s: float, *, ran: bool) -> PlannedJob:
        """Return the job after more seconds, in which the job held slots or not."""
        return replace(
            self,
            planned_s=max(0.0, self.planned_s - elapsed_s) if ran else self.planned_s,
            sum_s2=self.sum_s2 + elapsed_s * self.target_s,
            held_s=self.held_s + elapsed_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketWindow:
    """The plan of a window: its remaining seconds, and the jobs by their ids."""

    left_s: float = 0.0
    jobs: Mapping[str, PlannedJob] = field(default_factory=dict)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> MarketWindow:
        """Return the window that `to_json` stored; an empty one for an empty state.

        Fields that another version added are ignored.
        """
        names = [one.name for one in fields(PlannedJob)]
        jobs = {
            job: PlannedJob(**{name: one[name] for name in names if name in one})
            for job, one in state.get("jobs", {}).items()
        }
        return cls(left_s=state.get("left_s", 0.0), jobs=jobs)

    def to_json(self) -> dict[str, Any]:
        """Return the window as JSON."""
        return {"left_s": self.left_s, "jobs": {job: asdict(one) for job, one in self.jobs.items()}}


def next_window(
    window: MarketWindow, given: RoundInput, job_ids: Sequence[str], elapsed_s: float, rules: MarketRules
) -> MarketWindow:
    """Return the window for this round, `elapsed_s` after the previous one.

    The window is planned anew when a job has come or gone, and when it is over.
    """
    ran = holding(given).tolist()
    known = {
        job: window.jobs.get(job, PlannedJob()).after(elapsed_s if job in window.jobs else 0.0, ran=runs)
        for job, runs in zip(job_ids, ran, strict=True)
    }
    left_s = window.left_s - elapsed_s
    if known.keys() == window.jobs.keys() and left_s > 0:
        return MarketWindow(left_s=left_s, jobs=known)
    buyers = buyers_of(given)
    latest = buyers.target_s.tolist()
    known = {job: known[job].with_target(target_s) for job, target_s in zip(job_ids, latest, strict=True)}
    buyers = replace(buyers, target_s=np.array([known[job].fair_s for job in job_ids]))
    plan = plan_window(buyers, rules)
    planned_s, priority = (plan.rounds * rules.round_s).tolist(), plan.priority.tolist()
    planned = {
        job: replace(known[job], planned_s=planned_s[row], priority=priority[row])
        for row, job in enumerate(job_ids)
    }
    return MarketWindow(left_s=rules.window_s, jobs=planned)


def buyers_of(given: RoundInput) -> Buyers:
    """Return the jobs of a round at their requested sizes, with their latest targets.

    The plan outlasts the round, so a job that may have no configuration now counts with all of them.
    """
    allowed = given.allowed | ~given.allowed.any(axis=1, keepdims=True)
    goodput = requested_goodput(replace(given, allowed=allowed))
    rate = goodput.max(axis=1, initial=0.0)
    size = np.where(goodput > 0, given.configurations.slots[None, :], 0).max(axis=1, initial=0)
    elapsed_s = finite(given.served_s).sum(axis=1)
    ahead_s = remaining_s(given, rate, np.where(known_length(given), 0.0, np.maximum(elapsed_s, _LEAST_S)))
    buyers = Buyers(
        capacity=float(kind_capacity(given).sum()),
        slots=size.astype(np.float64),
        age_s=np.maximum(finite(given.age_s), elapsed_s),
        elapsed_s=elapsed_s,
        remaining_s=ahead_s,
        target_s=np.zeros(len(rate)),
        weight=weights(given),
    )
    ends_s = np.where(np.isfinite(ahead_s), ahead_s, 0.0)
    return replace(buyers, target_s=finish_target_s(elapsed_s, ends_s, buyers.share))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketRound:
    """The order of one round of a window.

    First come the jobs that need slots for all the rest of the window, then running jobs of the plan, then
    the other jobs of the plan, each by priority. Slots that are left go to the longest remaining time.
    """

    name: str
    left_s: float
    planned_s: FloatArray
    priority: FloatArray

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """Return the choices in this order."""
        planned = self.planned_s > 0
        needs_all = planned & (self.planned_s >= self.left_s)
        turn = np.where(needs_all, 0, np.where(planned & holding(given), 1, np.where(planned, 2, 3)))
        ahead_s = buyers_of(given).remaining_s
        by = np.where(planned, self.priority, np.where(np.isfinite(ahead_s), ahead_s, 0.0))
        return served(given, np.lexsort((-by, turn)))
