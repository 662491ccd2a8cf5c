"""What monitoring reads of the cluster, in one look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    """The cluster as it is now; what is counted of the past is of the last hour."""

    jobs: Mapping[tuple[str, str, str], int]
    """Jobs that have not ended, by state, reason and project."""
    oldest_waiting_s: float
    """How long the job waits that has waited longest; 0 if none does."""
    nodes: Mapping[str, int]
    """By state."""
    silent_s: float
    """Since the node was heard of that was silent longest, of those that are not LOST; 0 without nodes."""
    slots: Mapping[tuple[str, str], tuple[int, int]]
    """Slots of nodes that are not LOST, and those of them that are held; by device kind and market."""
    commands_waiting: int
    oldest_command_s: float
    """How long the command waits to be acknowledged that has waited longest; 0 if none does."""
    round_s: Sequence[float]
    """Median and longest round."""
    gap: float
    """Of the latest round, how far from the best it is at most."""
    changes: Mapping[tuple[str, str], int]
    """What rounds did with jobs, by action and reason."""


class Monitoring(Protocol):
    """The cluster in figures."""

    async def cluster(self, now: datetime) -> ClusterFigures:
        """As it is now."""
        ...
