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
        self._unsized: frozenset[int] = frozenset()
        """Rows of the jobs of unknown length that earlier rounds saw, without those whose end was passed on."""
        configurations = world.configurations
        owned = not np.any(configurations.usd_per_h > 0)
        self._usd_per_h = configurations.slots * 1.0 if owned else configurations.usd_per_h

    def advanced(
        self,
        policy: CheckedPolicy,
        given: RoundInput,
        rows: IntArray,
        jobs: ReplayJobs,
        now_s: float,
        rented_usd_per_h: float | None,
    ) -> Policy:
        """Return the policy for this round. The round decides about the jobs `rows` (n,).

        `rented_usd_per_h` are the dollars per hour of rented machines, used or not; None without machines.
        """
        arrivals, applications = self._world.arrivals, self._world.applications
        held = given.current[given.current != NOTHING]
        sized = np.isfinite(given.remaining)
        ended = sorted(row for row in self._unsized if np.isfinite(jobs.end_s[row]))
        history = RoundHistory(
            elapsed_s=now_s - self._before_s,
            usd_per_h=float(self._usd_per_h[held].sum()) if rented_usd_per_h is None else rented_usd_per_h,
            job_ids=[arrivals[row].id for row in rows.tolist()],
            classes=[applications[index].name for index in jobs.application[rows].tolist()],
            samples=np.where(sized, jobs.work(rows), np.nan),
            state=self.state,
            ended=[
                (applications[jobs.application[row]].name, work)
                for row, work in zip(ended, jobs.work(np.array(ended, dtype=np.int64)).tolist(), strict=True)
            ],
        )
        self._before_s = now_s
        self._unsized = (self._unsized - {*ended, *rows[sized].tolist()}) | {*rows[~sized].tolist()}
        follows, self.state = policy.advance(given, history)
        return follows
