"""When a periodic checkpoint is due. Pure.

The interval is Daly's first-order optimum, sqrt(2 * cost * MTBF) - cost (J. T. Daly, "A higher order estimate of the
optimum checkpoint interval for restart dumps", 2006): it balances what saving costs against what a failure loses.
"""

from __future__ import annotations

import math

PRIOR_MTBF_S = 4 * 3600.0
"""Mean time between losses of a job that has not shown its own yet; it weighs as much as one loss."""
SHORTEST_S = 30.0
LONGEST_S = 1800.0
WRITES = 2.0
"""An interval is at least so many times as long as a save takes in all: storage is not to be written without end."""


class Schedule:
    """The times at which to save, by what saving costs and how often the job loses ranks.

    `every_s` fixes the interval; None leaves the choice to the formula, between `SHORTEST_S` and `LONGEST_S`. Times
    are of one monotonic clock, in seconds.
    """

    def __init__(self, every_s: float | None, now: float) -> None:
        self._every_s = every_s
        self._began = self._last = now
        self._losses = 0
        self._cost_s = 0.0
        self._total_s = 0.0

    def mtbf_s(self, now: float) -> float:
        """The mean time between losses, as estimated from the prior and this run."""
        return (PRIOR_MTBF_S + now - self._began) / (1 + self._losses)

    def interval_s(self, now: float) -> float:
        """The time from the begin of one save to the next."""
        if self._every_s is not None:
            return self._every_s
        wanted = max(best_interval_s(self._cost_s, self.mtbf_s(now)), WRITES * self._total_s)
        return min(max(wanted, SHORTEST_S), LONGEST_S)

    def due(self, now: float) -> bool:
        """Whether a checkpoint should be saved."""
        return now - self._last >= self.interval_s(now)

    def saved(self, now: float, cost_s: float) -> None:
        """A save has begun, or failed, and has held up training for `cost_s`."""
        self._last, self._cost_s = now, cost_s

    def completed(self, total_s: float) -> None:
        """The save ended `total_s` after its begin."""
        self._total_s = total_s

    def failed(self) -> None:
        """A rank was lost. The interval may become shorter; a save that it makes due is due at once."""
        self._losses += 1


def best_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Daly's interval; the mean time between losses itself where a save costs more than half of it."""
    if cost_s >= mtbf_s / 2:
        return mtbf_s
    return math.sqrt(2 * cost_s * mtbf_s) - cost_s
