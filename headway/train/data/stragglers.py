"""Detection of a rank that stays slower than its peers, from the times that ranks exchange with every step. No I/O.

A rank is slow in a step if it takes `SLOW` times as long per sample as the median of the others, at least `LEAST_EXCESS_S`
longer, and longer than half of the ranks.
It is a straggler once it was slow in `FOUND_AT` of the last `WINDOW` steps, until it was slow in at most `CLEARED_AT` of them.
A count of steps, unlike a mean, does not move with a few long steps. Where long steps are frequent, all ranks are slow by
chance in some share of them. A straggler's count must also lie `FOUND_DEVIATIONS` standard deviations of the binomial
distribution with that share above the mean count of all ranks.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from operator import mul

from headway.train.data.step_rates import RANKS_EVERY_STEP

SLOW = 1.3
LEAST_EXCESS_S = 0.002
"""Shorter differences come from the operating system's scheduler."""
WINDOW = 40
FOUND_AT = 30
FOUND_DEVIATIONS = 6.0
"""Five name six equal ranks of 18 in a million steps, if noise is lognormal (0.5) and every fourth step takes ten times as long."""
CLEARED_AT = 10
FEWEST_RANKS = 3
"""Fewest ranks that are compared: of two, either may have the unusual work."""
_SMOOTHING = 0.1
"""Weight of the newest step in the reported ratio."""
_MOST_TIMES = 100.0
_REPEATED_STEPS = 1024
"""Steps after which present stragglers are reported again, because the service forgets them."""
_MASK = (1 << WINDOW) - 1


class StragglerWatch:
    """The stragglers of a job, on its rank 0."""

    def __init__(self) -> None:
        self._ranks = 0
        self._slow: dict[int, int] = {}
        """Bits of each rank that was slow lately: one for each recent step in which it was. A step without any costs little."""
        self._times: dict[int, float] = {}
        """Usual ratio to the median of the others, of each of these ranks."""
        self._found: set[int] = set()
        self._steps = 0
        self.changed = False
        """True if a straggler was found, is none any more, or is to be reported again, since the last `take`."""

    def observe(self, samples: Sequence[int], compute_s: Sequence[float], speeds: Sequence[float]) -> None:
        """Process a step: samples of each rank, and its seconds without waits for peers (0: unknown).

        `speeds` are the expected relative speeds of the ranks, or empty for equal ones. From `RANKS_EVERY_STEP` ranks on,
        only every second step counts, and so on.
        """
        ranks = len(samples)
        if self._ranks != ranks:
            self.forget()
            self._ranks = ranks
        self._steps += 1
        if self._steps % (1 + ranks // (RANKS_EVERY_STEP + 1)):
            return
        sample_s = [
            seconds / count if count and seconds > 0.0 else 0.0
            for count, seconds in zip(samples, compute_s, strict=True)
        ]
        if len(speeds) == ranks:
            sample_s = list(map(mul, sample_s, speeds))
        known = sorted(filter(None, sample_s))
        if len(known) < FEWEST_RANKS:
            return
        middle = known[(len(known) - 1) // 2]
        # The median of the others is not below this time, whichever rank is left out.
        least = SLOW * known[(len(known) - 2) // 2]
        if known[-1] >= least:
            for rank, own in enumerate(sample_s):
                if own >= least:
                    self._slow.setdefault(rank, 0)
        for rank in sorted(self._slow):
            own = sample_s[rank]
            times = min(own / _median_of_others(known, own), _MOST_TIMES)
            slow = own > middle and times >= SLOW and compute_s[rank] * (1.0 - 1.0 / times) >= LEAST_EXCESS_S
            self._slow[rank] = (self._slow[rank] << 1 | slow) & _MASK
            before = self._times.get(rank, 1.0)
            self._times[rank] = before + _SMOOTHING * (times - before) if own > 0.0 else before
            self._judge(rank)
            if not self._slow[rank]:
                del self._slow[rank], self._times[rank]
        if self._found and self._steps % _REPEATED_STEPS == 0:
            self.changed = True

    def forget(self) -> None:
        """Begin anew, because the ranks change."""
        self._slow, self._times, self._found = {}, {}, set()
        self._ranks, self._steps, self.changed = 0, 0, False

    def take(self) -> tuple[float, ...]:
        """Return how many times as long as the median each straggler takes per sample, 0 for the others.

        The result is empty while there is nothing to report.
        """
        if not self.changed:
            return ()
        self.changed = False
        return tuple(
            round(self._times[rank], 2) if rank in self._found else 0.0 for rank in range(self._ranks)
        )

    def _judge(self, rank: int) -> None:
        count = self._slow[rank].bit_count()
        if rank not in self._found and count >= FOUND_AT and count >= self._beyond_chance():
            self._found.add(rank)
        elif rank in self._found and count <= CLEARED_AT:
            self._found.remove(rank)
        else:
            return
        self.changed = True

    def _beyond_chance(self) -> float:
        """Return the least count of slow steps that chance does not explain."""
        usual = sum(bits.bit_count() for bits in self._slow.values()) / self._ranks
        return usual + FOUND_DEVIATIONS * math.sqrt(usual * (1.0 - usual / WINDOW))


def _median_of_others(known: Sequence[float], own: float) -> float:
    """Return the median of the sorted times without one that is `own`: the geometric mean of the middle two of an even number.

    A median of all would be biased where ranks are few: of three, it is the slower one of two that are alike.
    """
    place, count = bisect.bisect_left(known, own), len(known) - 1
    lower, upper = (known[one + (one >= place)] for one in ((count - 1) // 2, count // 2))
    return math.sqrt(lower * upper)
