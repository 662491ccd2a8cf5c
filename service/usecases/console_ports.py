"""What only the pages read: histories short enough to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from service.usecases.records import SizeChange


class ConsoleQueries(Protocol):
    """Histories of jobs, for pictures of them."""

    async def sizes(self, job_ids: Sequence[str]) -> dict[str, list[SizeChange]]:
        """What each of these jobs has run on, the oldest first."""
        ...

    async def series(self, job_id: str, points: int) -> dict[str, list[tuple[datetime, int, float]]]:
        """By name of a metric: moment, samples and value, the oldest first; means of neighbours where there are more than
        `points`. Values that are no numbers are left out.
        """
        ...
