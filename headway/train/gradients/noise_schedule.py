"""Interval between noise measurements, from their cost and from the precision of the estimate. No I/O."""

from __future__ import annotations

import math
import statistics
from collections import deque

from headway.train.gradients.noise import NoiseScale

LEAST_STEPS = 8
"""Smallest interval in steps, also that of the first measurements.

The service lets 100 steps pass before the noise of a job counts, and this interval gives it 12 measurements. A lone rank,
whose measurements cost most of a step, makes 4.
"""
MOST_STEPS = 128
"""Largest interval in steps, which leaves 15 measurements in the memory of the estimate at the reference batch."""
FIRST_MEASUREMENTS = 12
"""Number of measurements before their scatter counts, which is then known to about a fifth."""
MOST_COST = 0.01
"""Share of training time for measurements: a third of the 3 % that Headway may add to a step."""
MOST_COST_AT_FIRST = 0.03
"""Share of training time for the first measurements, and for those of batches so large that few fit the memory."""
USEFUL_ERROR = 0.025
"""Half-width of the 95 % interval of the efficiency that a decision about the batch needs.

The service changes a batch for a gain of 5 %. Two efficiencies that differ by 5 % then have separate intervals.
"""
_FEWEST_REMEMBERED = 15
"""Number of measurements in the memory of the estimate that the interval leaves if they are affordable."""
_MEDIAN_OF = 5
"""Costs in the median, which hides two outliers of five."""


class NoiseSchedule:
    """The interval between noise measurements.

    `every` is the agreed interval of all ranks. `wanted` is this rank's proposal, from its own cost. The ranks agree
    on the largest proposal, because the slowest rank determines the time of a step.
    """

    def __init__(self) -> None:
        self.every = self.wanted = LEAST_STEPS
        self._costs: deque[float] = deque(maxlen=_MEDIAN_OF)

    def add_cost(self, share: float) -> None:
        """Record the cost of a measurement, as a multiple of a step without one. Invalid costs are ignored."""
        if math.isfinite(share) and share > 0.0:
            self._costs.append(share)

    def propose(self, noise: NoiseScale, batch: int) -> None:
        """Renew this rank's proposal after a measurement, for steps of `batch` samples."""
        estimate = noise.estimate
        if estimate is None or not self._costs:
            self.wanted = LEAST_STEPS
            return
        cost = statistics.median(self._costs)
        if estimate.steps < FIRST_MEASUREMENTS:
            self.wanted = _affordable(cost)
            return
        self.wanted = interval(
            cost=cost,
            error=noise.efficiency_error(batch),
            remembered=noise.remembered_steps(batch),
        )

    def agree(self, proposals: list[int]) -> None:
        """Adopt the largest proposal of the ranks; 0 stands for none."""
        self.every = max((one for one in proposals if one > 0), default=self.every)


def interval(*, cost: float, error: float, remembered: float) -> int:
    """Return the interval in steps, a power of two.

    It is the shortest that keeps the cost within `MOST_COST`, or a longer one if the estimate stays useful with it. Where
    that leaves too few measurements in the memory of the estimate, it is shorter, within `MOST_COST_AT_FIRST`.

    Args:
        cost: time of a measurement, as a multiple of a step without one.
        error: standard error of the efficiency from a single measurement, relative.
        remembered: steps in the memory of the estimate. A measurement in every k-th of them leaves an error of
            `error / sqrt(remembered / k)`.
    """
    most = min(MOST_STEPS, remembered / _FEWEST_REMEMBERED)
    every = _affordable(cost)
    while (longer := 2 * every) <= most:
        useful = 2.0 * error * math.sqrt(longer / remembered) <= USEFUL_ERROR
        if cost / every <= MOST_COST and not useful:
            break
        every = longer
    return every


def _affordable(cost: float) -> int:
    """Return the shortest interval that keeps the cost within `MOST_COST_AT_FIRST`, or else the largest interval."""
    every = LEAST_STEPS
    while every < MOST_STEPS and cost / every > MOST_COST_AT_FIRST:
        every *= 2
    return every
