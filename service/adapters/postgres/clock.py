"""One clock for every process of the service: the database's, carried on between looks at it by one that cannot jump."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

log = structlog.get_logger()

SAMPLE_EVERY_S: Final = 2.0
STEP: Final = timedelta(seconds=1)
"""The database's clock is taken to have been set, and is followed at once, when it is off by more than this."""


def boot_s() -> float:
    """Seconds since this machine was started, those in which it slept included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class DatabaseClock:
    """The time that all replicas agree on.

    Before the first look it is this machine's own. It never goes back, unless the database's clock was set back: then
    all processes follow, since it is worse when they differ.

    Args:
        read: asks the database for its time. Raises Unavailable.
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
        """The time when `elapsed_s` was 0."""
        self._latest = self._at(elapsed_s())
        self._looked = False

    def now(self) -> datetime:
        """The time, in UTC."""
        self._latest = max(self._latest, self._at(self._elapsed_s()))
        return self._latest

    async def look(self) -> None:
        """Set the clock by the database's. Raises Unavailable; it goes on as it was then."""
        asked_s = self._elapsed_s()
        there = await self._read()
        answered_s = self._elapsed_s()
        # When the answer arrives, it is at least what the answer says, and at most that and the time of the way.
        here, earliest = self._at(answered_s), there
        latest = there + timedelta(seconds=answered_s - asked_s)
        off = min(max(here, earliest), latest) - here
        if not self._looked or abs(off) > STEP:
            if self._looked:
                log.warning("clock_stepped", by_s=round(off.total_seconds(), 3))
            self._latest = here + off
        self._looked = True
        self._zero += off

    def _at(self, elapsed_s: float) -> datetime:
        return self._zero + timedelta(seconds=elapsed_s)
