"""Machines that may still be rented within the limits on all machines. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.contract.values.dollars import dollars
from service.domain.cluster.snapshot import Cap
from service.domain.rental.candidates import Candidate
from service.domain.rental.rental_targets import Fleet, RentalRules


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalRoom:
    """Limits on all machines, and what is rented already."""

    machines: int
    usd_per_h: float
    max_machines: int
    max_usd_per_h: float

    def count(self, one: Candidate) -> int:
        """Return the number of machines of an offer that may still be rented, at most `max_machines`."""
        machines = max(self.max_machines - self.machines, 0)
        left = self.max_usd_per_h - self.usd_per_h + 1e-9
        if one.usd_per_h <= 0 or math.isinf(left):
            return machines
        return max(min(machines, math.floor(left / one.usd_per_h)), 0)

    def obstacle(self, one: Candidate, machines: int = 1) -> str:
        """Return the limit that forbids so many more machines of an offer; empty if none does."""
        if self.count(one) >= machines:
            return ""
        if self.machines + machines > self.max_machines:
            return f"the limit of {self.max_machines} machines is reached"
        return f"it would exceed the limit of {dollars(self.max_usd_per_h)}/h for all machines"

    def after(self, one: Candidate, machines: int = 1) -> RentalRoom:
        """Return the room once so many more machines of an offer are rented."""
        usd_per_h = self.usd_per_h + machines * one.usd_per_h
        return replace(self, machines=self.machines + machines, usd_per_h=usd_per_h)


def cluster_cap(caps: Sequence[Cap]) -> float:
    """Return the smallest cap on the dollars per hour of all slots; infinite without one."""
    return min((one.usd_per_h for one in caps if one.project is None), default=math.inf)


def room_of(caps: Sequence[Cap], fleet: Fleet, rules: RentalRules) -> RentalRoom:
    """Return the room beside a fleet, within the rules of the service and the caps of the cluster."""
    return room_within(cluster_cap(caps), fleet, rules)


def room_within(cap_usd_per_h: float, fleet: Fleet, rules: RentalRules) -> RentalRoom:
    """Return the room beside a fleet, within the rules of the service and a cap on all slots."""
    return RentalRoom(
        machines=len(fleet.machines),
        usd_per_h=fleet.usd_per_h(),
        max_machines=rules.max_machines,
        max_usd_per_h=min(cap_usd_per_h, math.inf if rules.max_usd_per_h is None else rules.max_usd_per_h),
    )
