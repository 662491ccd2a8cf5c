"""The contract between an agent and the ranks it starts: environment, exit codes, messages.

Standard library only, since every rank imports it. A rank finds its *control folder* in
`HEADWAY_CONTROL`: it appends one JSON line per message to `rank-<RANK>.jsonl` there, and the agent
tails the file. A plain file outlives a restart of the agent, so no message is lost by one.

The other way lies one file, `order.json`: the membership that the service has ordered last, see `orders`.

To stop a rank the agent sends SIGTERM: the library agrees on a step boundary with its peers,
checkpoints, sends `Stopped` and exits with `EXIT_STOPPED`; a plain script does what it does.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from headway.contract.checks import check_of, is_finite

ENV_JOB_ID = "HEADWAY_JOB_ID"
ENV_JOB_NAME = "HEADWAY_JOB_NAME"
ENV_ATTEMPT = "HEADWAY_ATTEMPT"
ENV_GENERATION = "HEADWAY_GENERATION"
ENV_GLOBAL_BATCH = "HEADWAY_GLOBAL_BATCH"
ENV_MAX_GLOBAL_BATCH = "HEADWAY_MAX_GLOBAL_BATCH"
"""Set where the service may change the global batch: up to here."""
ENV_START_GLOBAL_BATCH = "HEADWAY_START_GLOBAL_BATCH"
"""Set where it is not `HEADWAY_GLOBAL_BATCH`: what the job had come to before it was started again."""
ENV_MAX_LOCAL_BATCH = "HEADWAY_MAX_LOCAL_BATCH"
ENV_LR_RULE = "HEADWAY_LR_RULE"
ENV_CHECKPOINT_URI = "HEADWAY_CHECKPOINT_URI"
ENV_CHECKPOINT_EVERY_S = "HEADWAY_CHECKPOINT_EVERY_S"
"""Seconds between periodic checkpoints; unset means the library chooses from the measured cost."""
ENV_CHECKPOINT_KEEP = "HEADWAY_CHECKPOINT_KEEP"
ENV_CONTROL = "HEADWAY_CONTROL"
ENV_PROJECT = "HEADWAY_PROJECT"
ENV_TRACKERS = "HEADWAY_TRACKERS"
"""Where values of `run.report` go beside the service: `TrackerName`s with commas between."""
ENV_JOINS = "HEADWAY_JOINS"
"""Set for a newcomer: `HEADWAY_GENERATION` is the one that it will join, and training runs without it so far."""
ENV_MEMBER = "HEADWAY_MEMBER"
"""`member_id` of the process; whatever it starts inherits it, which is how its agent finds what it left behind."""

TrackerName: TypeAlias = Literal["tensorboard", "mlflow"]

STORAGE_FILE = "storage.json"
"""In the control folder, where the service gives keys for checkpoints: `contract.credentials.StorageCredentials` as JSON. The
agent replaces it before they expire.
"""

EXIT_DONE = 0
"""Finished, or released by a resize."""
EXIT_STOPPED = 143
"""Stopped on request, after a checkpoint (128 + SIGTERM)."""
EXIT_RETRY = 75
"""EX_TEMPFAIL: the script asks to be started again."""
EXIT_NEVER_RETRY = 78
"""EX_CONFIG: starting again cannot help."""

KILLED_FOR_MEMORY = "The kernel killed this rank: there was no memory left"
"""What an agent adds to the output of a rank of which the kernel counts that."""
STACKS_SIGNAL = signal.SIGURG
"""Has a rank write where its threads are to `stacks_file`. Nothing happens to a process that does not expect it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every message of a rank carries. `at_s` is Unix time on the rank's host."""

    TYPE: ClassVar[str]

    rank: int
    generation: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Envelope):
    """`headway.init()` was called: this rank understands a request to stop."""

    TYPE: ClassVar[str] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep(Envelope):
    """The first optimizer step of this process is complete. `samples` as in `Progress`.

    `live`: from now on the rank follows orders, so that its job changes members in place and survives losses.
    """

    TYPE: ClassVar[str] = "first_step"

    samples: int
    live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Envelope):
    """A newcomer has come to its training loop and waits to join. `ready_s`: seconds since `headway.init()`."""

    TYPE: ClassVar[str] = "ready"

    ready_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched(Envelope):
    """This rank is a member of a new generation, holds the same state as its peers, and goes on training.

    `pause_s`: from the end of the last step before to now. `lost_steps`: optimizer steps that were computed
    at least in part and are done again; 0 unless a peer was lost. `sync_bytes` of state came over the network.
    """

    TYPE: ClassVar[str] = "switched"

    samples: int
    world_size: int
    pause_s: float
    lost_steps: int
    sync_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Envelope):
    """This rank is not a member of generation `joined` and ends, as ordered; its peers go on at `samples`."""

    TYPE: ClassVar[str] = "left"

    samples: int
    joined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Envelope):
    """Sufficient statistics of the steps since the last `Progress` of this generation (rank 0).

    `samples` counts committed samples since the job began (epochs x dataset length + position);
    `total_samples` is where the job will be done, or None when the script does not say.
    `step_s_sum` and `step_s_squares` are the sum and the sum of squares of `steps` step times, `sync_s_sum` the part
    of them in which rank 0 waited for its peers. `local_batches` are the samples that each rank takes in a step.
    `rank_sample_s` are the seconds that each took for one of its samples, without waiting (0: it did not say); empty
    while none of them takes much longer than the others.

    `gradient_sqr` and `gradient_var`: smoothed estimates of the squared norm of the true gradient and of the trace
    of the covariance of one sample's gradient; None while noise is not measured. `max_global_batch`: steps may come to
    take so many samples, which is never more than the data has; None where they always take as many.
    """

    TYPE: ClassVar[str] = "progress"

    epoch: int
    samples: int
    total_samples: int | None
    steps: int
    step_s_sum: float
    step_s_squares: float
    global_batch: int
    local_batch: int
    accumulation: int
    sync_s_sum: float = 0.0
    local_batches: tuple[int, ...] = ()
    rank_sample_s: tuple[float, ...] = ()
    gradient_sqr: float | None = None
    gradient_var: float | None = None
    max_global_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChanged(Envelope):
    """From now on steps take `global_batch` samples, at the learning rate of the script times `lr_factor`."""

    TYPE: ClassVar[str] = "batch_changed"

    samples: int
    global_batch: int
    lr_factor: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Envelope):
    """Values for people from `run.report(...)`; shown, never used to steer."""

    TYPE: ClassVar[str] = "metrics"

    epoch: int
    samples: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Envelope):
    """A checkpoint is complete (its manifest is written): `total_s` after its begin, of which `save_s` held up
    training.
    """

    TYPE: ClassVar[str] = "checkpointed"

    uri: str
    samples: int
    size_bytes: int
    save_s: float
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Envelope):
    """A checkpoint at `samples` could not be saved; those before are as they were, and training goes on."""

    TYPE: ClassVar[str] = "checkpoint_failed"

    samples: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochClosed(Envelope):
    """The audit of one epoch: `samples_seen` of `dataset_samples`, and whether each came exactly once.

    `exact_so_far`: of this epoch and those before, how many had each exactly once, in the training that the state of now
    stands on. Whoever told of one of them may have been lost with its news; None where a library does not say.
    """

    TYPE: ClassVar[str] = "epoch_closed"

    epoch: int
    samples_seen: int
    dataset_samples: int
    exactly_once: bool
    exact_so_far: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Envelope):
    """Training goes on from a checkpoint at `samples`, written by `from_generation`."""

    TYPE: ClassVar[str] = "restored"

    samples: int
    from_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Envelope):
    """This rank stops on request; nothing after `samples` is lost."""

    TYPE: ClassVar[str] = "stopped"

    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Envelope):
    """The training loop is over. Trusted above the exit code: interpreters die while they tidy up."""

    TYPE: ClassVar[str] = "completed"

    samples: int


Message: TypeAlias = (
    Hello
    | FirstStep
    | Ready
    | Switched
    | Left
    | Progress
    | BatchChanged
    | Metrics
    | Checkpointed
    | CheckpointFailed
    | EpochClosed
    | Restored
    | Stopped
    | Completed
)

_TYPES: dict[str, type[Any]] = {
    kind.TYPE: kind
    for kind in (
        Hello,
        FirstStep,
        Ready,
        Switched,
        Left,
        Progress,
        BatchChanged,
        Metrics,
        Checkpointed,
        CheckpointFailed,
        EpochClosed,
        Restored,
        Stopped,
        Completed,
    )
}


def message_file(rank: int) -> str:
    """Name of the file in the control folder that `rank` appends its messages to."""
    return f"rank-{rank}.jsonl"


def stacks_file(rank: int) -> str:
    """Name of the file in the control folder that the process started as `rank` writes the stacks of its threads to."""
    return f"stacks-{rank}.txt"


def to_line(message: Message) -> str:
    """One JSON line, newline included."""
    return json.dumps({"type": message.TYPE, **asdict(message)}, separators=(",", ":")) + "\n"


def from_line(line: str) -> Message:
    """The message in `line`. Unknown fields are ignored, so that an older agent reads a newer rank.

    Raises:
        ValueError: not JSON, or not as `from_fields` wants it.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply for a message of a rank") from error
    if not isinstance(fields, dict):
        raise ValueError(f"not a message of a rank: {line[:80]!r}")  # noqa: TRY004 - one kind of error
    return from_fields(fields)


def from_fields(fields: dict[str, Any]) -> Message:
    """The message with these fields, as parsed from JSON.

    A script may write what it likes into its control folder, so every value is checked: what passes
    can be stored and added up. Reported values that are not finite are left out; JSON has no NaN.

    Raises:
        ValueError: of an unknown type, or a field is missing or has a wrong value.
    """
    kind = _TYPES.get(str(fields.get("type", "")))
    if kind is None:
        raise ValueError(f"no message of a rank has the type {fields.get('type')!r}"[:200])
    known = {}
    for name, is_right in _CHECKS[kind.TYPE]:
        if name in fields:
            known[name] = value = fields[name]
            if not is_right(value):
                raise ValueError(f"{name} of a {kind.TYPE} message cannot be {value!r}"[:200])
    if kind is Metrics and "values" in known:
        known["values"] = {name: float(one) for name, one in known["values"].items() if is_finite(one)}
    for name in ("local_batches", "rank_sample_s"):
        if isinstance(known.get(name), list):
            known[name] = tuple(known[name])
    try:
        message: Message = kind(**known)
    except TypeError as error:
        raise ValueError(f"a field of a {kind.TYPE} message is missing") from error
    return message


_CHECKS = {
    kind.TYPE: tuple((field.name, check_of(field.name, str(field.type))) for field in fields(kind))
    for kind in _TYPES.values()
}
"""What values of each field must be, by type of message: made once, since ranks say how training goes many times a second."""
