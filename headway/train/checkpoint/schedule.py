"""The schedule of periodic checkpoints. The module does no I/O.

The interval is Daly's first-order optimum, sqrt(2 * cost * MTBF) - cost (J. T. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", 2006). It balances the cost of saving against the work
lost in a failure.
"""

from __future__ import annotations

import math

PRIOR_MTBF_S = 4 * 3600.0
"""Prior mean time between losses of ranks; it weighs as much as one observed loss."""
SHORTEST_S = 30.0
LONGEST_S = 1800.0
WRITES = 2.0
"""Shortest interval in multiples of the total duration of a save, to limit the load on storage."""


class Schedule:
    """The times of checkpoints, from the cost of saving and the rate of losses of ranks.

    `every_s` fixes the interval; None leaves the choice to the formula, between `SHORTEST_S` and `LONGEST_S`.
    Times are of one monotonic clock, in seconds.
    """

    def __init__(self, every_s: float | None, now: float) -> None:
        self._every_s = every_s
        self._began = self._last = now
        self._losses = 0
        self._cost_s = 0.0
        self._total_s = 0.0

    def mtbf_s(self, now: float) -> float:
        """Return the mean time between losses, estimated from the prior and this run."""
        return (PRIOR_MTBF_S + now - self._began) / (1 + self._losses)

    def interval_s(self, now: float) -> float:
        """Return the time from the start of one save to the next."""
        if self._every_s is not None:
            return self._every_s
        wanted = max(best_interval_s(self._cost_s, self.mtbf_s(now)), WRITES * self._total_s)
        return min(max(wanted, SHORTEST_S), LONGEST_S)

    def due(self, now: float) -> bool:
        """Return True if a checkpoint is due."""
        return now - self._last >= self.interval_s(now)

    def saved(self, now: float, cost_s: float) -> None:
        """Record that a save has started, or failed, and paused training for `cost_s`."""
        self._last, self._cost_s = now, cost_s

    def completed(self, total_s: float) -> None:
        """Record that the save ended `total_s` after its start."""
        self._total_s = total_s

    def failed(self) -> None:
        """Record the loss of a rank. A shorter interval may make a save due at once."""
        self._losses += 1


def best_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return Daly's interval; the mean time between losses itself if a save costs more than half of it."""
    if cost_s >= mtbf_s / 2:
        return mtbf_s
    return math.sqrt(2 * cost_s * mtbf_s) - cost_s
