"""What could be rented for one job: machines in their roles, and the limits on them. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from headway.contract.markets import Market
from service.domain.rental.offers import Offer


class Architecture(StrEnum):
    """Which machines are on which market.

    TIERING: workers on spot, and remote nodes without GPUs on demand that hold the checkpoint. SINGLE_ANCHOR: one worker on
    demand holds it, the others of its type are on spot. ANCHORED: workers on spot, and anchors on demand of any type with
    their kind of device, of which the training always has a live replica. ALL_SPOT and ALL_ON_DEMAND: what they say.
    """

    TIERING = "tiering"
    SINGLE_ANCHOR = "single-anchor"
    ANCHORED = "anchored"
    ALL_SPOT = "all-spot"
    ALL_ON_DEMAND = "all-on-demand"


class Role(StrEnum):
    """What a machine does: it trains; it trains and is there to stay; or it only keeps checkpoints."""

    WORKER = "worker"
    ANCHOR = "anchor"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Group:
    """Machines that are alike."""

    role: Role
    offer: Offer
    market: Market
    machines: int

    @property
    def usd_per_h(self) -> float:
        """Of all of them."""
        return self.machines * (self.offer.usd_per_h(self.market) or 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to rent. The first group is the workers, if there are any beside the anchors."""

    architecture: Architecture
    groups: tuple[Group, ...]

    @property
    def usd_per_h(self) -> float:
        """Of all machines."""
        return sum(one.usd_per_h for one in self.groups)

    @property
    def training(self) -> tuple[Group, ...]:
        """Those that train."""
        return tuple(one for one in self.groups if one.role is not Role.REMOTE)

    @property
    def workers(self) -> int:
        """Machines that train, anchors among them."""
        return sum(one.machines for one in self.training)

    @property
    def slots(self) -> int:
        """Devices that train."""
        return sum(one.machines * one.offer.devices for one in self.training)

    @property
    def anchored_slots(self) -> int:
        """Those of them that are not taken away."""
        return sum(
            one.machines * one.offer.devices for one in self.training if one.market is Market.ON_DEMAND
        )

    @property
    def device_kind(self) -> str:
        """What they are."""
        return self.groups[0].offer.device_kind

    @property
    def spot_machines(self) -> int:
        """Machines that may be taken away."""
        return sum(one.machines for one in self.groups if one.market is Market.SPOT)

    @property
    def hazard_per_h(self) -> float:
        """How often an hour one machine or other is taken away."""
        return sum(one.machines * one.offer.hazard_per_h for one in self.groups if one.market is Market.SPOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a plan.

    `vcpus` are quotas by family and market, such as `g/spot` (family: the letters that a type begins with); one that is
    not here does not bind. `checkpoint_bytes` times `buffer` is what remote nodes must hold in memory. `device_bytes` is
    what a device needs for a worker's share of the training, 0 where nobody says.
    """

    max_usd_per_h: float | None = None
    vcpus: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    checkpoint_bytes: float = 0.0
    buffer: float = 0.5
    device_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One choice of workers: the index of their offer, how many machines train (in machines of that type, anchors
    included), and what that is worth.
    """

    offer: int
    machines: int
    value: float = 0.0


def family(instance_type: str) -> str:
    """The letters that a type begins with: quotas are by them."""
    return instance_type[: len(instance_type) - len(instance_type.lstrip("abcdefghijklmnopqrstuvwxyz"))]


def quota_of(offer: Offer, market: Market, limits: Limits) -> int | None:
    """How many vCPUs may be rented of its family there; None: any number."""
    return limits.vcpus.get(f"{family(offer.instance_type)}/{market}")
