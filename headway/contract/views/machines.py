"""Rented machines, as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from headway.contract.spec_parts import SpecPart
from headway.contract.values.markets import Market


class MachineView(BaseModel):
    """A rented machine and its cost.

    `state`: wanted, launching, running, ending, gone or failed. `reason` is for programs, `message` for
    people. `external_id` is the provider's name for the machine, `node` the name of its node. The provider
    bills it from `billed_from` to `billed_to` (None: still billed), and for at least `min_billed_s` seconds.
    """

    id: str
    provider: str
    region: str
    zone: str
    instance_type: str
    device_kind: str
    slots: int
    market: Market
    usd_per_h: float
    state: str
    reason: str
    message: str
    external_id: str | None
    node: str | None
    requested_at: datetime
    state_since: datetime
    billed_from: datetime | None
    billed_to: datetime | None
    min_billed_s: float
    billed_s: float
    """Seconds billed so far; after its end, no fewer than `min_billed_s`."""
    cost_usd: float
    """Cost so far."""
    job_id: str | None = None
    """Job that a user leased the machine for; None if the scheduler decided to rent it."""


class LeaseGroup(SpecPart):
    """Machines of one type to lease, as a recommended plan names them."""

    provider: Annotated[str, Field(max_length=100)]
    region: Annotated[str, Field(max_length=100)]
    zone: Annotated[str, Field(max_length=100)] = ""
    instance_type: Annotated[str, Field(max_length=100)]
    market: Market
    machines: Annotated[int, Field(ge=1, le=1000)]


class LeaseRequest(SpecPart):
    """A request to lease the machines of a plan for a job.

    `max_usd_per_h` is the price that the user agreed to: the request fails if all machines together cost more.
    `expected_cost_usd` is the plan's cost until the job's end, as recommended: the request fails if it is more than
    the job may still spend. It is required for a job with `goal.max_cost_usd`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "groups": [
                        {
                            "provider": "ec2",
                            "region": "us-east-1",
                            "instance_type": "g4dn.xlarge",
                            "market": "spot",
                            "machines": 4,
                        }
                    ],
                    "max_usd_per_h": 0.7,
                }
            ]
        }
    )

    groups: Annotated[list[LeaseGroup], Field(min_length=1, max_length=20)]
    max_usd_per_h: Annotated[float, Field(gt=0, le=1e6)]
    expected_cost_usd: Annotated[float | None, Field(ge=0, le=1e9)] = None
