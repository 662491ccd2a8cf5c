"""What to rent for a job, and what is on offer."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from headway.contract.devices import DEVICE_KIND_PATTERN
from headway.contract.forecasts import Work
from headway.contract.markets import Market
from headway.contract.quantities import SizeBytes
from headway.contract.spec import JobSpec, Part


class Objective(StrEnum):
    """By what plans are ranked. FLOPP is DeepVM's: floating-point operations per dollar, as many as the hourly money buys."""

    TIME = "time"
    COST = "cost"
    BALANCED = "balanced"
    FLOPP = "flopp"


MOST_BYTES = 10**15
"""No checkpoint and no device is larger: beyond that somebody has slipped."""


class SpeedHint(Part):
    """What a user knows of a job's speed before it ever ran: samples per second on one slot of a kind."""

    device_kind: Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)]
    samples_per_s: Annotated[float, Field(ge=1e-9, le=1e15)]


class RecommendationRequest(Part):
    """What to recommend for. What is not given comes from the job file (`goal`, `market`, `resources`, `elastic`).

    `max_usd_per_h` bounds the price of a plan (with FLOPP it is what is spent, 3 dollars where it is not given). `samples` is
    the work where neither the script nor earlier jobs have told. `vcpu_quotas` are by family of types and market, such as
    `g/spot`. `provider` and `region` narrow the offers. With a `limit` of 0 no plan is weighed, and only what each
    offer costs the job is said.
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
    """An instance type of a provider in one place. A price is None where it is not sold on that market."""

    provider: str
    region: str
    zone: str
    instance_type: str
    device_kind: str
    devices: int
    tflops: float
    """Of one device; 0 where nobody says."""
    device_memory_bytes: int
    vcpus: int
    memory_bytes: int
    network_gbps: float
    on_demand_usd_per_h: float | None
    spot_usd_per_h: float | None
    hazard_per_h: float
    """How often an hour a spot machine of it is taken away."""
    seen_at: datetime


class OfferPage(BaseModel):
    """Offers by device kind and price. `notes` say what is missing and why, such as a provider that does not answer."""

    items: list[OfferView]
    notes: list[str] = Field(default_factory=list)


class GroupView(BaseModel):
    """Machines that are alike. A remote node keeps checkpoints and trains nothing; an anchor trains and is there to stay."""

    role: Literal["worker", "anchor", "remote"]
    machines: int
    instance_type: str
    market: Market
    provider: str
    region: str
    zone: str
    usd_per_h: float
    """Of all of them."""


class SpeedBasis(StrEnum):
    """What a speed rests on: jobs of its class were measured on the kind; on another kind, carried over by TFLOPS; what the
    request says, and a scaling law; nothing but TFLOPS and that law.
    """

    MEASURED = "measured"
    TRANSFERRED = "transferred"
    GIVEN = "given"
    ASSUMED = "assumed"


class RentalPlan(BaseModel):
    """A plan and what it comes to. Times and costs are to completion, with what losses of spot machines cost; with 90 %
    they are not above P90.
    """

    architecture: Literal["tiering", "single-anchor", "anchored", "all-spot", "all-on-demand"]
    groups: list[GroupView]
    device_kind: str
    slots: int
    usd_per_h: float
    goodput: float | None
    """Samples per second while all machines are there; None where only ratios are known."""
    basis: SpeedBasis
    losses_per_h: float
    kept: float
    """The share of the speed that losses and checkpoints leave."""
    checkpoint_every_s: float | None
    """None: no checkpoint is needed because of losses."""
    time_s: float
    time_p90_s: float
    cost_usd: float
    cost_p90_usd: float
    flopp: float | None = None
    """DeepVM's value of the plan, where it was ranked by it."""
    marks: list[str] = Field(default_factory=list)
    """Of `best`, `front`, `knee`, `fastest` and `cheapest`."""
    reasons: list[str] = Field(default_factory=list)


class NearestPlan(BaseModel):
    """What would make a plan feasible: the least other value of one limit (seconds from now, of a deadline)."""

    limit: Literal["max_cost_usd", "deadline_s", "max_usd_per_h"]
    value: float
    reason: str
    plan: RentalPlan


class PricedOffer(BaseModel):
    """An offer by what it costs this job to get on: dollars for a million samples on one machine of it; where nothing was
    measured of the job's class, for what one T4 does in an hour.
    """

    offer: OfferView
    slots: int
    goodput: float | None
    basis: SpeedBasis
    on_demand_usd_per_unit: float | None
    spot_usd_per_unit: float | None
    """With what losses leave of the speed."""


class RecommendationView(BaseModel):
    """Plans for a job, best first; all of them end within the limits. Where none does, `nearest` says what would do.

    `unit` says what work and goodput are counted in. `weighed` is how many plans were looked at.
    """

    name: str
    at: datetime
    objective: Objective
    work: Work
    unit: str
    plans: list[RentalPlan]
    nearest: list[NearestPlan]
    offers: list[PricedOffer]
    """By price on the cheaper market."""
    weighed: int
    warnings: list[str]
