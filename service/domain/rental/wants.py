"""What is rented, what bounds it, and what is to be rented or given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headway.contract.markets import Market
from service.domain.rental.machines import Machine, MachineReason
from service.domain.rental.offers import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What bounds renting: machines at once, their dollars per hour (None: budgets alone do), and for how long a machine
    is kept that is not worth its price.
    """

    max_machines: int = 10
    max_usd_per_h: float | None = None
    idle_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A machine to rent, and what it is good for."""

    offer: Offer
    market: Market
    usd_per_h: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A machine to give back, and why."""

    machine_id: str
    reason: MachineReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What to do now. `low_since`: since when each machine has not been worth its price, for the next time. `held_back` says
    why nothing more is rented, where something would be worth it.
    """

    rent: tuple[Want, ...] = ()
    release: tuple[Release, ...] = ()
    low_since: Mapping[str, datetime] = field(default_factory=dict)
    held_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is rented: open machines, and the node of each that has joined."""

    machines: Sequence[Machine]
    nodes: Mapping[str, str]
    """Machine id to node id."""

    def usd_per_h(self) -> float:
        """What all of them cost."""
        return sum(one.usd_per_h for one in self.machines)
