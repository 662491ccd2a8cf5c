"""Rate limits by token bucket: a bucket fills at a steady rate, and each request takes from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: `per_s` requests a second on average, and `burst` at once."""

    per_s: float
    burst: float


@dataclass(slots=True)
class Bucket:
    """The tokens left for one client. `at_s` is the time at which `left` was computed."""

    left: float
    at_s: float

    def take(self, rate: Rate, now_s: float, cost: float = 1.0) -> float:
        """Take `cost` tokens if they are available.

        Return 0 if they were taken, otherwise the seconds until they are available.
        """
        # A clock that goes backwards neither adds nor removes tokens.
        self.left = min(rate.burst, self.left + rate.per_s * max(0.0, now_s - self.at_s))
        self.at_s = max(self.at_s, now_s)
        if self.left >= cost:
            self.left -= cost
            return 0.0
        return (cost - self.left) / rate.per_s

    def charge(self, rate: Rate, now_s: float, cost: float) -> None:
        """Take `cost` tokens even if fewer are available. The debt must refill first."""
        self.take(rate, now_s, 0.0)
        self.left = max(self.left - cost, -rate.burst)
