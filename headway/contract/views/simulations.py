"""What-if questions: the effect of changes on the live cluster, simulated in virtual time."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headway.contract.spec import MAX_SLOTS, JobSpec
from headway.contract.values.devices import DEVICE_KIND_PATTERN, MOST_USD_PER_SLOT_H
from headway.contract.values.quantities import Seconds
from headway.contract.values.text import GivenText
from headway.contract.views.decisions import ParameterValue, PolicyRequest

MOST_NODES = 10_000
MOST_SEEDS = 20
MOST_CHANGES = 100
MOST_POLICIES = 12
LONGEST_HORIZON_S = 90 * 86_400.0

_Kind = Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)]
_Name = Annotated[GivenText, Field(min_length=1, max_length=253)]


class _Change(BaseModel):
    """Base of the changes. An unknown field is an error: a typo must not change the question."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AddNodes(_Change):
    """A change that adds `nodes` nodes of a kind, with `slots` slots each; null: the slots of most nodes of the kind."""

    change: Literal["add_nodes"] = "add_nodes"
    device_kind: _Kind
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None


class RemoveNodes(_Change):
    """A change that removes `nodes` nodes of a kind, starting with the nodes with the fewest held slots."""

    change: Literal["remove_nodes"] = "remove_nodes"
    device_kind: _Kind
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]


class KillNode(_Change):
    """The sudden loss of one node. Jobs that hold its slots start again where slots are free."""

    change: Literal["kill_node"] = "kill_node"
    node: _Name


class SetBudget(_Change):
    """A change to the policy `budget` with a long-run average of `usd_per_h` dollars an hour."""

    change: Literal["budget"] = "budget"
    usd_per_h: Annotated[float, Field(ge=0, le=1e9)]


class SetPolicy(_Change):
    """A change to another policy, or to other parameters of the same policy."""

    change: Literal["policy"] = "policy"
    policy: str
    parameters: dict[str, ParameterValue] = Field(default_factory=dict)


class AddJob(_Change):
    """A change that adds a job, submitted `after_s` seconds from now.

    `samples` is the length of its training; null: the length of ended jobs of its class.
    """

    change: Literal["add_job"] = "add_job"
    spec: JobSpec
    after_s: Annotated[Seconds, Field(ge=0, le=LONGEST_HORIZON_S)] = 0.0
    samples: Annotated[int, Field(ge=1, le=10**15)] | None = None


class DropJob(_Change):
    """A change that removes a job, by id or name."""

    change: Literal["drop_job"] = "drop_job"
    job: _Name


class SetPrice(_Change):
    """A change of the price of an hour of one slot of a kind."""

    change: Literal["price"] = "price"
    device_kind: _Kind
    usd_per_slot_h: Annotated[float, Field(ge=0, le=MOST_USD_PER_SLOT_H)]


Change: TypeAlias = Annotated[
    AddNodes | RemoveNodes | KillNode | SetBudget | SetPolicy | AddJob | DropJob | SetPrice,
    Field(discriminator="change"),
]


class SimulationRequest(BaseModel):
    """A what-if question: the effect of these changes, applied now in their order.

    The simulation compares `policies` in the changed cluster; with none, it uses the cluster's policy.
    Uncertain quantities, which are the remaining work and the speed of jobs, are sampled for each of `seeds`
    runs. The first run uses their medians. The simulation ends at `horizon_s`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    changes: tuple[Change, ...] = Field(default=(), max_length=MOST_CHANGES)
    policies: tuple[PolicyRequest, ...] = Field(default=(), max_length=MOST_POLICIES)
    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS)] = 3
    horizon_s: Annotated[Seconds, Field(ge=60, le=LONGEST_HORIZON_S)] = 14 * 86_400.0

    @model_validator(mode="after")
    def _within_horizon(self) -> Self:
        late = [one for one in self.changes if isinstance(one, AddJob) and one.after_s >= self.horizon_s]
        if late:
            raise ValueError(f"{late[0].spec.name} would come after the horizon, in {late[0].after_s:g} s")
        return self


class SimulationStatus(StrEnum):
    """States of a simulation."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({SimulationStatus.DONE, SimulationStatus.FAILED, SimulationStatus.CANCELLED})


class JobOutcome(BaseModel):
    """The simulated result of one job, in seconds from now, as the median of the runs.

    `*_low` and `*_high` are the minimum and maximum of the runs. `end_s` is null where the job does not end
    within the horizon in at least half of the runs, `start_s` where it never gets slots. `usd` is its cost
    from now until its end or the horizon.
    """

    start_s: float | None
    end_s: float | None
    end_low_s: float | None
    end_high_s: float | None
    usd: float
    slot_h: float
    changes: float
    """Number of changes of its slots after its start."""


class JobComparison(BaseModel):
    """One job in each of the outcomes, in their order; null where the job does not exist."""

    job_id: str
    name: str
    outcomes: list[JobOutcome | None]


class Outcome(BaseModel):
    """The simulated result of the cluster under one policy.

    Times are seconds from now, or from the submit of a later job, averaged over the runs. A job that has not
    ended counts as if it ended at the horizon.
    """

    label: str
    policy: str
    parameters: dict[str, ParameterValue] = Field(default_factory=dict)
    jobs: int
    unfinished: float
    avg_s: float
    median_s: float
    p90_s: float
    last_s: float
    """End of the last job."""
    wait_s: float
    """Mean time of a job without slots before its start."""
    usd: float
    slot_h: float
    utilisation: float
    """Share of the slots in use, from now until the end of the last job."""
    changes_per_job: float
    differences: list[str] = Field(default_factory=list)
    """Differences from the baseline, in words; empty for the baseline itself."""


class SimulationResult(BaseModel):
    """The result of a simulation: the baseline (the unchanged cluster), and an outcome for each policy."""

    at: datetime
    """Time of the snapshot of the cluster at which the simulation starts."""
    seeds: int
    horizon_s: float
    outcomes: list[Outcome]
    jobs: list[JobComparison]
    warnings: list[str] = Field(default_factory=list)


class SimulationView(BaseModel):
    """A simulation. `progress` is from 0 to 1. Listings leave out `result`."""

    id: str
    status: SimulationStatus
    progress: float
    message: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    request: SimulationRequest
    result: SimulationResult | None = None
