"""The default: fair speedups, shorter jobs first, changes only where they pay, and nobody starves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.arrays import BoolArray, FloatArray
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.solving import solved
from service.domain.policies.speedup import (
    at_fair_share,
    finite,
    kept,
    known_length,
    usable_goodput,
    weights,
)

_LASTS = 0.5
"""Of the mean time between a job's changes: what it may count on. What is to come is not known to be as calm."""
_AND_BACK = 2.0
"""Times its cost, what a change is charged with."""
_LEAST_S = 600.0
"""A job of which nothing is known but that it was served for less may well go on for as long as that: young jobs are
alike, and do not stop one another.
"""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Shortens mean completion time: fair speedups, shorter jobs first, and changes only where they pay.

    Maximises the sum of weight * rank ** shortest_first * patience * (speedup * change) ** p over the jobs:

    - speedup: goodput over the best goodput on a fair share of the slots (Pollux). With p between 0 and 1 slots go where
      they help most, but the first ones of a job help more than another's last ones (p-mean fairness).
    - rank: 1 for the job with the longest time to go, up to the number of jobs for the shortest. With speedups k ** q
      the optimum for mean completion time gives an hour of a job's work a worth that grows as about rank ** q and does
      not depend on the sizes themselves (heSRPT: Berg, Vesilo and Harchol-Balter, 2020). A job of unknown length has the
      rank that is to be expected: as likely to last as long again as it was served, as sizes are that spread over many
      orders of magnitude, it outlasts another with t seconds to go with probability served / (served + t). So of jobs
      that nobody knows the length of, the ones that were served least count most.
    - change, where the job does not hold the configuration: the share of the time until its next change that this one
      leaves for training. It is charged twice: a job that gives up slots today wants them back when others have ended.
      The next change is taken to come after half of the time that there was between its changes up to now, but not
      within `settled_s`, or with its end, where that is known. A start costs as much: short jobs do not gain much from
      many slots. To lose all slots costs a running job what is missing to 1, since it has to start again, and to lose a
      part of its worth that part of it, since it will want to come back: else a job with a long restart would be sent
      to a few slots for a minute, which it spends on starting.
    - patience: (1 + seconds waited in all / (seconds served + patience_s)) ** 2: without bound for a job that gets
      nothing, so that every job has its turn, and no more than the inverse square of its share for one that runs.
    """

    name: ClassVar[str] = "goodput"
    p: float = parameter(
        0.8,
        "Fairness: towards 0 shares are more even, towards 1 they go where most is gained.",
        above=0,
        at_most=1,
    )
    shortest_first: float = parameter(
        0.6, "How much more shorter jobs count; 0: as much as others.", at_least=0, at_most=2
    )
    settled_s: float = parameter(
        400.0, "Seconds for which a change is counted on at least: the fewer, the fewer changes.", at_least=1
    )
    patience_s: float = parameter(
        3600.0, "Seconds of waiting after which a job that never ran counts four times as much.", at_least=1
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        goodput = usable_goodput(given)
        share = at_fair_share(given)
        speedup = goodput / share[:, None]
        to_go_s = finite(given.remaining) / share
        worth = self._weight(given, to_go_s)[:, None] * speedup**self.p
        left = self._left_by_change(given, to_go_s, speedup)
        utility = worth * np.where(kept(given), 1.0, left**self.p)
        if given.thrift is not None:
            utility = utility * given.thrift**self.p
        held = np.where(kept(given), worth, 0.0).max(axis=1, initial=0.0)
        back = np.where(kept(given), worth * (1 - left), 0.0).max(axis=1, initial=0.0)
        given_up = np.maximum(1 - worth / np.maximum(held, 1e-12)[:, None], 0.0)
        utility = np.where(goodput > 0, utility - back[:, None] * given_up, -np.inf)
        return solved(given, solve, utility, -back, "weighted speedup ** p")

    def _weight(self, given: RoundInput, to_go_s: FloatArray) -> FloatArray:
        """(J,) what a job's speedup counts."""
        served_s = finite(given.served_s).sum(axis=1)
        waited_s = np.maximum(finite(given.age_s) - served_s, finite(given.waited_s))
        patience = (1 + waited_s / (served_s + self.patience_s)) ** 2
        rank = _rank(to_go_s, known_length(given), served_s)
        return np.asarray(weights(given) * rank**self.shortest_first * patience)

    def _left_by_change(self, given: RoundInput, to_go_s: FloatArray, speedup: FloatArray) -> FloatArray:
        """(J, C) the share of a job's training that a change to a configuration now leaves, from 0 to 1.

        `to_go_s` (J,) are seconds at a speedup of 1; those of unknown lengths do not count.
        """
        between_s = finite(given.age_s) / (1 + finite(given.changes))
        usual_s = np.maximum(self.settled_s, _LASTS * between_s)[:, None]
        end_s = np.where(known_length(given)[:, None], to_go_s[:, None] / np.maximum(speedup, 1e-9), np.inf)
        lasts_s = np.minimum(usual_s, end_s)
        change_s = _AND_BACK * finite(given.change_s)[:, None]
        return np.asarray(np.where(change_s > 0, lasts_s / np.maximum(lasts_s + change_s, 1e-9), 1.0))


def _rank(to_go_s: FloatArray, known: BoolArray, served_s: FloatArray) -> FloatArray:
    """(J,) from 1 for the job with the longest time to go up to J for the shortest: one more than the number of others
    that will outlast each. Equal ones share their ranks; of jobs that are not `known` it is the expected number.
    """
    rank = np.ones(len(known))
    of_known, which = to_go_s[known], np.flatnonzero(known)
    ascending = np.sort(of_known)
    longer = len(which) - np.searchsorted(ascending, of_known, side="right")
    alike = np.searchsorted(ascending, of_known, side="right") - np.searchsorted(ascending, of_known)
    rank[which] += longer + (alike - 1) / 2
    unknown = np.flatnonzero(~known)
    time_s = np.where(known, to_go_s, np.maximum(served_s, _LEAST_S))
    outlasted_by = time_s[unknown] / (np.maximum(time_s, 1e-9)[:, None] + time_s[unknown])
    rank += outlasted_by.sum(axis=1)
    # Of a pair one outlasts the other; and nobody outlasts itself, which counted as a half.
    rank[unknown] += (1 - outlasted_by[which]).sum(axis=0) - 0.5
    return rank
