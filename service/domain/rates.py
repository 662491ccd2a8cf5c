"""How often somebody may ask: a bucket that fills steadily, and that each request takes one from. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` on average, and `burst` at once."""

    per_s: float
    burst: float


@dataclass(slots=True)
class Bucket:
    """What is left for one asker. `at_s` is when `left` was true."""

    left: float
    at_s: float

    def take(self, rate: Rate, now_s: float, cost: float = 1.0) -> float:
        """Take `cost`, if there is as much. Seconds until there will be; 0 when it was taken."""
        # Time that goes backwards fills nothing, and takes nothing away.
        self.left = min(rate.burst, self.left + rate.per_s * max(0.0, now_s - self.at_s))
        self.at_s = max(self.at_s, now_s)
        if self.left >= cost:
            self.left -= cost
            return 0.0
        return (cost - self.left) / rate.per_s

    def charge(self, rate: Rate, now_s: float, cost: float) -> None:
        """Take `cost`, be it more than there is: what is owed must fill up first."""
        self.take(rate, now_s, 0.0)
        self.left = max(self.left - cost, -rate.burst)
