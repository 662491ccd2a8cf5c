"""Default policy: fair speedups, shorter jobs first, changes only if they pay off, and no starvation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.length_ranks import expected_ranks
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.solving import solved
from service.domain.policies.framework.speedup import (
    at_fair_share,
    finite,
    kept,
    known_length,
    stop_cost_s,
    usable_goodput,
    weights,
)
from service.domain.policies.framework.work_left import ranks, work_left
from service.domain.shared.arrays import FloatArray

_LASTS = 0.75
"""Fraction of the mean time between a job's changes that is assumed until its next one; the future may be
less calm.
"""
_AND_BACK = 2.0
"""Factor on the cost of a change, since a job that gives up slots wants them back later."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Short mean completion time: fair speedups, shorter jobs first, and changes only if they pay off.

    Maximises the sum of weight * rank ** shortest_first * patience * (speedup * change) ** p over the jobs.
    `thrift`, where given, multiplies the worth of a configuration to the power p.

    - speedup: goodput over the best goodput on a fair share of the slots (Pollux). With p between 0 and 1
      slots go where they help most, but the first slots of a job help more than another job's last slots
      (p-mean fairness).
    - rank: 1 for the job with the longest time to go, up to the number of jobs for the shortest. With
      speedups k ** q, the optimum for mean completion time gives an hour of a job's work a worth that grows
      as about rank ** q (heSRPT: Berg, Vesilo and Harchol-Balter, 2020). It does not depend on the sizes. A job of
      unknown length has its expected rank. What is left of it follows from the ended jobs of its class
      (`work_left`). While no job has ended, it lasts as long again as it was served with probability 1/2
      (`length_ranks`).
    - change, for a configuration that the job does not hold: the fraction of the time until its next change
      that this change leaves for training. The change is charged twice, because a job that gives up slots
      today wants them back when others have ended. The next change is assumed after three quarters of the
      mean time between the job's changes so far, but not within `settled_s`; the job's end, if known, comes
      instead if it is earlier; if unknown, it is averaged over the times that ended jobs of the class make
      likely. A start costs as much: short jobs gain little from many slots. A running job
      that loses all of its slots is charged 1 - change, since it has to start again. A job that loses a part
      of its worth is charged that part of 1 - change, since it will grow back later. Otherwise a job with a
      long restart could be sent to a few slots for a minute, which it would spend on starting. The loss of all slots
      costs a stop and a start (`RoundInput.stop_s`), also for a job that changes in place.
    - patience: (1 + seconds waited in all / (seconds served + patience_s)) ** 2. It is unbounded for a job
      that gets nothing, so that every job has its turn, and at most the inverse square of its share for a
      running job.
    """

    name: ClassVar[str] = "goodput"
    p: float = parameter(
        0.8,
        "Fairness: towards 0 shares are more even, towards 1 slots go where they gain most.",
        above=0,
        at_most=1,
    )
    shortest_first: float = parameter(
        0.7, "Exponent of the preference for shorter jobs; 0: no preference.", at_least=0, at_most=2
    )
    settled_s: float = parameter(
        500.0,
        "Minimum time in seconds between changes that is assumed; a lower value gives fewer changes.",
        at_least=1,
    )
    patience_s: float = parameter(
        3600.0, "Wait in seconds after which a job that never ran has four times its weight.", at_least=1
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices with the greatest total of weighted speedups."""
        goodput = usable_goodput(given)
        share = at_fair_share(given)
        speedup = goodput / share[:, None]
        learned = work_left(given, share)
        left_s = None if learned is None else learned / share[:, None]
        worth = self._weight(given, share, left_s)[:, None] * speedup**self.p
        left = self._left_by_change(given, given.change_s, share, speedup, left_s)
        utility = worth * np.where(kept(given), 1.0, left**self.p)
        if given.thrift is not None:
            utility = utility * given.thrift**self.p
        held = np.where(kept(given), worth, 0.0).max(axis=1, initial=0.0)
        back = np.where(kept(given), worth * (1 - left), 0.0).max(axis=1, initial=0.0)
        now = np.where(kept(given), speedup, 0.0).max(axis=1, initial=0.0)[:, None]
        stopped = held * (1 - self._left_by_change(given, stop_cost_s(given), share, now, left_s)[:, 0])
        given_up = np.maximum(1 - worth / np.maximum(held, 1e-12)[:, None], 0.0)
        utility = np.where(goodput > 0, utility - back[:, None] * given_up, -np.inf)
        return solved(given, solve, utility, -stopped, "speedup weighted by priority and fairness")

    def _weight(self, given: RoundInput, share: FloatArray, left_s: FloatArray | None) -> FloatArray:
        """Return the weight (J,) of each job's speedup. `left_s` (J, V) are likely times to go at a speedup of 1."""
        served_s = finite(given.served_s).sum(axis=1)
        waited_s = np.maximum(finite(given.age_s) - served_s, finite(given.waited_s))
        patience = (1 + waited_s / (served_s + self.patience_s)) ** 2
        if left_s is None:
            rank = expected_ranks(finite(given.remaining) / share, known_length(given), served_s)
        else:
            rank = ranks(left_s)
        return np.asarray(weights(given) * rank**self.shortest_first * patience)

    def _left_by_change(
        self,
        given: RoundInput,
        cost_s: FloatArray,
        share: FloatArray,
        speedup: FloatArray,
        left_s: FloatArray | None,
    ) -> FloatArray:
        """Return the fraction (J, C), from 0 to 1, of a job's training that a change to a configuration now
        leaves.

        `cost_s` (J,) is what the change costs, `share` (J,) is the goodput at a speedup of 1, and `left_s` (J, V) are likely times to go at it.
        """
        between_s = finite(given.age_s) / (1 + finite(given.changes))
        usual_s = np.maximum(self.settled_s, _LASTS * between_s)
        change_s = _AND_BACK * finite(cost_s)
        if left_s is None:
            end_s = np.where(known_length(given), finite(given.remaining) / share, np.inf)
            left_s = end_s[:, None]
        usual_s, change_s = usual_s[:, None], change_s[:, None]
        left = np.zeros(speedup.shape)
        for end_s in left_s.T:
            lasts_s = np.minimum(usual_s, end_s[:, None] / np.maximum(speedup, 1e-9))
            left += lasts_s / np.maximum(lasts_s + change_s, 1e-9)
        return np.where(change_s > 0, left / left_s.shape[1], 1.0)
