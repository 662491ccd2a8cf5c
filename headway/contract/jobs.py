"""Jobs as the API shows them: states, reasons, views, events."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from headway.contract.forecasts import KeptForecast, SearchView
from headway.contract.markets import Market, pool_name
from headway.contract.spec import JobSpec

Item = TypeVar("Item")


class JobState(StrEnum):
    """Where a job is in its life. The edges are in `service/domain/lifecycle.py`."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    RECOVERING = "RECOVERING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_REASON = re.compile(r"[A-Z][A-Z_]{0,63}")
TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class Reason(StrEnum):
    """Why a job is in its state: for programs. The sentence beside it is for people."""

    SUBMITTED = "SUBMITTED"
    WAITING_FOR_CAPACITY = "WAITING_FOR_CAPACITY"
    NO_SUCH_DEVICE = "NO_SUCH_DEVICE"
    NO_CONTAINER_ENGINE = "NO_CONTAINER_ENGINE"
    QUOTA = "QUOTA"
    BUDGET = "BUDGET"
    ALLOCATED = "ALLOCATED"
    PROGRESSING = "PROGRESSING"
    BETTER_ALLOCATION = "BETTER_ALLOCATION"
    BETTER_BATCH = "BETTER_BATCH"
    USER_REQUEST = "USER_REQUEST"
    PREEMPTED = "PREEMPTED"
    NODE_DRAINED = "NODE_DRAINED"
    SPOT_RECLAIMED = "SPOT_RECLAIMED"
    NODE_LOST = "NODE_LOST"
    RANK_LOST = "RANK_LOST"
    RETRY_REQUESTED = "RETRY_REQUESTED"
    START_FAILED = "START_FAILED"
    USER_ERROR = "USER_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    HUNG = "HUNG"
    BAD_DEVICE = "BAD_DEVICE"
    DEADLINE = "DEADLINE"
    INVALID_SPEC = "INVALID_SPEC"
    COMPLETED = "COMPLETED"

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        """A reason of a newer version stays what it is: programs of two versions share a database during an upgrade."""
        if not isinstance(value, str) or not _REASON.fullmatch(value):
            return None
        newer = str.__new__(cls, value)
        newer._name_ = newer._value_ = value
        return newer


class SlowRank(BaseModel):
    """A rank that takes longer for a sample than its peers do, now: `times` as long, in `windows` reports in a row.

    `told`: it was so for long enough that it was held against its device.
    """

    node_id: str
    slot: int
    times: float
    since: datetime
    windows: int
    told: bool = False


class JobProgress(BaseModel):
    """What the ranks last said of the training. Samples are committed ones since the job began."""

    epoch: int | None = None
    samples: int = 0
    total_samples: int | None = None
    samples_per_s: float | None = None
    global_batch: int | None = None
    """Samples in a step now, all ranks together; None before a script that uses the library has said it."""
    max_global_batch: int | None = None
    """What the ranks could let it grow to; None where it is fixed."""
    metrics: dict[str, float] = Field(default_factory=dict)
    checkpoint_samples: int | None = None
    lost_samples: int = 0
    """Samples trained, then trained again since a failure fell back to a checkpoint (wasted work)."""
    lost_steps: int = 0
    """Optimizer steps that were done again in place, measured: at most one for each loss that was survived."""
    pause_s: float | None = None
    """How long the last change in place held up training."""
    epochs_audited: int = 0
    epochs_exact: int = 0
    """Of the audited epochs, those in which every sample came exactly once."""
    slow_ranks: list[SlowRank] = Field(default_factory=list)
    forecasts: list[KeptForecast] = Field(default_factory=list)
    """What was forecast on the way, and what came of it."""
    search: SearchView | None = None
    """The search for its configuration, where the job file asks for one."""


class JobCost(BaseModel):
    """What a job has cost, and is expected to cost in all."""

    usd: float
    useful_usd: float
    resize_usd: float
    lost_usd: float
    unpriced: bool
    """Whether some of its slots had no price, so that it cost more than this."""
    expected_usd: float | None
    """In all until its end, at the speed and price of now; None where the end is not known."""
    left_usd: float | None
    """Of `goal.max_cost_usd`; None without one."""


class JobView(BaseModel):
    """One job. `allocation` maps node names to slot indices of the current generation."""

    id: str
    name: str
    project: str
    state: JobState
    reason: Reason
    message: str
    generation: int
    attempt: int
    size: int
    allocation: dict[str, list[int]]
    pinned_size: int | None
    """Set by `resize JOB N`: the scheduler keeps the job at this size; None lets it choose."""
    progress: JobProgress
    preemptions: int
    infrastructure_failures: int
    user_errors: int
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    spec: JobSpec
    cost: JobCost | None = None
    """What the ledger has of it; None before anything was charged to it."""


class EventView(BaseModel):
    """Something that happened to a job. `sequence` grows; pass it as `after` to read on."""

    sequence: int
    job_id: str
    at: datetime
    kind: str
    state: JobState | None
    reason: Reason | None
    message: str
    generation: int
    data: dict[str, Any] = Field(default_factory=dict)


class LogChunk(BaseModel):
    """A piece of one rank's output. `offset` is its byte offset in that rank's stream of the
    generation; pass `cursor` as `after` to read on.
    """

    cursor: str
    at: datetime
    generation: int
    rank: int
    offset: int
    text: str


class MetricPoint(BaseModel):
    """One value that a script reported."""

    at: datetime
    generation: int
    epoch: int
    samples: int
    name: str
    value: float


class SizeOption(BaseModel):
    """One size that a round considered for a job. `goodput_samples_per_s` is measured or predicted."""

    device_kind: str
    slots: int
    goodput_samples_per_s: float | None
    speedup: float
    """Against one slot of this job."""
    measured: bool
    utility: float | None = None
    """What the policy weighed; None where the job may not have it now."""
    note: str = ""
    nodes: int = 1
    """How many nodes it spans."""
    market: Market = Market.ON_DEMAND
    anchor: int = 0
    """With SPOT: of its slots, those that are on-demand, so that the job survives when the others are taken away."""
    usd_per_h: float | None = None
    """None in decisions of older versions."""

    @property
    def pool(self) -> str:
        """The pool that it lies in, or, with an anchor, the one that most of it lies in."""
        return pool_name(self.device_kind, self.market)


class ExplainView(BaseModel):
    """The last decision about a job, and what it was weighed against."""

    job_id: str
    name: str
    state: JobState
    action: str
    reason: Reason
    message: str
    round_id: str | None
    decided_at: datetime | None
    options: list[SizeOption] = Field(default_factory=list)


class ResizeRequest(BaseModel):
    """`slots` fixes the size; None gives the choice back to the scheduler."""

    slots: int | None = Field(ge=1, le=4096)


class JobPatch(BaseModel):
    """What is to be another in a job that goes on."""

    model_config = ConfigDict(extra="forbid")

    priority: Annotated[int, Field(ge=0, le=100)]


class CancelRequest(BaseModel):
    """`force` kills the ranks at once, without the grace for a last checkpoint."""

    force: bool = False


class Page(BaseModel, Generic[Item]):
    """A page of a listing. `next_cursor` is None on the last one."""

    items: list[Item]
    next_cursor: str | None = None


class CheckpointView(BaseModel):
    """A checkpoint as it lies in storage. `samples_in_epoch` says where in the epoch it was taken, `samples` how many were
    committed since the job began: only its manifest has them, so None without a manifest that can be read.
    """

    name: str
    generation: int
    epoch: int
    samples_in_epoch: int
    samples: int | None
    saved_at: datetime | None
    """When its manifest was written, or, without one, what was written last; None when it was deleted meanwhile."""
    size_bytes: int
    """Of what lies there."""
    complete: bool
    """Whether it can be loaded: its manifest is there and is right, and so are the sizes of all parts that it names."""
    problem: str = ""
    """What is wrong with one that is not complete."""
    restored_next: bool = False
    """Whether it is what the job would go on from if it lost all of its ranks now."""


class CheckpointPage(Page[CheckpointView]):
    """Checkpoints of a job, newest first. `uri` is where they were looked for; `note` says what the list cannot show."""

    uri: str
    note: str = ""


class BundleView(BaseModel):
    """An uploaded working folder, addressed by the digest of its bytes."""

    digest: str
    size_bytes: int
    files: int


class FieldProblem(BaseModel):
    """One wrong field: its path (`elastic.min`) and what is wrong with it."""

    field: str
    message: str


class Problem(BaseModel):
    """`application/problem+json` (RFC 9457). `code` is stable; `detail` says what to do next."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str | None = None
    request_id: str | None = None
    errors: list[FieldProblem] = Field(default_factory=list)
