"""Step times as sufficient statistics, returned at intervals. The module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Number of steps, and sums over them: times, squared times, and waits for peers. Times are in seconds."""

    steps: int = 0
    step_s_sum: float = 0.0
    step_s_squares: float = 0.0
    sync_s_sum: float = 0.0

    def add(self, step_s: float, sync_s: float) -> StepTimes:
        """Return these statistics with one more step."""
        return StepTimes(
            self.steps + 1,
            self.step_s_sum + step_s,
            self.step_s_squares + step_s * step_s,
            self.sync_s_sum + sync_s,
        )


class Meter:
    """Collector of step times between reports, which are at least `every_s` apart. `now` is monotonic."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s = float("-inf")
        self._times = StepTimes()

    def add(self, step_s: float, sync_s: float = 0.0) -> None:
        """Record a step of full size that took `step_s` seconds, `sync_s` of them waiting for peers."""
        self._times = self._times.add(step_s, sync_s)

    def due(self, now: float) -> bool:
        """Return True if the next report is due."""
        return now >= self._next_s

    def take(self, now: float) -> StepTimes:
        """Return the steps since the last report and start the next interval."""
        times, self._times = self._times, StepTimes()
        self._next_s = now + self._every_s
        return times
