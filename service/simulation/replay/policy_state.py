"""State of a policy in a replay, as `service.domain.allocation.inputs.policy_state` keeps it for the live cluster."""

from __future__ import annotations

import numpy as np

from service.domain.allocation.inputs.policy_state import state_of
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.framework.checked import CheckedPolicy
from service.domain.policies.framework.policy import Policy, RoundHistory, RoundInput
from service.domain.shared.arrays import IntArray
from service.simulation.model.world import World
from service.simulation.replay.jobs import ReplayJobs


class PolicyState:
    """State that the policy of a replay carries from round to round."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.state = state_of(world.policy_state)
        self._before_s = 0.0
        configurations = world.configurations
        owned = not np.any(configurations.usd_per_h > 0)
        self._usd_per_h = configurations.slots * 1.0 if owned else configurations.usd_per_h

    def advanced(
        self, policy: CheckedPolicy, given: RoundInput, rows: IntArray, jobs: ReplayJobs, now_s: float
    ) -> Policy:
        """Return the policy for this round. The round decides about the jobs `rows` (n,)."""
        arrivals, applications = self._world.arrivals, self._world.applications
        held = given.current[given.current != NOTHING]
        history = RoundHistory(
            elapsed_s=now_s - self._before_s,
            usd_per_h=float(self._usd_per_h[held].sum()),
            job_ids=[arrivals[row].id for row in rows.tolist()],
            classes=[applications[index].name for index in jobs.application[rows].tolist()],
            samples=np.where(np.isfinite(given.remaining), jobs.total[rows], np.nan),
            state=self.state,
        )
        self._before_s = now_s
        follows, self.state = policy.advance(given, history)
        return follows
