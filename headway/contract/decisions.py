"""What the scheduler decides by and what it decided, as the API shows it: rounds, prices, policies, the cluster."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from headway.contract.agents import NodeState
from headway.contract.jobs import ExplainView, JobState, Reason
from headway.contract.markets import Market

ParameterValue: TypeAlias = float | list[float]
"""Of a policy's parameter."""


class RowPrice(BaseModel):
    """A limit that a round had to keep to. `price` is what one more unit of its capacity was worth, in the round's unit
    of utility; 0 where there was enough.

    Names: `slots/POOL`, `packing/POOL/SIZE`, `budget/NAME`, `quota/PROJECT`, `usd_per_h`. A pool is a device kind, such as
    `a100`, or its slots on spot machines, `a100 (spot)`.
    """

    name: str
    capacity: float
    used: float
    price: float
    project: str | None = None
    """Whose jobs alone it is for; None: everybody's."""


class RoundChange(BaseModel):
    """What a round did with one job. `from` and `to` are slots."""

    job_id: str
    job_name: str | None = None
    """None in rounds of older versions, as is `reason`."""
    action: str
    from_: int = Field(validation_alias=AliasChoices("from", "from_"), serialization_alias="from")
    to: int
    reason: Reason | None = None
    message: str


class RoundView(BaseModel):
    """One scheduling decision, and how good it provably is.

    `objective` is the sum of utilities that the choice reaches, `bound` a proven upper limit on what any choice could
    reach, `gap` the relative distance of the two. `times` are seconds by step: `tables_s`, `solve_s`, `place_s`.
    """

    id: str
    at: datetime
    took_s: float
    policy: str
    parameters: dict[str, ParameterValue] = Field(default_factory=dict)
    inputs_digest: str
    """Of everything that the decision rests on: the same inputs give the same decision."""
    status: str
    objective: float
    bound: float
    gap: float
    unit: str
    """Of the utility."""
    prices: list[RowPrice] = Field(default_factory=list)
    times: dict[str, float] = Field(default_factory=dict)
    jobs: int
    """Jobs that were decided about."""
    changes: list[RoundChange] = Field(default_factory=list)
    other_changes: int = 0
    """Changes of jobs in projects that are not the reader's: counted, and not named."""


class Outlook(BaseModel):
    """What a job would get with a little more of one thing: a slot of a kind, or a dollar an hour.

    `price` is what it is worth to others, in the round's unit, and `gain` what it is worth to this job; None where the
    policy does not weigh that configuration now, or the job has nothing to compare it with.
    """

    row: str
    device_kind: str
    slots: int
    goodput_samples_per_s: float | None
    speedup: float
    """Against what it has; against one slot while it waits."""
    gain: float | None
    price: float


class ExplanationView(ExplainView):
    """The last decision about a job, with what the latest round's prices say of it."""

    policy: str | None = None
    unit: str = ""
    """Of utilities, gains and prices."""
    binding: list[RowPrice] = Field(default_factory=list)
    """The limits that keep the job from a configuration that would be worth more to it."""
    outlook: list[Outlook] = Field(default_factory=list)


class KindView(BaseModel):
    """The slots of one device kind on one market. `in_service` are those of READY nodes, `free` those of them that nobody
    holds. `usd_per_slot_h` is the mean of its slots.
    """

    device_kind: str
    market: Market = Market.ON_DEMAND
    slots: int
    in_service: int
    held: int
    free: int
    usd_per_slot_h: float


class PolicyParameter(BaseModel):
    """A number that a policy can be given."""

    name: str
    default: ParameterValue
    meaning: str
    interval: str
    """Which values are accepted, in words; empty where every number is."""


class PolicyView(BaseModel):
    """A policy that the cluster could follow."""

    name: str
    summary: str
    parameters: list[PolicyParameter] = Field(default_factory=list)


class ClusterView(BaseModel):
    """The cluster in numbers, and the policy that it follows."""

    nodes: dict[NodeState, int]
    kinds: list[KindView]
    jobs: dict[JobState, int]
    """Of jobs that have not ended."""
    usd_per_h: float
    """What the slots that are held cost now."""
    policy: str
    parameters: dict[str, ParameterValue]
    """Those that differ from the policy's own."""
    policies: list[PolicyView]


class PolicyRequest(BaseModel):
    """The policy that the cluster is to follow, with the parameters that are to differ from its own."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    policy: str
    parameters: dict[str, ParameterValue] = Field(default_factory=dict)
