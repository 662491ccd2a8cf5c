"""Rental targets: the rented machines, the limits on them, and the machines to rent or to release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headway.contract.values.markets import Market
from service.domain.allocation.knapsack.problem import Solve
from service.domain.cluster.market_limits import MarketLimit
from service.domain.policies.framework.policy import Policy
from service.domain.rental.fleet import LaunchBackoff, RentalPlace
from service.domain.rental.machines import Machine, MachineReason, MachineState
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
class RentalTerms:
    """Terms of a decision about machines: everything besides the cluster, its machines and the offers.

    Attributes:
        rules: limits on renting.
        policy, solve: policy and solver of the rounds that value machines.
        cooling: places where launches are suspended.
        low_since: start of the time for which a machine is not worth its price, by machine.
        boot_s: seconds until a machine takes jobs, by provider and instance type.
    """

    rules: RentalRules
    policy: Policy
    solve: Solve
    cooling: Mapping[RentalPlace, LaunchBackoff] = field(default_factory=dict)
    low_since: Mapping[str, datetime] = field(default_factory=dict)
    boot_s: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalTarget:
    """Machine to rent, with the reason as its message."""

    offer: Offer
    market: Market
    usd_per_h: float
    message: str

    def machine(
        self,
        machine_id: str,
        *,
        join_token_sha256: str,
        now: datetime,
        reason: MachineReason = MachineReason.WORTH_IT,
        job_id: str | None = None,
    ) -> Machine:
        """Return the machine in state WANTED. `job_id` is the job that it is leased for."""
        offer = self.offer
        return Machine(
            id=machine_id,
            provider=offer.provider,
            region=offer.region,
            zone=offer.zone,
            instance_type=offer.instance_type,
            device_kind=offer.device_kind,
            slots=offer.devices,
            market=self.market,
            usd_per_h=self.usd_per_h,
            state=MachineState.WANTED,
            reason=reason,
            message=self.message,
            join_token_sha256=join_token_sha256,
            requested_at=now,
            state_since=now,
            min_billed_s=offer.min_billed_s,
            job_id=job_id,
        )


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
    `held_back` is the reason why nothing more is rented although it would be worth its price. `market_limits`
    are the limits of the jobs whose machines the rule of the spot market chooses.
    """

    rent: tuple[RentalTarget, ...] = ()
    release: tuple[Release, ...] = ()
    low_since: Mapping[str, datetime] = field(default_factory=dict)
    held_back: str = ""
    market_limits: Mapping[str, MarketLimit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Rented machines: those with open leases, and the node of each that has joined."""

    machines: Sequence[Machine]
    nodes: Mapping[str, str]
    """Node ids by machine id."""
    kept: frozenset[str] = frozenset()
    """Machines that are not released, because they are held for a job."""
    settled: frozenset[str] = frozenset()
    """Jobs whose machines another rule chooses: nothing is rented or kept for them."""

    def usd_per_h(self) -> float:
        """Return the dollars per hour of all machines."""
        return sum(one.usd_per_h for one in self.machines)
