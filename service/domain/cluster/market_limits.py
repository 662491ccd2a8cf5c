"""Limit on the slots that a job may hold in each pool, set by the rule that rents machines for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketLimit:
    """Machines that the rule of the spot market chose for a job.

    Attributes:
        slots: Largest number of slots by pool, as pools are priced; a missing pool is not limited.
        on_demand: Rented on-demand machines that the job should hold.
        spot: Rented spot machines that the job should hold.
        phase: Code of the reason.
        reason: Reason of the choice, for users.
    """

    slots: Mapping[str, int]
    on_demand: int
    spot: int
    phase: str
    reason: str

    def is_like(self, other: MarketLimit | None) -> bool:
        """Return True if users need not hear of the change from the other limit to this one."""
        return other is not None and (self.on_demand, self.phase) == (other.on_demand, other.phase)
