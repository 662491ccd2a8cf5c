"""Scheduling decisions as the API shows them: rounds, prices, policies, the cluster."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import ExplainView, JobState, Reason

ParameterValue: TypeAlias = float | list[float]
"""Value of a policy's parameter."""


class RowPrice(BaseModel):
    """A capacity limit of a round, with its dual price.

    `price` is the utility of one more unit of capacity, in the round's unit; 0 where the limit does not bind.

    Names: `slots/POOL`, `packing/POOL/SIZE`, `budget/NAME`, `quota/PROJECT`, `usd_per_h`. A pool is a device
    kind, such as `a100`, or its slots on spot machines, `a100 (spot)`.
    """

    name: str
    capacity: float
    used: float
    price: float
    project: str | None = None
    """The only project whose jobs count against the limit; None: all jobs."""


class RoundChange(BaseModel):
    """A change that a round made to one job. `from` and `to` are slots."""

    job_id: str
    job_name: str
    action: str
    from_: int = Field(validation_alias=AliasChoices("from", "from_"), serialization_alias="from")
    to: int
    reason: Reason
    message: str


class RoundView(BaseModel):
    """One scheduling decision with its optimality gap.

    `objective` is the sum of utilities of the chosen configurations. `bound` is a proven upper bound on that
    sum, and `gap` the relative distance of the two. `times` are seconds by step: `tables_s`, `solve_s`,
    `place_s`.
    """

    id: str
    at: datetime
    took_s: float
    policy: str
    parameters: dict[str, ParameterValue] = Field(default_factory=dict)
    inputs_digest: str
    """Digest of all inputs of the decision: the same inputs give the same decision."""
    status: str
    objective: float
    bound: float
    gap: float
    unit: str
    """Unit of the utility."""
    prices: list[RowPrice] = Field(default_factory=list)
    times: dict[str, float] = Field(default_factory=dict)
    jobs: int
    """Number of jobs that the round decided about."""
    changes: list[RoundChange] = Field(default_factory=list)
    other_changes: int = 0
    """Number of changes of jobs in projects that the reader may not see."""


class Outlook(BaseModel):
    """The effect on a job of a little more of one resource: a slot of a kind, or a dollar an hour.

    `price` is the utility of that resource to the other jobs, in the round's unit, and `gain` its utility to
    this job. `gain` is None where the policy does not consider that configuration now, or the job has no
    present configuration to compare it with.
    """

    row: str
    device_kind: str
    slots: int
    goodput_samples_per_s: float | None
    speedup: float
    """Speedup over the present configuration, or over one slot while the job waits."""
    gain: float | None
    price: float


class ExplanationView(ExplainView):
    """The last decision about a job, with the prices of the latest round."""

    policy: str | None = None
    unit: str = ""
    """Unit of utilities, gains and prices."""
    binding: list[RowPrice] = Field(default_factory=list)
    """Limits that keep the job from a configuration with a higher utility."""
    outlook: list[Outlook] = Field(default_factory=list)


class KindView(BaseModel):
    """The slots of one device kind on one market.

    `in_service` are the slots of READY nodes, `free` the unused slots among these. `usd_per_slot_h` is the
    mean price of the slots.
    """

    device_kind: str
    market: Market = Market.ON_DEMAND
    slots: int
    in_service: int
    held: int
    free: int
    usd_per_slot_h: float


class PolicyParameter(BaseModel):
    """A numeric parameter of a policy."""

    name: str
    default: ParameterValue
    meaning: str
    interval: str
    """Accepted values, in words; empty where every number is accepted."""


class PolicyView(BaseModel):
    """A policy that the cluster can follow."""

    name: str
    summary: str
    parameters: list[PolicyParameter] = Field(default_factory=list)


class ClusterView(BaseModel):
    """Totals of the cluster, and its policy."""

    nodes: dict[NodeState, int]
    kinds: list[KindView]
    jobs: dict[JobState, int]
    """Number of jobs that have not ended, by state."""
    usd_per_h: float
    """Present cost of the held slots."""
    policy: str
    parameters: dict[str, ParameterValue]
    """Parameters that differ from the policy's defaults."""
    policies: list[PolicyView]


class PolicyRequest(BaseModel):
    """A policy for the cluster, with the parameters that differ from its defaults."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    policy: str
    parameters: dict[str, ParameterValue] = Field(default_factory=dict)
