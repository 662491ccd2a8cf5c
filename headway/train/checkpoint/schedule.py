"""The schedule of periodic checkpoints. The module does no I/O."""

from __future__ import annotations

from headway.contract.values.checkpoint_interval import checkpoint_interval_s

PRIOR_H = 4.0
"""Weight of the expected losses in hours of training: so many hours without a loss count as much."""
_HOUR_S = 3600.0


class Schedule:
    """The times of checkpoints, from the cost of saving and the rate of losses.

    `every_s` fixes the interval; None leaves the choice to `checkpoint_interval_s`. `losses_per_h` is the rate
    that the service expects on the job's machines. Without it, one loss in `PRIOR_H` hours is the prior, which
    this run corrects. Times are of one monotonic clock, in seconds.
    """

    def __init__(self, every_s: float | None, now: float, losses_per_h: float | None = None) -> None:
        self._every_s = every_s
        self._began = self._last = self._since = now
        self._expected_per_h = losses_per_h
        self._expected = 0.0
        self._losses = 0
        self._cost_s = 0.0
        self.total_s = 0.0
        """Time from start to end of the last save; 0 before its end."""

    def expect(self, losses_per_h: float | None, now: float) -> None:
        """Follow another expected rate of losses from now on. None changes nothing."""
        if losses_per_h is None or losses_per_h == self._expected_per_h:
            return
        self._expected = self._expected_losses(now)
        self._expected_per_h, self._since = losses_per_h, now

    def losses_per_h(self, now: float) -> float:
        """Return the rate of losses: the expected one, plus the excess of the losses that this run has seen."""
        watched_h = PRIOR_H + (now - self._began) / _HOUR_S
        if self._expected_per_h is None:
            return (1 + self._losses) / watched_h
        return self._expected_per_h + max(0.0, self._losses - self._expected_losses(now)) / watched_h

    def interval_s(self, now: float) -> float:
        """Return the time from the start of one save to the next."""
        if self._every_s is not None:
            return self._every_s
        return checkpoint_interval_s(
            losses_per_h=self.losses_per_h(now), cost_s=self._cost_s, total_s=self.total_s
        )

    def due(self, now: float) -> bool:
        """Return True if a checkpoint is due."""
        return now - self._last >= self.interval_s(now)

    def saved(self, now: float, cost_s: float) -> None:
        """Record that a save has started, or failed, and paused training for `cost_s`."""
        self._last, self._cost_s = now, cost_s

    def completed(self, total_s: float) -> None:
        """Record that the save ended `total_s` after its start."""
        self.total_s = total_s

    def failed(self) -> None:
        """Record the loss of a rank. A shorter interval may make a save due at once."""
        self._losses += 1

    def _expected_losses(self, now: float) -> float:
        return self._expected + (self._expected_per_h or 0.0) * (now - self._since) / _HOUR_S
