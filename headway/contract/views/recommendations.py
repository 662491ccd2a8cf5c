"""Rental recommendations for a job, and the available offers."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from headway.contract.spec import JobSpec
from headway.contract.spec_parts import SpecPart
from headway.contract.values.devices import DEVICE_KIND_PATTERN
from headway.contract.values.markets import Market
from headway.contract.values.quantities import SizeBytes
from headway.contract.views.forecasts import Work


class Objective(StrEnum):
    """Ranking of plans. FLOPP is DeepVM's measure: floating-point operations per dollar, at an hourly budget."""

    TIME = "time"
    COST = "cost"
    BALANCED = "balanced"
    FLOPP = "flopp"


MOST_BYTES = 10**15
"""Largest accepted checkpoint and device memory, in bytes: a larger value is a typing error."""


class SpeedHint(SpecPart):
    """The user's knowledge of a job's speed before its first run: samples per second on one slot of a kind."""

    device_kind: Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)]
    samples_per_s: Annotated[float, Field(ge=1e-9, le=1e15)]


class RecommendationRequest(SpecPart):
    """A request for rental plans. Absent fields come from the job file.

    `max_usd_per_h` limits the price of a plan; with FLOPP it is the amount to spend, 3 dollars by default.
    `samples` is the work, used where neither the script nor earlier jobs have reported it. `vcpu_quotas` are
    by instance family and market, such as `g/spot`. `provider` and `region` narrow the offers. With a `limit`
    of 0 the answer holds no plans, only the cost of the job on each offer.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "spec": {
                        "name": "resnet",
                        "run": "python train.py",
                        "elastic": {"min": 1, "max": 32},
                    },
                    "objective": "cost",
                    "max_usd_per_h": 6,
                    "samples": 5e7,
                    "speed": {"device_kind": "t4", "samples_per_s": 300},
                }
            ]
        }
    )

    spec: JobSpec
    objective: Objective | None = None
    market: Literal["on-demand", "spot", "mixed"] | None = None
    max_usd_per_h: Annotated[float, Field(gt=0, le=1e6)] | None = None
    max_cost_usd: Annotated[float, Field(gt=0, le=1e9)] | None = None
    deadline: AwareDatetime | None = None
    samples: Annotated[float, Field(gt=0, le=1e18)] | None = None
    speed: SpeedHint | None = None
    checkpoint_size: Annotated[SizeBytes, Field(gt=0, le=MOST_BYTES)] | None = None
    device_memory: Annotated[SizeBytes, Field(gt=0, le=MOST_BYTES)] | None = None
    vcpu_quotas: dict[
        Annotated[str, Field(pattern=r"^[a-z]+/(spot|on-demand)$")], Annotated[int, Field(ge=0)]
    ] = Field(default_factory=dict)
    provider: Annotated[str, Field(max_length=100)] | None = None
    region: Annotated[str, Field(max_length=100)] | None = None
    limit: Annotated[int, Field(ge=0, le=200)] = 10


class OfferView(BaseModel):
    """An instance type of a provider in one zone. A price is None where it is not sold on that market."""

    provider: str
    region: str
    zone: str
    instance_type: str
    device_kind: str
    devices: int
    tflops: float
    """Speed of one device; 0 where unknown."""
    device_memory_bytes: int
    vcpus: int
    memory_bytes: int
    network_gbps: float
    on_demand_usd_per_h: float | None
    spot_usd_per_h: float | None
    hazard_per_h: float
    """Expected reclaims of a spot machine of this type per hour."""
    together: float | None = None
    """Share of these reclaims that take all machines of the zone at once."""
    seen_at: datetime


class OfferPage(BaseModel):
    """Offers by device kind and price. `notes` explain gaps, such as a provider that does not answer."""

    items: list[OfferView]
    notes: list[str] = Field(default_factory=list)


class GroupView(BaseModel):
    """Machines of one kind in a plan.

    A remote node stores checkpoints and does not train. An anchor trains and is on demand, so it is not
    reclaimed.
    """

    role: Literal["worker", "anchor", "remote"]
    machines: int
    instance_type: str
    market: Market
    provider: str
    region: str
    zone: str
    usd_per_h: float
    """Price of all machines of the group."""


class SpeedBasis(StrEnum):
    """Evidence for a speed.

    MEASURED: jobs of its class were measured on the kind. TRANSFERRED: measured on another kind and scaled by
    TFLOPS. GIVEN: stated in the request and extended by a scaling law. ASSUMED: only TFLOPS and the scaling
    law.
    """

    MEASURED = "measured"
    TRANSFERRED = "transferred"
    GIVEN = "given"
    ASSUMED = "assumed"


class RentalPlan(BaseModel):
    """A rental plan and its expected result.

    Times and costs are to completion and include losses from spot interruptions. With 90 % they are not above
    P90.
    """

    architecture: Literal["tiering", "single-anchor", "anchored", "all-spot", "all-on-demand"]
    groups: list[GroupView]
    device_kind: str
    slots: int
    usd_per_h: float
    goodput: float | None
    """Samples per second while all machines are present; None where only ratios are known."""
    basis: SpeedBasis
    losses_per_h: float
    kept: float
    """Share of the speed that remains after losses and checkpoints."""
    checkpoint_every_s: float | None
    """Seconds between checkpoints; None: spot losses require none."""
    time_s: float
    time_p90_s: float
    cost_usd: float
    cost_p90_usd: float
    flopp: float | None = None
    """DeepVM's measure of the plan, if the ranking used it."""
    marks: list[str] = Field(default_factory=list)
    """Distinctions of the plan: `best`, `front`, `knee`, `fastest` and `cheapest`."""
    reasons: list[str] = Field(default_factory=list)


class NearestPlan(BaseModel):
    """The smallest change of one limit that makes a plan feasible. A deadline is in seconds from now."""

    limit: Literal["max_cost_usd", "deadline_s", "max_usd_per_h"]
    value: float
    reason: str
    plan: RentalPlan


class PricedOffer(BaseModel):
    """An offer with the cost of this job's progress on one machine of it.

    The cost is in dollars per million samples. Where the job's class was never measured, it is the cost of
    the work that one T4 does in an hour.
    """

    offer: OfferView
    slots: int
    goodput: float | None
    basis: SpeedBasis
    on_demand_usd_per_unit: float | None
    spot_usd_per_unit: float | None
    """Cost on spot machines, with the loss of speed from interruptions."""


class RecommendationView(BaseModel):
    """Plans for a job, best first; all meet the limits. If none does, `nearest` names the limits to change.

    `unit` is the unit of work and goodput. `weighed` is the number of plans evaluated.
    """

    name: str
    at: datetime
    objective: Objective
    work: Work
    unit: str
    plans: list[RentalPlan]
    nearest: list[NearestPlan]
    offers: list[PricedOffer]
    """Offers by price on the cheaper market."""
    weighed: int
    warnings: list[str]
