"""What-if questions: what would come of the live cluster under changes, played through in virtual time."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headway.contract.decisions import ParameterValue, PolicyRequest
from headway.contract.devices import DEVICE_KIND_PATTERN, MOST_USD_PER_SLOT_H
from headway.contract.quantities import Seconds
from headway.contract.spec import MAX_SLOTS, JobSpec
from headway.contract.text import GivenText

MOST_NODES = 10_000
MOST_SEEDS = 20
MOST_CHANGES = 100
MOST_POLICIES = 12
LONGEST_HORIZON_S = 90 * 86_400.0

_Kind = Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)]
_Name = Annotated[GivenText, Field(min_length=1, max_length=253)]


class _Change(BaseModel):
    """An unknown field is an error: a typo must not change the question."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AddNodes(_Change):
    """`nodes` more nodes of a kind, with `slots` each; null: as many as most nodes of the kind have."""

    change: Literal["add_nodes"] = "add_nodes"
    device_kind: _Kind
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None


class RemoveNodes(_Change):
    """`nodes` fewer nodes of a kind: those go first on which the fewest slots are held."""

    change: Literal["remove_nodes"] = "remove_nodes"
    device_kind: _Kind
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]


class KillNode(_Change):
    """One node is gone at once; jobs that hold slots of it start again where there is room."""

    change: Literal["kill_node"] = "kill_node"
    node: _Name


class SetBudget(_Change):
    """The policy `budget` with so many dollars an hour, as a long-run average."""

    change: Literal["budget"] = "budget"
    usd_per_h: Annotated[float, Field(ge=0, le=1e9)]


class SetPolicy(_Change):
    """Another policy, or the same with other parameters."""

    change: Literal["policy"] = "policy"
    policy: str
    parameters: dict[str, ParameterValue] = Field(default_factory=dict)


class AddJob(_Change):
    """A job more, submitted `after_s` from now. `samples` is how many it trains on; null: as many as ended jobs of its
    class.
    """

    change: Literal["add_job"] = "add_job"
    spec: JobSpec
    after_s: Annotated[Seconds, Field(ge=0, le=LONGEST_HORIZON_S)] = 0.0
    samples: Annotated[int, Field(ge=1, le=10**15)] | None = None


class DropJob(_Change):
    """A job, by id or name, is not there any more."""

    change: Literal["drop_job"] = "drop_job"
    job: _Name


class SetPrice(_Change):
    """Another price of an hour of one slot of a kind."""

    change: Literal["price"] = "price"
    device_kind: _Kind
    usd_per_slot_h: Annotated[float, Field(ge=0, le=MOST_USD_PER_SLOT_H)]


Change: TypeAlias = Annotated[
    AddNodes | RemoveNodes | KillNode | SetBudget | SetPolicy | AddJob | DropJob | SetPrice,
    Field(discriminator="change"),
]


class SimulationRequest(BaseModel):
    """What if these changes, made in their order, were made now?

    `policies` are compared in the changed cluster; none: the one that it would follow. What is uncertain, which is how
    much work jobs have left and how fast they are, is drawn anew for each of `seeds` runs; the first run takes the medians.
    Nothing is looked at beyond `horizon_s`.
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
    """Where a simulation is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({SimulationStatus.DONE, SimulationStatus.FAILED, SimulationStatus.CANCELLED})


class JobOutcome(BaseModel):
    """What becomes of one job, in seconds from now, as the median of the runs; `*_low` and `*_high` are the least and the
    most of them. `end_s` is null where the job has not ended within the horizon in half of the runs or more, `start_s`
    where it has never had slots. `usd` is what it costs from now on, until its end or the horizon.
    """

    start_s: float | None
    end_s: float | None
    end_low_s: float | None
    end_high_s: float | None
    usd: float
    slot_h: float
    changes: float
    """How often its slots are changed after its start."""


class JobComparison(BaseModel):
    """One job in each of the outcomes, in their order; null where it does not exist."""

    job_id: str
    name: str
    outcomes: list[JobOutcome | None]


class Outcome(BaseModel):
    """What becomes of the cluster under one policy. Times are seconds from now, or from the submits of jobs that come
    later, on average over runs; jobs that have not ended count as if they did at the horizon.
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
    """When the last job has ended."""
    wait_s: float
    """Without slots, until the start, on average over jobs."""
    usd: float
    slot_h: float
    utilisation: float
    """Share of the slots that were held, from now until the last job has ended."""
    changes_per_job: float
    differences: list[str] = Field(default_factory=list)
    """Against the baseline, in words; empty for the baseline itself."""


class SimulationResult(BaseModel):
    """The baseline, which is the cluster as it is, and then one outcome for each policy with the changes made."""

    at: datetime
    """Of the picture of the cluster that everything starts from."""
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
