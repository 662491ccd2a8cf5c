"""The job file: a job as a user submits it, as YAML or as the body of `POST /api/v1/jobs`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from headway.contract.spec_after import MOST_AFTER, AfterJob
from headway.contract.spec_env import EnvName, EnvText, SecretName, refuse_reserved
from headway.contract.spec_goal import Goal
from headway.contract.spec_parameters import Parameters, check_distinct
from headway.contract.spec_parts import (
    Balance,
    HungAfter,
    OutputFolder,
    Parallel,
    PartialBackprop,
    PythonEnvironment,
    SpecPart,
    off_of,
    sizes_between,
)
from headway.contract.values.devices import DEVICE_KIND_PATTERN
from headway.contract.values.learning_rate_rules import RuleSetting
from headway.contract.values.patterns import MOST_PATTERN, check_pattern
from headway.contract.values.quantities import Seconds, SizeBytes
from headway.contract.values.text import GivenText
from headway.contract.values.tracker_names import TrackerName

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
START_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(@\d{8,20}-\d{6,20}-\d{12,20}(-\d{1,20})?)?$"
"""A job, and optionally one of its checkpoints as `headway checkpoints` names it."""
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
IMAGE_PATTERN = r"^[a-z0-9][a-z0-9._/:-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
MAX_SLOTS = 4096


class Resize(StrEnum):
    """Ways to change the size of a job: in place, by checkpoint and restart, or not at all."""

    LIVE = "live"
    RESTART = "restart"
    NEVER = "never"


class Resources(SpecPart):
    """Requirements of one slot. `devices` lists acceptable device kinds; empty means any."""

    devices: tuple[Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)], ...] = ()
    cpus_per_slot: Annotated[float, Field(gt=0, le=1024)] | None = None
    memory_per_slot: Annotated[SizeBytes, Field(gt=0)] | None = None


class Elastic(SpecPart):
    """The sizes that the job may have, in slots.

    `sizes` is `any`, `pow2` (powers of two, and `min` and `max` themselves) or a list. `mix` lists device
    kinds of which the job may have slots of two at once; empty: all its slots are of one kind.
    `partial_backprop` is experimental; None: every rank computes all gradients. With `redundancy: neighbour` the
    next rank keeps a copy of each rank's part of a sharded model.
    """

    min: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    max: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    sizes: Literal["any", "pow2"] | tuple[Annotated[int, Field(ge=1, le=MAX_SLOTS)], ...] = "any"
    resize: Resize = Resize.LIVE
    mix: Annotated[tuple[Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)], ...], Field(max_length=8)] = ()
    partial_backprop: PartialBackprop | None = None
    redundancy: Literal["none", "neighbour"] = "none"

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
        if self.mix and (len(set(self.mix)) < len(self.mix) or len(self.mix) < 2):
            raise ValueError(
                "mix needs two device kinds or more, each once, such as [a100, t4]; else leave it out"
            )
        if self.mix and self.allowed_sizes()[-1] < 2:
            raise ValueError("mix needs two slots or more, one of each kind; raise max, or leave mix out")
        if self.mix and self.partial_backprop is not None:
            raise ValueError(
                "mix and partial_backprop exclude each other: both divide a step by speed; leave one out"
            )
        return self

    def most_together(self, slots_by_kind: Mapping[str, int]) -> int:
        """Return how many of these slots a job may hold at once: those of one kind, or of two that it mixes."""
        mixed = sorted((count for kind, count in slots_by_kind.items() if kind in self.mix), reverse=True)
        return max([*slots_by_kind.values(), sum(mixed[:2])], default=0)

    @property
    def kinds_text(self) -> str:
        """The kinds of which all slots must be, as text for users: `of one kind`, or `of two of a100, t4`."""
        return f"of two of {', '.join(self.mix)}" if self.mix else "of one kind"

    @property
    def redundant(self) -> bool:
        """True if the part of a lost rank has a copy on another rank."""
        return self.redundancy == "neighbour"

    @property
    def min_depth(self) -> float | None:
        """The smallest share of the layers through which ranks back-propagate; None: all of them."""
        return None if self.partial_backprop is None else self.partial_backprop.min_depth

    def allowed_sizes(self, unit: int = 1) -> tuple[int, ...]:
        """Return every size that is a multiple of `unit`, ascending."""
        return sizes_between(self.min, self.max, self.sizes, unit)


class Batch(SpecPart):
    """Bounds of the batch plan. `global` stays constant unless the policy is `adaptive`.

    With the `lr_rule` `auto`, the library chooses the rule that fits the optimizer.
    """

    model_config = ConfigDict(populate_by_name=True)

    policy: Literal["fixed", "adaptive"] = "fixed"
    global_: Annotated[int | None, Field(ge=1, le=2**30, alias="global")] = None
    max_global: Annotated[int, Field(ge=1, le=2**30)] | None = None
    max_local: Annotated[int, Field(ge=1, le=2**30)] | None = None
    lr_rule: RuleSetting = "auto"
    balance: Annotated[Literal["off"] | Balance, BeforeValidator(off_of)] | None = None

    @property
    def balance_text(self) -> str | None:
        """The rule for uneven local batches as ranks read it; None for the default."""
        return self.balance.text if isinstance(self.balance, Balance) else self.balance

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.policy == "fixed" and self.max_global is not None:
            raise ValueError("max_global needs policy: adaptive; a fixed batch never changes")
        if self.policy == "adaptive" and (self.global_ is None or self.max_global is None):
            raise ValueError("policy: adaptive needs both global and max_global as bounds")
        if self.global_ is not None and self.max_global is not None and self.max_global < self.global_:
            raise ValueError(f"max_global ({self.max_global}) is smaller than global ({self.global_})")
        return self


class Checkpoint(SpecPart):
    """Checkpoint settings: `every` is `auto` or a duration, `grace_s` the time to stop before SIGKILL.

    `from`: start from the newest complete checkpoint of another job of the project, `JOB` by name or id, or from
    `JOB@CHECKPOINT`.
    """

    model_config = ConfigDict(populate_by_name=True)

    every: Literal["auto"] | Annotated[Seconds, Field(ge=0.1, le=7 * 86400)] = "auto"
    keep: Annotated[int, Field(ge=1, le=100)] = 3
    grace_s: Annotated[Seconds, Field(ge=0, le=3600)] = 60.0
    from_: Annotated[str | None, Field(pattern=START_PATTERN, alias="from")] = None


class Launch(StrEnum):
    """The environment of a rank: that of a single process, or torchrun's (`RANK`, `WORLD_SIZE` and the rest)."""

    PLAIN = "plain"
    TORCHRUN = "torchrun"


class ProgressRule(SpecPart):
    """The rule that reads the progress of a script without the library.

    `regex` is searched in every line that rank 0 prints. Its group `step` is the number of the step, `total`
    the number of the last step, and every other named group that holds a number is a metric. With the groups `epoch` and
    `epochs`, step and total count within an epoch. `batch` defines a step of the script: `global` is the same work at
    every size, `per-rank` a batch of each rank. `total` is the last step, for a script that does not say it.
    """

    regex: Annotated[GivenText, Field(min_length=1, max_length=MOST_PATTERN)] | None = None
    batch: Literal["global", "per-rank"] = "global"
    total: Annotated[int, Field(ge=1, le=2**53)] | None = None

    @field_validator("regex")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            check_pattern(value)
        return value


class Retry(SpecPart):
    """Number of restarts allowed, by cause. Preemptions are not counted."""

    user_errors: Annotated[int, Field(ge=0, le=100)] = 0
    infrastructure: Annotated[int, Field(ge=0, le=1000)] = 3


class JobSpec(SpecPart):
    """One training run, as submitted. `bundle` is the digest of the uploaded `workdir`."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    run: Annotated[GivenText, Field(min_length=1, max_length=16384)]
    workdir: Annotated[GivenText, Field(max_length=4096)] | None = None
    bundle: Annotated[str, Field(pattern=DIGEST_PATTERN)] | None = None
    env: dict[EnvName, EnvText] = Field(default_factory=dict)
    secrets: Annotated[dict[EnvName, SecretName], Field(max_length=100)] = Field(default_factory=dict)
    """Secrets of the job's project, by the environment variable that gives their value to ranks."""
    parameters: Parameters = Field(default_factory=dict)
    """Values that ranks find in environment variables, such as `HEADWAY_PARAM_LR`; those of a trial differ."""
    image: Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=512)] | None = None
    """Container image that the ranks run in; None: the ranks are processes of the host."""
    python: PythonEnvironment = PythonEnvironment()
    resources: Resources = Resources()
    elastic: Elastic = Elastic()
    parallel: Parallel = Parallel()
    batch: Batch = Batch()
    goal: Goal = Goal()
    market: Literal["on-demand", "spot", "mixed"] = "on-demand"
    checkpoint: Checkpoint = Checkpoint()
    output: OutputFolder = OutputFolder()
    after: Annotated[tuple[AfterJob, ...], Field(max_length=MOST_AFTER)] = ()
    """Jobs of the same project that must end before this one starts."""
    retry: Retry = Retry()
    launch: Launch | None = None
    """Environment of a rank. None: `plain` for a job that always has one slot, else `torchrun`."""
    resumes: bool | None = None
    """True if the script continues from its saved state after a stop. None: as observed."""
    progress: ProgressRule = ProgressRule()
    trackers: Annotated[list[TrackerName], Field(max_length=10)] = Field(default_factory=list)
    """Trackers that receive values of `run.report` besides the service."""
    hung_after: HungAfter = "auto"
    exit_within: Annotated[Seconds, Field(ge=1, le=7 * 86400)] = 600.0
    """Time after the end of a Python script within which its threads and exit functions must end."""
    audit: Literal["replicas", "none"] = "replicas"
    """`replicas`: ranks with the whole model compare what must be equal, and stop if it differs."""
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    project: Annotated[str, Field(pattern=NAME_PATTERN)] = "default"

    def allowed_sizes(self) -> tuple[int, ...]:
        """Return every size that the job may have, ascending."""
        return self.elastic.allowed_sizes(self.parallel.unit)

    @model_validator(mode="after")
    def _some_size_has_a_mesh(self) -> Self:
        if self.elastic.redundant and self.parallel != Parallel():
            raise ValueError("elastic.redundancy needs a model without parallel; leave one of them out")
        if not self.allowed_sizes():
            raise ValueError(
                f"elastic allows no multiple of {self.parallel.unit} slots, which parallel needs; set elastic.min and "
                "elastic.max to multiples"
            )
        return self

    @model_validator(mode="after")
    def _one_source_of_packages(self) -> Self:
        if self.python.file is not None and self.image is not None:
            raise ValueError(
                "python and image exclude each other: an image brings its own packages; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _batch_reaches_every_rank(self) -> Self:
        most = self.batch.max_global or self.batch.global_
        least = self.allowed_sizes()[0] // self.parallel.pipeline
        if most is not None and most < least:
            raise ValueError(
                f"batch.global ({most}) is smaller than the smallest size ({least} slots): every rank needs a sample "
                "of each step"
            )
        return self

    @model_validator(mode="after")
    def _noise_of_whole_gradients(self) -> Self:
        partial = {
            "elastic.partial_backprop": self.elastic.partial_backprop,
            "parallel.pp": self.parallel.pp > 1,
        }
        field = next((name for name, used in partial.items() if used), None)
        if field is not None and self.batch.policy == "adaptive":
            raise ValueError(
                f"{field} and batch.policy: adaptive exclude each other: the batch follows the noise of whole gradients, which "
                "no rank computes; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _mixes_acceptable_kinds(self) -> Self:
        others = [kind for kind in self.elastic.mix if kind not in self.resources.devices]
        if others and self.resources.devices:
            raise ValueError(
                f"elastic.mix has {', '.join(others)}, which resources.devices does not accept; add it there, or "
                "leave it out of mix"
            )
        return self

    @model_validator(mode="after")
    def _one_process_on_one_slot(self) -> Self:
        most = self.allowed_sizes()[-1]
        if self.launch is Launch.PLAIN and most > 1:
            raise ValueError(
                f"launch: plain starts one process without RANK, but elastic allows {most} slots, each with a process of "
                "its own; set elastic.max: 1, or launch: torchrun"
            )
        if self.progress.batch == "per-rank" and self.batch.global_ is not None:
            raise ValueError(
                "progress.batch: per-rank says that a step takes more samples on more slots, and batch.global that it "
                "takes as many on all; leave one of them out"
            )
        return self

    @property
    def audits(self) -> bool:
        """True if ranks compare their replicas to the bit. Devices of two kinds round differently: see `audits_near`."""
        return self.audit == "replicas" and not self.elastic.mix

    @property
    def audits_near(self) -> bool:
        """True if ranks compare their replicas up to rounding."""
        return self.audit == "replicas" and bool(self.elastic.mix)

    @property
    def environment(self) -> Launch:
        """The environment of the job's ranks."""
        if self.launch is not None:
            return self.launch
        fixed = self.elastic.resize is Resize.NEVER and self.allowed_sizes() == (1,)
        return Launch.PLAIN if fixed else Launch.TORCHRUN

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

    @field_validator("parameters")
    @classmethod
    def _one_variable_each(cls, value: Parameters) -> Parameters:
        check_distinct(value)
        return value

    @field_validator("after")
    @classmethod
    def _each_job_once(cls, value: tuple[AfterJob, ...]) -> tuple[AfterJob, ...]:
        names = [one.job for one in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is listed twice; leave one of them out")
        return value

    @field_validator("env", "secrets")
    @classmethod
    def _no_reserved_names(cls, value: dict[str, str]) -> dict[str, str]:
        refuse_reserved(value)
        return value

    @model_validator(mode="after")
    def _each_name_once(self) -> Self:
        twice = sorted(self.env.keys() & self.secrets.keys())
        if twice:
            raise ValueError(f"{', '.join(twice)}: both in env and in secrets; leave one of them out")
        return self
