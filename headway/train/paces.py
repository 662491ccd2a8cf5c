"""How long each rank takes for a sample, as far as the ranks have said it anyway. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NOTABLE = 1.2
"""Nothing is said while no rank takes so many times as long as the median: in a large job it would be much to say."""
RANKS_EVERY_STEP = 32
"""So many ranks are looked at in every step, twice as many in every second one, and so on."""


class Paces:
    """Collects what ranks measured between two reports."""

    def __init__(self) -> None:
        self._compute_s: list[float] = []
        self._samples: list[int] = []
        self._steps = 0

    def add(self, samples: Sequence[int], compute_s: Sequence[float]) -> None:
        """A step, of so many samples of each rank, which took each so long without waiting for peers; 0: it does not say."""
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
        """Ranks are others from here on."""
        self._compute_s, self._samples, self._steps = [], [], 0

    def take(self) -> tuple[float, ...]:
        """Seconds that each rank took for a sample since the last report, which is now (0: it did not say). Empty while no
        rank is notably slow.
        """
        sample_s = tuple(
            seconds / samples if samples else 0.0
            for seconds, samples in zip(self._compute_s, self._samples, strict=True)
        )
        self.forget()
        said = [one for one in sample_s if one > 0.0]
        if len(said) < 2 or max(said) < NOTABLE * statistics.median(said):
            return ()
        return sample_s
