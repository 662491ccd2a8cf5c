"""Bound on the samples that a rank holds in memory at a time. No I/O."""

from __future__ import annotations

MEMORY_SHARE = 0.9
"""Share of a device's memory for micro-batches: the rest is for memory that does not grow with them."""


class MicroBatchLimit:
    """The most samples that this rank may hold in memory at a time.

    Other ranks need not know it: a larger local batch is accumulated over several micro-batches, so memory
    never limits the batches of the `Balancer`. `asked` is the script's bound, None for none. `capacity_bytes`
    is the device's memory, None if not limited.
    """

    def __init__(self, asked: int | None, capacity_bytes: int | None) -> None:
        self._asked = asked
        self._capacity_bytes = capacity_bytes
        self._measured: int | None = None

    @property
    def most(self) -> int | None:
        """The limit in samples; None for no limit. Before the first measurement it is the script's bound."""
        known = [limit for limit in (self._asked, self._measured) if limit is not None]
        return min(known, default=None)

    def observe(self, samples: int, peak_bytes: int, static_bytes: int) -> None:
        """Record that a micro-batch needed `peak_bytes` of memory, `static_bytes` of it before it began.

        The limit assumes that every sample needs the same, and fills at most `MEMORY_SHARE` of the memory. A micro-batch
        without samples, of a rank that has no part in a step, says nothing.
        """
        if self._capacity_bytes is None or peak_bytes <= static_bytes or not samples:
            return
        free_bytes = MEMORY_SHARE * self._capacity_bytes - static_bytes
        fits = int(free_bytes * samples / (peak_bytes - static_bytes))
        self._measured = max(fits, samples)  # the measured micro-batch did fit
