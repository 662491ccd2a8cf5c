"""Detection of synchronisation that became slower, as behind a link that lost bandwidth. No I/O.

All ranks wait equally for a slow link, so their times do not say whose it is: hosts are then measured. A step is slow if its
synchronisation takes `SLOW` times the median of the first `USUAL_STEPS` steps of the generation, and `LEAST_EXCESS_S` more.
It has become slower once `FOUND_AT` of the last `WINDOW` steps are slow; a count does not move with a few long steps.
"""

from __future__ import annotations

from collections import deque
from statistics import median

SLOW = 1.5
LEAST_EXCESS_S = 0.005
"""Shorter differences come from the operating system's scheduler."""
USUAL_STEPS = 20
WINDOW = 20
FOUND_AT = 15
_MOST_TIMES = 100.0
_LEAST_USUAL_S = 1e-4
_MASK = (1 << WINDOW) - 1


class SyncWatch:
    """Waits for peers of rank 0, in one generation."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._usual_s: float | None = None
        self._slow = 0
        """Bits: one for each recent step that was slow."""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._times = 0.0

    def observe(self, sync_s: float) -> None:
        """Process a step that waited `sync_s` seconds for peers."""
        if self._usual_s is None:
            self._first.append(sync_s)
            if len(self._first) == USUAL_STEPS:
                self._usual_s = max(median(self._first), _LEAST_USUAL_S)
            return
        slow = sync_s >= SLOW * self._usual_s and sync_s - self._usual_s >= LEAST_EXCESS_S
        self._slow = (self._slow << 1 | slow) & _MASK
        self._recent.append(sync_s)
        if self._slow.bit_count() >= FOUND_AT:
            times = min(median(self._recent) / self._usual_s, _MOST_TIMES)
            # Found once: what follows is compared with the steps from here on.
            self.forget()
            self._times = times

    def forget(self) -> None:
        """Begin anew, because the ranks change."""
        self._first, self._usual_s, self._slow, self._times = [], None, 0, 0.0
        self._recent.clear()

    def take(self) -> float:
        """Return how many times as long synchronisation takes, once when it has become slower; 0 otherwise."""
        times, self._times = self._times, 0.0
        return round(times, 2)
