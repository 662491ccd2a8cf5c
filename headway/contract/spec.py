"""The job file: what a user submits, as YAML or as the body of `POST /api/v1/jobs`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from headway.contract.devices import DEVICE_KIND_PATTERN
from headway.contract.quantities import Seconds, SizeBytes
from headway.contract.runtime import TrackerName
from headway.contract.text import GivenText

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
SECRET_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]{0,127}$"  # noqa: S105 - of names
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
IMAGE_PATTERN = r"^[a-z0-9][a-z0-9._/:-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
MAX_SLOTS = 4096


class Part(BaseModel):
    """A part of the spec. An unknown field is an error: a typo must not be ignored silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Resize(StrEnum):
    """How a job changes size: in place, by checkpoint and relaunch, or not at all."""

    LIVE = "live"
    RESTART = "restart"
    NEVER = "never"


class Resources(Part):
    """What one slot needs. `devices` lists acceptable device kinds; empty means any."""

    devices: tuple[Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)], ...] = ()
    cpus_per_slot: Annotated[float, Field(gt=0, le=1024)] | None = None
    memory_per_slot: Annotated[SizeBytes, Field(gt=0)] | None = None


class Elastic(Part):
    """The sizes that the job may have, in slots.

    `sizes` is `any`, `pow2` (powers of two, and `min` and `max` themselves) or a list.
    """

    min: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    max: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    sizes: Literal["any", "pow2"] | tuple[Annotated[int, Field(ge=1, le=MAX_SLOTS)], ...] = "any"
    resize: Resize = Resize.LIVE

    @model_validator(mode="before")
    @classmethod
    def _max_defaults_to_min(cls, value: Any) -> Any:
        if isinstance(value, dict) and "min" in value and "max" not in value:
            return {**value, "max": value["min"]}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is larger than max ({self.max})")
        if not self.allowed_sizes():
            raise ValueError(f"no size in the list lies between min ({self.min}) and max ({self.max})")
        return self

    def allowed_sizes(self) -> tuple[int, ...]:
        """Every size that the job may have, ascending."""
        return _sizes_between(self.min, self.max, self.sizes)


@lru_cache(maxsize=4096)
def _sizes_between(low: int, high: int, sizes: str | tuple[int, ...]) -> tuple[int, ...]:
    """A round asks for it several times for every job."""
    if sizes == "any":
        return tuple(range(low, high + 1))
    if sizes == "pow2":
        powers = {2**exponent for exponent in range(MAX_SLOTS.bit_length())}
        inside = {size for size in powers if low <= size <= high}
        return tuple(sorted(inside | {low, high}))
    return tuple(sorted({size for size in sizes if isinstance(size, int) and low <= size <= high}))


class Batch(Part):
    """The batch plan's bounds. `global` stays constant unless the policy is `adaptive`."""

    model_config = ConfigDict(populate_by_name=True)

    policy: Literal["fixed", "adaptive"] = "fixed"
    global_: Annotated[int | None, Field(ge=1, le=2**30, alias="global")] = None
    max_global: Annotated[int, Field(ge=1, le=2**30)] | None = None
    max_local: Annotated[int, Field(ge=1, le=2**30)] | None = None
    lr_rule: Literal["adascale", "sqrt", "linear", "none"] = "none"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.policy == "fixed" and self.max_global is not None:
            raise ValueError("max_global needs policy: adaptive; a fixed batch never changes")
        if self.policy == "adaptive" and (self.global_ is None or self.max_global is None):
            raise ValueError("policy: adaptive needs both global and max_global as bounds")
        if self.global_ is not None and self.max_global is not None and self.max_global < self.global_:
            raise ValueError(f"max_global ({self.max_global}) is smaller than global ({self.global_})")
        return self


OnBudget = Literal["shrink", "pause", "stop"]
"""What a job does when its money comes to an end: take what is cheapest, or stop after a checkpoint, to be resumed or
for good.
"""


class Goal(Part):
    """What the user wants of time and money.

    With `search`, the configuration that is best for the objective within both limits is looked for while the job trains,
    and the job runs on there: by short visits to `full`, every size that it may have; to `partial`, those that the models
    rest on; to `none`, by what jobs of its class have shown alone. Without it, the cluster's policy decides.
    """

    objective: Literal["time", "cost", "balanced"] = "balanced"
    search: Literal["full", "partial", "none"] | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    on_budget: OnBudget = "shrink"
    deadline: datetime | None = None

    @field_validator("deadline")
    @classmethod
    def _aware(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("the deadline needs a time zone, for example 2026-12-01T00:00:00Z")
        return value


class Checkpoint(Part):
    """`every` is `auto` or a duration; `grace_s` is the time a rank has to stop before SIGKILL."""

    every: Literal["auto"] | Annotated[Seconds, Field(ge=0.1, le=7 * 86400)] = "auto"
    keep: Annotated[int, Field(ge=1, le=100)] = 3
    grace_s: Annotated[Seconds, Field(ge=0, le=3600)] = 60.0


class Retry(Part):
    """How often a job is started again, by cause. Preemptions are not counted."""

    user_errors: Annotated[int, Field(ge=0, le=100)] = 0
    infrastructure: Annotated[int, Field(ge=0, le=1000)] = 3


def _one_complaint(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """A union complains once for each of its parts, under names that no job file has."""
    try:
        return validate(value)
    except ValidationError as error:
        raise ValueError("write auto, never, or a duration from 1s to 7d, such as 30m") from error


HungAfter = Annotated[
    Literal["auto", "never"] | Annotated[Seconds, Field(ge=1, le=7 * 86400)], WrapValidator(_one_complaint)
]
"""After how many seconds without a step the ranks of a job are taken to hang."""


EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
SecretName = Annotated[str, Field(pattern=SECRET_NAME_PATTERN)]


class JobSpec(Part):
    """One training run, as submitted. `bundle` is the digest of the uploaded `workdir`."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    run: Annotated[GivenText, Field(min_length=1, max_length=16384)]
    workdir: Annotated[GivenText, Field(max_length=4096)] | None = None
    bundle: Annotated[str, Field(pattern=DIGEST_PATTERN)] | None = None
    env: dict[EnvName, Annotated[GivenText, Field(max_length=32768)]] = Field(default_factory=dict)
    secrets: Annotated[dict[EnvName, SecretName], Field(max_length=100)] = Field(default_factory=dict)
    """Names of environment variables, and the secrets of the job's project whose values ranks find under them."""
    image: Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=512)] | None = None
    """The container image that ranks run in; None: they are processes of the host."""
    resources: Resources = Resources()
    elastic: Elastic = Elastic()
    batch: Batch = Batch()
    goal: Goal = Goal()
    market: Literal["on-demand", "spot", "mixed"] = "on-demand"
    checkpoint: Checkpoint = Checkpoint()
    retry: Retry = Retry()
    trackers: Annotated[list[TrackerName], Field(max_length=10)] = Field(default_factory=list)
    """Where values of `run.report` go beside the service."""
    hung_after: HungAfter = "auto"
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    project: Annotated[str, Field(pattern=NAME_PATTERN)] = "default"

    @model_validator(mode="after")
    def _batch_reaches_every_rank(self) -> Self:
        most, least = self.batch.max_global or self.batch.global_, self.elastic.allowed_sizes()[0]
        if most is not None and most < least:
            raise ValueError(
                f"batch.global ({most}) is smaller than the smallest size ({least} slots): every rank needs a sample "
                "of each step"
            )
        return self

    @field_validator("run")
    @classmethod
    def _one_command(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("run is empty; give the command of one rank")
        return value

    @field_validator("trackers")
    @classmethod
    def _each_once(cls, value: list[TrackerName]) -> list[TrackerName]:
        return list(dict.fromkeys(value))

    @field_validator("env", "secrets")
    @classmethod
    def _no_reserved_names(cls, value: dict[str, str]) -> dict[str, str]:
        taken = sorted(name for name in value if name.startswith("HEADWAY_") or name in RESERVED_ENV)
        if taken:
            raise ValueError(f"{', '.join(taken)}: set by Headway for every rank; choose other names")
        return value

    @model_validator(mode="after")
    def _each_name_once(self) -> Self:
        twice = sorted(self.env.keys() & self.secrets.keys())
        if twice:
            raise ValueError(f"{', '.join(twice)}: both in env and in secrets; leave one of them out")
        return self


RESERVED_ENV = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        "CUDA_VISIBLE_DEVICES",
    }
)
"""Names that only Headway may set for a rank (torchrun's environment)."""
