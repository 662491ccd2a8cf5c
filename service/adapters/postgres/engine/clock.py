"""One clock for all processes of the service: the database's clock.

Between two readings, a local clock that cannot jump carries it on.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

log = structlog.get_logger()

SAMPLE_EVERY_S: Final = 2.0
STEP: Final = timedelta(seconds=1)
"""Difference above which the database's clock counts as set by hand.

The local clock then follows in one step.
"""


def boot_s() -> float:
    """Return the seconds since this machine started, including time in suspend."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class DatabaseClock:
    """Clock that all replicas agree on.

    Until the first reading it is this machine's own clock. It goes backwards only when the database's clock
    was set back: then all processes follow, since different clocks would be worse.

    Args:
        read: returns the database's time. Raises Unavailable.
        elapsed_s: seconds of a clock that nobody sets.
        wall: this machine's clock, read once.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[datetime]],
        *,
        elapsed_s: Callable[[], float] = boot_s,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._read = read
        self._elapsed_s = elapsed_s
        self._zero = wall() - timedelta(seconds=elapsed_s())
        """The time at which `elapsed_s` was 0."""
        self._latest = self._at(elapsed_s())
        self._synchronised = False

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        self._latest = max(self._latest, self._at(self._elapsed_s()))
        return self._latest

    async def look(self) -> None:
        """Set the clock by the database's clock. Raises Unavailable, which leaves the clock as it was."""
        asked_s = self._elapsed_s()
        answer = await self._read()
        answered_s = self._elapsed_s()
        # When the answer arrives, the true time lies between the answer and the answer plus the round-trip
        # time.
        here, earliest = self._at(answered_s), answer
        latest = answer + timedelta(seconds=answered_s - asked_s)
        offset = min(max(here, earliest), latest) - here
        if not self._synchronised or abs(offset) > STEP:
            if self._synchronised:
                log.warning("clock_stepped", by_s=round(offset.total_seconds(), 3))
            self._latest = here + offset
        self._synchronised = True
        self._zero += offset

    def _at(self, elapsed_s: float) -> datetime:
        return self._zero + timedelta(seconds=elapsed_s)
