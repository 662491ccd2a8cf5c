"""Division of one process's database connections among its kinds of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ConnectionShares:
    """Numbers of connections that kinds of work use at a time. Their sum is the size of the pool."""

    requests: int
    pages: int
    """Live pages that are read at a time."""
    batches: int

    @property
    def pool(self) -> int:
        """Return the number of connections of the process."""
        return self.requests + self.pages + self.batches


_BATCHES: Final = 3
"""Batches of heartbeats, of training reports and of token lookups. Each kind writes one batch at a time."""


def divide_connections(pool: int) -> ConnectionShares:
    """Divide a pool of at least 5 connections, so that no kind of work waits for another kind's connections."""
    pages = pool // 5
    return ConnectionShares(requests=pool - pages - _BATCHES, pages=pages, batches=_BATCHES)


CONNECTIONS: Final = divide_connections(20)
"""Connections of each process of the service. All other limits on concurrent work derive from their number."""
