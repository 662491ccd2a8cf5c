"""Tuning of Python's cyclic garbage collector for processes with many long-lived and many new objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEW: Final = 50_000
"""Number of new objects before a collection. A round over a large cluster creates hundreds of thousands of
objects, none of them garbage before it ends. The default threshold of 700 would scan all of them again and
again."""


def spare() -> None:
    """Exclude present objects from garbage collection, since they live for ever, and collect new ones rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW, 20, 20)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the collector during a round.

    A round creates some hundred thousand objects and no cycles. The collector would visit them repeatedly,
    which takes a third of the time of a placement. If two rounds overlap in threads, the first one to end
    resumes the collector, which only costs the other one time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
