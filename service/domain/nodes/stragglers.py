"""Marks of slots whose ranks stay slower than the others of their job. A mark fades, because hosts recover unseen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.cluster.snapshot import SlotKey

HALF_LIFE_S = 1800.0
"""Time after which half of a slot's excess is forgotten, so that a move is repeated after an hour or two at the soonest."""
LEAST_TIMES = 1.25
"""Ratio from which a mark counts."""
LONGEST = timedelta(seconds=10 * HALF_LIFE_S)
"""Age from which no mark counts, whatever its ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerMark:
    """A rank of a job on a slot took `times` as long per sample as the median rank of its job."""

    node_id: str
    slot: int
    job: str
    times: float
    marked_at: datetime

    @property
    def key(self) -> SlotKey:
        """The slot that is marked."""
        return SlotKey(self.node_id, self.slot)

    @property
    def sentence(self) -> str:
        """Description for all who may see the node, which need not be those who may see the job."""
        return f"a rank took {self.times:.1f} times as long per sample there as the others of its job"

    def counts(self, now: datetime) -> bool:
        """Return True while the faded ratio is at least `LEAST_TIMES`."""
        age = now - self.marked_at
        faded = 1.0 + (self.times - 1.0) * 0.5 ** (age.total_seconds() / HALF_LIFE_S)
        return age < LONGEST and faded >= LEAST_TIMES
