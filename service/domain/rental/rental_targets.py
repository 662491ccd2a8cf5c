"""Rental targets: the rented machines, the limits on them, and the machines to rent or to release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headway.contract.values.markets import Market
from service.domain.rental.machines import Machine, MachineReason
from service.domain.rental.offers import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalRules:
    """Limits on renting.

    `max_machines` is the largest number of machines at once. `max_usd_per_h` limits their dollars per hour
    (None: only budgets do). `idle_s` is the time for which a machine that is not worth its price is kept.
    """

    max_machines: int = 10
    max_usd_per_h: float | None = None
    idle_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalTarget:
    """Machine to rent, with the reason as its message."""

    offer: Offer
    market: Market
    usd_per_h: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Machine to release, with the reason."""

    machine_id: str
    reason: MachineReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalTargets:
    """Machines to rent and to release now.

    `low_since` maps each machine that is not worth its price to the start of that time, for the next pass.
    `held_back` is the reason why nothing more is rented although it would be worth its price.
    """

    rent: tuple[RentalTarget, ...] = ()
    release: tuple[Release, ...] = ()
    low_since: Mapping[str, datetime] = field(default_factory=dict)
    held_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Rented machines: those with open leases, and the node of each that has joined."""

    machines: Sequence[Machine]
    nodes: Mapping[str, str]
    """Node ids by machine id."""

    def usd_per_h(self) -> float:
        """Return the dollars per hour of all machines."""
        return sum(one.usd_per_h for one in self.machines)
