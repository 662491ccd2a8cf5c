"""Plans of machines to rent for one job: machines in their roles, and the limits on them. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from headway.contract.values.markets import Market
from service.domain.cluster.spot_rate import TOGETHER
from service.domain.rental.offers import Offer


class Architecture(StrEnum):
    """Assignment of machines to markets.

    - TIERING: workers on spot, and remote nodes without GPUs on demand that hold the checkpoint.
    - SINGLE_ANCHOR: one worker on demand holds the checkpoint, and the others of its type are on spot.
    - ANCHORED: workers on spot, and anchors on demand of any type with their kind of device. The training
      always has a live replica on the anchors.
    - ALL_SPOT and ALL_ON_DEMAND: all workers on one market.
    """

    TIERING = "tiering"
    SINGLE_ANCHOR = "single-anchor"
    ANCHORED = "anchored"
    ALL_SPOT = "all-spot"
    ALL_ON_DEMAND = "all-on-demand"


class Role(StrEnum):
    """Role of a machine: a worker trains, an anchor trains and is not taken away, and a remote node only
    keeps checkpoints.
    """

    WORKER = "worker"
    ANCHOR = "anchor"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Machines of the same role, offer and market."""

    role: Role
    offer: Offer
    market: Market
    machines: int

    @property
    def usd_per_h(self) -> float:
        """Dollars per hour of all machines of the group."""
        return self.machines * (self.offer.usd_per_h(self.market) or 0.0)


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """Machines to rent. The first group is the workers, if there are any besides the anchors."""

    architecture: Architecture
    groups: tuple[MachineGroup, ...]

    @property
    def usd_per_h(self) -> float:
        """Dollars per hour of all machines."""
        return sum(one.usd_per_h for one in self.groups)

    @property
    def training(self) -> tuple[MachineGroup, ...]:
        """Groups of machines that take part in training."""
        return tuple(one for one in self.groups if one.role is not Role.REMOTE)

    @property
    def workers(self) -> int:
        """Number of machines that train, including anchors."""
        return sum(one.machines for one in self.training)

    @property
    def slots(self) -> int:
        """Number of devices that train."""
        return sum(one.machines * one.offer.devices for one in self.training)

    @property
    def anchored_slots(self) -> int:
        """Number of training devices that are on demand, so the provider does not take them away."""
        return sum(
            one.machines * one.offer.devices for one in self.training if one.market is Market.ON_DEMAND
        )

    @property
    def device_kind(self) -> str:
        """Device kind of the workers."""
        return self.groups[0].offer.device_kind

    @property
    def spot_machines(self) -> int:
        """Number of machines on the spot market, which the provider may take away."""
        return sum(one.machines for one in self.groups if one.market is Market.SPOT)

    @property
    def together(self) -> float:
        """Smallest share of common losses among the zones of the spot machines."""
        return min((one.offer.together for one in self.groups if one.market is Market.SPOT), default=TOGETHER)

    @property
    def hazard_per_h(self) -> float:
        """Expected interruptions per hour over all spot machines of the plan."""
        return sum(one.machines * one.offer.hazard_per_h for one in self.groups if one.market is Market.SPOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """Limits on a plan.

    `vcpus` are quotas by family and market, such as `g/spot` (family: the letters that a type begins with). A
    missing entry imposes no limit. Remote nodes must hold `checkpoint_bytes` times `buffer` in memory.
    `device_bytes` is the memory of a device that a worker's share of the training needs, 0 if unknown.
    """

    max_usd_per_h: float | None = None
    vcpus: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    checkpoint_bytes: float = 0.0
    buffer: float = 0.5
    device_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """Choice of workers for one offer.

    `offer` is the index of the offer. `machines` is the number of machines that train, in machines of that
    type and including anchors. `value` is the worth of the choice.
    """

    offer: int
    machines: int
    value: float = 0.0


def family(instance_type: str) -> str:
    """Return the letters that a type begins with. Quotas are counted by them."""
    return instance_type[: len(instance_type) - len(instance_type.lstrip("abcdefghijklmnopqrstuvwxyz"))]


def quota_of(offer: Offer, market: Market, limits: PlanLimits) -> int | None:
    """Return the vCPUs of the offer's family that may be rented on the market, or None for no limit."""
    return limits.vcpus.get(f"{family(offer.instance_type)}/{market}")
