"""Shockwave policy (Zheng et al., NSDI'23): finish-time fairness and makespan by a plan of the next rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.market import MarketRules
from service.domain.policies.framework.market_round import MarketRound, MarketWindow, next_window
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, Policy, RoundHistory, RoundInput


@dataclass(frozen=True, slots=True)
class Shockwave:
    """Jobs at their requested sizes, each by its fair finish time, by a plan of the next rounds.

    Over a window of F rounds, maximises the mean of log(part done at the end) / F - makespan_weight *
    max(remaining time). A job may need at most `max_rho` times its fair time from submission to end, (elapsed
    + remaining) / share, where the share is min(1, slots / jobs). As published, the fair time is 0.9 * the mean
    of the estimates so far + 0.1 * the latest. If the slots do not suffice for all jobs, their logarithms are
    weighted by rho ** `unfairness_power` instead, and the job with the greatest rho goes first.

    The window is planned again when a job comes or goes. Slots left over go to the longest remaining time.
    The authors forecast how jobs change their batches; here the remaining work and speed are those of the
    round. A target within the window, which their program cannot keep, asks for all rounds a job can use.
    """

    name: ClassVar[str] = "shockwave"
    rounds: float = parameter(20.0, "Rounds of a window (F).", at_least=1, at_most=200)
    round_s: float = parameter(120.0, "Seconds of a planned round.", above=0)
    makespan_weight: float = parameter(
        1e-3,
        "Weight of a second of the longest remaining time (k); the authors tune it by cluster.",
        at_least=0,
    )
    unfairness_power: float = parameter(
        12.0, "Power of rho in the weights if targets cannot be kept (lambda).", at_least=0, at_most=50
    )
    max_rho: float = parameter(1.0, "Maximum time from submission to end over the fair one.", above=0)

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        """Return the policy of this round, and the plan of the window."""
        window = MarketWindow.from_json(history.state)
        window = next_window(window, given, history.job_ids, history.elapsed_s, self._rules())
        return self._round_of(window, history.job_ids), window.to_json() if window.jobs else {}

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices of the first round of a new window, for callers without state."""
        job_ids = [str(row) for row in range(len(given.goodput))]
        window = next_window(MarketWindow(), given, job_ids, 0.0, self._rules())
        return self._round_of(window, job_ids).choose(given, solve)

    def _rules(self) -> MarketRules:
        return MarketRules(
            rounds=int(self.rounds),
            round_s=self.round_s,
            makespan_weight=self.makespan_weight,
            unfairness_power=self.unfairness_power,
            max_rho=self.max_rho,
        )

    def _round_of(self, window: MarketWindow, job_ids: Sequence[str]) -> MarketRound:
        jobs = [window.jobs[job] for job in job_ids]
        return MarketRound(
            name=self.name,
            left_s=window.left_s,
            planned_s=np.array([one.planned_s for one in jobs], dtype=np.float64),
            priority=np.array([one.priority for one in jobs], dtype=np.float64),
        )
