"""Facts about the runs of a job: changes, losses, slow ranks, the source of its progress, its resumption, its cost."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field


class ImposedChange(BaseModel):
    """A change of a job's slots that no user asked for. `cost_s` is the training time lost to it.

    `stopped`: it lost all its slots to other jobs.
    """

    at: datetime
    cost_s: float
    stopped: bool = False


class LossRate(BaseModel):
    """The losses per hour after which a job returns to its checkpoint, as the service expected them at a time."""

    per_h: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    at: datetime


class MemoryUse(BaseModel):
    """Memory of a rank of a sharded job on an accelerator, as its last steps needed it.

    `shard_bytes` of `peak_bytes` hold its part of the model, which `fsdp` groups of ranks divide. It took `samples` at a
    time, on a device with `device_bytes`.
    """

    peak_bytes: Annotated[int, Field(gt=0)]
    shard_bytes: Annotated[int, Field(ge=0)]
    device_bytes: Annotated[int, Field(gt=0)]
    fsdp: Annotated[int, Field(ge=1)]
    samples: Annotated[int, Field(ge=1)]


class ProgressSource(StrEnum):
    """The source of training progress: reports of the training library, or the steps of a script without it."""

    LIBRARY = "library"
    SCRIPT = "script"


class Resumption(BaseModel):
    """The first step that a script without the library reported after its latest stop. Steps count as in `samples`.

    A script resumes when that step lies nearer to where it was stopped than to where the job first began.
    """

    generation: int
    """The generation that was started after the stop."""
    first: int
    """The first step that the job ever reported."""
    stopped_at: int
    """The last step before the stop."""
    began_at: int
    """The first step after the stop."""
    resumes: bool


class StartedFrom(BaseModel):
    """The checkpoint of another job that a job started from, at `samples` of that job."""

    job_id: str
    job: str
    """Name of the other job."""
    checkpoint: str
    samples: Annotated[int, Field(ge=0)]

    @property
    def text(self) -> str:
        """The origin as text for users."""
        return f"checkpoint {self.checkpoint} of {self.job} at {self.samples:,} samples"


class SlowRank(BaseModel):
    """A rank that now takes longer per sample than its peers: `times` as long, in `windows` consecutive reports.

    `told`: it lasted long enough to count as a fault of the rank's device.
    """

    node_id: str
    slot: int
    times: float
    since: datetime
    windows: int
    told: bool = False


class Standstill(BaseModel):
    """Ranks of a generation that have taken no step since a time, because they wait for each other. A step usually takes `usual_s`.

    Each pair of `unanswered` is a node, and a node or an address that acknowledges none of its data.
    """

    generation: int
    since: datetime
    usual_s: float
    unanswered: list[tuple[str, str]] = Field(default_factory=list)


class Lingering(BaseModel):
    """A script that ended at `since`, while the process of one of its ranks waits for `waits_for`, until `within_s` have passed."""

    generation: int
    rank: int
    since: datetime
    within_s: float
    exit_code: int = 0
    waits_for: list[str] = Field(default_factory=list)
    over: bool = False
    """True once the process was ended, because the time was over."""


class JobCost(BaseModel):
    """Cost of a job so far, and its expected total."""

    usd: float
    useful_usd: float
    resize_usd: float
    lost_usd: float
    unknown_usd: float
    """Cost of slots while training progress was unknown, because the script does not report it."""
    unpriced: bool
    """True if some slots had no price, so that the job cost more than this."""
    expected_usd: float | None
    """Expected total to the job's end at the present speed and price; None where the end is unknown."""
    left_usd: float | None
    """Rest of `goal.max_cost_usd`; None without that limit."""


class SlotPromise(BaseModel):
    """Slots, by node id, that other jobs release for a waiting job. They are reserved for its next start."""

    at: datetime
    slots: dict[str, list[int]]
    generation: int
    """Latest generation of the job at that time."""
    stopped: list[str] = Field(default_factory=list)
    """Ids of the jobs that were stopped for it."""
