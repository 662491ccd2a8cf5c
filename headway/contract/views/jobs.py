"""Jobs as the API shows them: states, reasons, views, events."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from headway.contract.run_facts import (
    ImposedChange,
    JobCost,
    Lingering,
    LossRate,
    MemoryUse,
    ProgressSource,
    Resumption,
    SlotPromise,
    SlowRank,
    Standstill,
    StartedFrom,
)
from headway.contract.spec import MAX_SLOTS, JobSpec
from headway.contract.spec_after import AfterEnd
from headway.contract.values.markets import Market, pool_name
from headway.contract.views.forecasts import KeptForecast, SearchView
from headway.contract.views.progress import LossProgress, WorkProgress

Item = TypeVar("Item")


class JobState(StrEnum):
    """States of a job's life cycle. The transitions are in `service/domain/jobs/lifecycle.py`."""

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
    """Reason of a job's state, for programs. The message beside it is for people."""

    SUBMITTED = "SUBMITTED"
    AFTER = "AFTER"
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
    UNREACHABLE = "UNREACHABLE"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    REPLICAS_DIFFER = "REPLICAS_DIFFER"
    RETRY_REQUESTED = "RETRY_REQUESTED"
    START_FAILED = "START_FAILED"
    USER_ERROR = "USER_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    HUNG = "HUNG"
    BAD_DEVICE = "BAD_DEVICE"
    DEADLINE = "DEADLINE"
    INVALID_SPEC = "INVALID_SPEC"
    COMPLETED = "COMPLETED"
    TARGET_REACHED = "TARGET_REACHED"
    STOPPED_EARLY = "STOPPED_EARLY"
    NO_PROGRESS = "NO_PROGRESS"

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        """Keep a reason of a newer version: two versions share a database during an upgrade."""
        if not isinstance(value, str) or not _REASON.fullmatch(value):
            return None
        newer = str.__new__(cls, value)
        newer._name_ = newer._value_ = value
        return newer


class JobProgress(WorkProgress):
    """The latest reported training progress. Samples are committed samples since the job began."""

    global_batch: int | None = None
    """Samples per step over all ranks; None until a script that uses the library reports it."""
    max_global_batch: int | None = None
    """Largest global batch that the ranks accept; None where it is fixed."""
    batch_effect: float = 1.0
    """Exponent of the statistical efficiency by which the ranks count their progress."""
    lr_rule: str | None = None
    """Rule by which the learning rate follows the batch, as the ranks report it; None where the batch is fixed."""
    metrics: dict[str, float] = Field(default_factory=dict)
    checkpoint_samples: int | None = None
    checkpoint_name: str | None = None
    """Name of the last checkpoint that the ranks reported as complete; None without one, or if a script names its own."""
    checkpoint_every_s: float | None = None
    """Seconds between periodic checkpoints, as the ranks reported with the last one."""
    checkpoint_took_s: float | None = None
    """Seconds from the start of the last save until its checkpoint was complete."""
    losses: LossRate | None = None
    """Expected losses, last sent to the ranks, that the interval follows with `checkpoint.every: auto`."""
    lost_samples: int = 0
    """Samples trained again after a failure fell back to a checkpoint (wasted work)."""
    lost_steps: int = 0
    """Measured number of optimizer steps repeated in place: at most one for each loss of a rank."""
    pause_s: float | None = None
    """Seconds that the last change in place paused training."""
    epochs_audited: int = 0
    epochs_exact: int = 0
    """Audited epochs in which every sample came exactly once."""
    draws: bool = False
    """True if the samples are random draws without epochs, audited as one epoch at the end of training."""
    shards: int | None = None
    """Shards of a stream that were read to their end; None for other data. A stream has one audit, at the end of training."""
    repeated_samples: int = 0
    """Samples of a stream trained twice: tails of the shards whose readers cannot repeat an order, after lost ranks."""
    repeated_shards: int = 0
    """Shards with such samples, counted once for each loss."""
    slow_ranks: list[SlowRank] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    """Facts by which the result may differ from that of an undisturbed run, oldest first; the first 16 of them."""
    gradients_lost: bool = False
    """True if samples count as trained whose gradients were lost; a warning says which."""
    standstill: Standstill | None = None
    """The last standstill of ranks that wait for each other, until a step of its generation; None while training steps."""
    lingering: Lingering | None = None
    """The last rank whose script ended while its process waits for threads or exit functions; None without any."""
    run_since: datetime | None = None
    """Time at which the job last got slots after it had none; None before its first start."""
    start_s: float | None = None
    """Seconds from the grant of slots to the first step, at the last start without running ranks."""
    stop_s: float | None = None
    """Seconds that the ranks took to save and exit when they were last asked to."""
    imposed: list[ImposedChange] = Field(default_factory=list)
    """Changes of the last ten minutes that no user asked for, oldest first."""
    imposed_count: int = 0
    """Changes since the submit that no user asked for."""
    imposed_s: float = 0.0
    """Training time lost to these changes."""
    forecasts: list[KeptForecast] = Field(default_factory=list)
    """Forecasts made at submit and during training, with the actual results."""
    search: SearchView | None = None
    """The search for the job's configuration, if its job file asks for one."""
    source: ProgressSource | None = None
    """The program that reports the progress; None before the first report."""
    first_samples: int | None = None
    """First step that a script without the library reported; None for others."""
    begun_generation: int = 0
    """Latest generation in which rank 0 reported a first step."""
    resumption: Resumption | None = None
    """Evidence that the script resumes after a stop, or does not; None while there is none."""
    loss_curve: LossProgress | None = None
    """Reported losses, by which a job of unknown length is ranked; None for other jobs, and before the first one."""
    mesh: str | None = None
    """Mesh of the ranks of a sharded job, such as `replicate=1,fsdp=2,tp=2`; None for others, and before it is known."""
    replicates: bool = False
    """True if the script holds replicas of a sharded model on a mesh that has them, so that lost parts have copies."""
    memory: MemoryUse | None = None
    """Memory that its ranks last needed; None for other jobs, on hosts, and before it is measured."""
    kind_speeds: dict[str, float] = Field(default_factory=dict)
    """Expected relative speeds by device kind, when the job last got slots of two kinds."""
    started_from: StartedFrom | None = None
    """Checkpoint of another job that the job started from; None for others."""
    promise: SlotPromise | None = None
    """Slots that are reserved for the job while it waits; None without any."""


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
    """Size that `resize JOB N` fixed; None: the scheduler chooses."""
    progress: JobProgress
    preemptions: int
    infrastructure_failures: int
    user_errors: int
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    spec: JobSpec
    cost: JobCost | None = None
    """Cost from the ledger; None before the first charge."""
    owner: str | None = None
    """Name of the user or robot that submitted the job; None for jobs of older versions."""
    starts_at: datetime | None = None
    """End of the range in which a job that waits is expected to start, rounded; None if it is not known, or for other jobs."""
    present: str
    """Explanation of the present state; `message` belongs to the last event. Empty in the answer to a submit."""


class GraphJob(BaseModel):
    """A job of a chain. `state` is None if the job was deleted."""

    id: str
    name: str
    state: JobState | None
    present: str = ""
    """Explanation of the present state."""


class GraphEdge(BaseModel):
    """A job that waits, or waited, for the end of another one. `ended` is the state in which that one ended; None: not yet."""

    job_id: str
    after_id: str
    on: AfterEnd
    ended: JobState | None = None


class GraphView(BaseModel):
    """Chains of jobs: the jobs in the order of their submission, and what each waits for."""

    jobs: list[GraphJob]
    edges: list[GraphEdge]


class EventView(BaseModel):
    """An event of a job. `sequence` grows; pass it as `after` to read on."""

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
    """A piece of the output of one process.

    `generation` and `rank` are those of the start of the process, and join its pieces. `present_rank` is the rank
    that it had when it wrote this piece, after changes of members; None from an older service. `offset` is the byte
    offset in the output of the process. Pass `cursor` as `after` to read on.
    """

    cursor: str
    at: datetime
    generation: int
    rank: int
    present_rank: int | None = None
    offset: int
    text: str

    @property
    def shown_rank(self) -> int:
        """Rank to show with the text."""
        return self.rank if self.present_rank is None else self.present_rank


class MetricPoint(BaseModel):
    """One metric value that a script reported."""

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
    """Speedup over one slot of this job, as assumed unless `one_slot_measured`."""
    one_slot_measured: bool = True
    """True if the job or its class was measured on one slot."""
    measured: bool
    utility: float | None
    """Utility that the policy computed; None where the job may not have the size now."""
    note: str
    nodes: int
    """Number of nodes that it spans."""
    crosses: str = ""
    """Topology level that the size must cross (`contract.values.topology`); empty for none."""
    market: Market
    anchor: int
    """With SPOT: number of on-demand slots, with which the job survives the loss of the spot slots."""
    usd_per_h: float
    """Cost per hour; 0 where the slots have no price."""
    depth: float | None = None
    """Mean share of the layers through which ranks back-propagate, with partial back-propagation."""

    @property
    def pool(self) -> str:
        """The pool of its slots, or, with an anchor, the pool of most of them."""
        return pool_name(self.device_kind, self.market)


def still_applies(state: JobState, action: str) -> bool:
    """Return True if a job is still in the state in which the action of its last decision left it.

    A decision to wait is void for a running job, and any other one for a waiting job.
    """
    if state is JobState.RUNNING:
        return action not in {"wait", "vacate"}
    return state is JobState.PENDING and action == "wait"


class ExplainView(BaseModel):
    """The last decision about a job, and the alternatives considered."""

    job_id: str
    name: str
    state: JobState
    action: str
    reason: Reason
    message: str
    round_id: str | None
    decided_at: datetime | None
    options: list[SizeOption] = Field(default_factory=list)
    imposed_count: int = 0  # as in `JobProgress`
    imposed_s: float = 0.0
    size: int | None = None
    """Slots that the job holds now, which the decision may have changed; None from a service of an older version."""
    progress_unit: str = "samples"
    """Unit of the goodput, per second."""
    starts_at: datetime | None = None  # as in `JobView`


class ResizeRequest(BaseModel):
    """A fixed size in `slots`; None lets the scheduler choose again.

    With `force`, a job that has not made its first step restarts now, instead of waiting for that step.
    """

    slots: int | None = Field(ge=1, le=MAX_SLOTS)
    force: bool = False


class JobPatch(BaseModel):
    """Changes of a job that continues to run."""

    model_config = ConfigDict(extra="forbid")

    priority: Annotated[int, Field(ge=0, le=100)]


class CancelRequest(BaseModel):
    """Options of a cancellation. `force` kills the ranks at once, without the grace period for a last checkpoint."""

    force: bool = False


class Page(BaseModel, Generic[Item]):
    """A page of a listing. `next_cursor` is None on the last page."""

    items: list[Item]
    next_cursor: str | None = None


class BundleView(BaseModel):
    """An uploaded working folder, addressed by the digest of its bytes."""

    digest: str
    size_bytes: int
    files: int


class FieldProblem(BaseModel):
    """One invalid field: its path (`elastic.min`) and the problem."""

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
