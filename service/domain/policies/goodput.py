"""The default: fair speedups, shorter jobs first, changes only where they pay, and nobody starves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.arrays import FloatArray
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.solving import solved
from service.domain.policies.speedup import (
    changed,
    clean_goodput,
    finite,
    kept,
    least_goodput,
    remaining_s,
    restart_factor,
    usable_goodput,
    weights,
)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Shortens mean completion time: fair speedups, shorter jobs first, and changes only where they pay.

    Maximises the sum of weight * rank ** shortest_first * patience * (speedup * change) ** p over the jobs:

    - speedup: goodput over the job's least goodput, so that p between 0 and 1 shares slots out where they help most
      without leaving anybody at nothing (p-mean fairness).
    - rank: 1 for the job with the longest time to go, up to the number of jobs for the shortest. With speedups k ** q
      the optimum for mean completion time gives an hour of a job's work a worth that grows as about rank ** q and does
      not depend on the sizes themselves (heSRPT: Berg, Vesilo and Harchol-Balter, 2020).
    - change: the share of its life that a job trains if it goes on being changed so often (Pollux, Sia); a running
      job that would lose everything has a worth below nothing by as much, since its next start costs the same.
    - patience: 1 for a job that never waited, and one more for each `patience_s` that it has waited: without bound, so
      that every job gets its turn.
    """

    name: ClassVar[str] = "goodput"
    p: float = parameter(
        0.25,
        "Fairness: towards 0 shares are more even, towards 1 they go where most is gained.",
        above=0,
        at_most=1,
    )
    shortest_first: float = parameter(
        0.6, "How much sooner shorter jobs are served; 0: as soon as others.", at_least=0, at_most=2
    )
    patience_s: float = parameter(
        3600.0, "Seconds of waiting that count as much as the job itself.", at_least=1
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        goodput = usable_goodput(given)
        least = least_goodput(clean_goodput(given))
        factor = restart_factor(given, given.change_s)[:, None]
        speedup = goodput / least[:, None]
        worth = (self._weight(given, least)[:, None]) * speedup**self.p
        utility = np.where(changed(given), worth * factor**self.p, worth)
        lost = np.where(kept(given), worth * (1 - factor**self.p), 0.0).max(axis=1, initial=0.0)
        return solved(given, solve, np.where(goodput > 0, utility, -np.inf), -lost, "weighted speedup ** p")

    def _weight(self, given: RoundInput, least: FloatArray) -> FloatArray:
        """(J,) what a job's speedup counts."""
        waited_s = np.maximum(
            finite(given.age_s) - finite(given.served_s).sum(axis=1), finite(given.waited_s)
        )
        patience = 1 + waited_s / self.patience_s
        rank = _rank(remaining_s(given, least))
        return np.asarray(weights(given) * rank**self.shortest_first * patience)


def _rank(values: FloatArray) -> FloatArray:
    """(J,) 1 for the largest value, and one more for each that is smaller; equal ones by order."""
    rank = np.empty(len(values))
    rank[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return rank
