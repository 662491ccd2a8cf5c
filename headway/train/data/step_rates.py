"""Seconds per sample of each rank, from the ranks' own statements. The module does no I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NOTABLE = 1.2
"""Ratio to the median from which a rank counts as slow. Without a slow rank, no rates are reported: they are long."""
RANKS_EVERY_STEP = 32
"""Number of ranks up to which every step is recorded; with twice as many, every second step, and so on."""


class StepRates:
    """Collector of the ranks' measurements between two reports."""

    def __init__(self) -> None:
        self._compute_s: list[float] = []
        self._samples: list[int] = []
        self._steps = 0

    def add(self, samples: Sequence[int], compute_s: Sequence[float]) -> None:
        """Record each rank's samples in a step and its seconds without waits for peers (0: unknown)."""
        if len(self._samples) != len(samples):
            self.forget()
            self._compute_s, self._samples = [0.0] * len(samples), [0] * len(samples)
        self._steps += 1
        if self._steps % (1 + len(samples) // (RANKS_EVERY_STEP + 1)):
            return
        for rank, (count, seconds) in enumerate(zip(samples, compute_s, strict=True)):
            if seconds > 0.0:
                self._compute_s[rank] += seconds
                self._samples[rank] += count

    def forget(self) -> None:
        """Discard the measurements, because the ranks change."""
        self._compute_s, self._samples, self._steps = [], [], 0

    def take(self) -> tuple[float, ...]:
        """Return each rank's seconds per sample since the last report (0: unknown), and reset them.

        The result is empty while no rank is notably slow.
        """
        sample_s = tuple(
            seconds / samples if samples else 0.0
            for seconds, samples in zip(self._compute_s, self._samples, strict=True)
        )
        self.forget()
        known = [one for one in sample_s if one > 0.0]
        if len(known) < 2 or max(known) < NOTABLE * statistics.median(known):
            return ()
        return sample_s
