"""The memory of a policy under a budget, as `service.domain.allocation.steering` keeps it for the live cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.steering import after_spending, remembered
from service.domain.arrays import IntArray
from service.domain.policies.budget import Budget
from service.domain.policies.class_statistics import observe_jobs
from service.domain.policies.policy import Policy, RoundInput
from service.simulation.jobs import Jobs
from service.simulation.world import World


class Steering:
    """What was spent and what arrived up to now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.state, self._statistics = remembered(world.policy_state)
        """Of the budget, and what it learned."""
        self._before_s = 0.0
        configurations = world.configurations
        owned = not np.any(configurations.usd_per_h > 0)
        self._usd_per_h = configurations.slots * 1.0 if owned else configurations.usd_per_h

    def steered(self, policy: Policy, given: RoundInput, rows: IntArray, jobs: Jobs, now_s: float) -> Policy:
        """The policy for this round, of the jobs `rows` (n,). Only a budget that is not fixed changes."""
        if not isinstance(policy, Budget) or policy.mu_h_per_usd >= 0:
            return policy
        elapsed_s = now_s - self._before_s
        self._before_s = now_s
        self._observe(given, rows, jobs, elapsed_s)
        held = given.current[given.current != NOTHING]
        self.state = after_spending(
            policy,
            given,
            self._statistics,
            self.state,
            usd_per_h=float(self._usd_per_h[held].sum()),
            elapsed_s=elapsed_s,
        )
        return replace(policy, mu_h_per_usd=self.state.mu_h_per_usd)

    def _observe(self, given: RoundInput, rows: IntArray, jobs: Jobs, elapsed_s: float) -> None:
        arrivals, applications = self._world.arrivals, self._world.applications
        names = [applications[index].name for index in jobs.application[rows].tolist()]
        declared = np.isfinite(given.remaining)
        self._statistics = observe_jobs(
            self._statistics,
            given,
            elapsed_s=elapsed_s,
            job_ids=[arrivals[row].id for row in rows.tolist()],
            classes=names,
            samples=np.where(declared, jobs.total[rows], np.nan),
        )
