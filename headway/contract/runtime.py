"""The interface between an agent and the ranks it starts: environment, exit codes, messages.

Standard library only, because every rank imports it. A rank finds its *control folder* in `HEADWAY_CONTROL`.
It appends one JSON line per message to `rank-<RANK>.jsonl` there, and the agent reads new lines of the file.
A plain file survives a restart of the agent, so no message is lost.

In the other direction the agent writes `order.json`: the latest membership that the service ordered, see `orders`.

To stop a rank, the agent sends SIGTERM. The library agrees on a step boundary with its peers, saves a
checkpoint, sends `Stopped` and exits with `EXIT_STOPPED`. A script without the library handles the signal in
its own way.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, get_args

from headway.contract.values.checks import check_of, is_finite

ENV_JOB_ID = "HEADWAY_JOB_ID"
ENV_JOB_NAME = "HEADWAY_JOB_NAME"
ENV_ATTEMPT = "HEADWAY_ATTEMPT"
ENV_GENERATION = "HEADWAY_GENERATION"
ENV_GLOBAL_BATCH = "HEADWAY_GLOBAL_BATCH"
ENV_MAX_GLOBAL_BATCH = "HEADWAY_MAX_GLOBAL_BATCH"
"""Largest global batch that the service may set; unset if it may not change the batch."""
ENV_START_GLOBAL_BATCH = "HEADWAY_START_GLOBAL_BATCH"
"""Global batch that the job had reached before a restart; unset if equal to `HEADWAY_GLOBAL_BATCH`."""
ENV_MAX_LOCAL_BATCH = "HEADWAY_MAX_LOCAL_BATCH"
ENV_LR_RULE = "HEADWAY_LR_RULE"
ENV_BALANCE = "HEADWAY_BALANCE"
"""Rule for local batches of ranks of unequal speed: `contract.values.balance.BalanceRule` as text; unset for its default."""
ENV_SPEEDS = "HEADWAY_SPEEDS"
"""Expected relative speeds of the ranks at the start, by rank, separated by commas; unset for equal speeds."""
ENV_MIN_DEPTH = "HEADWAY_MIN_DEPTH"
"""Smallest share of the layers that a rank back-propagates through; unset if each goes through all."""
ENV_CHECKPOINT_URI = "HEADWAY_CHECKPOINT_URI"
ENV_CHECKPOINT_EVERY_S = "HEADWAY_CHECKPOINT_EVERY_S"
"""Seconds between periodic checkpoints; if unset, the library chooses the interval from the measured cost."""
ENV_CHECKPOINT_KEEP = "HEADWAY_CHECKPOINT_KEEP"
ENV_LOSSES_PER_H = "HEADWAY_LOSSES_PER_H"
"""Expected losses per hour at the start, after which the job returns to its checkpoint; unset if not known."""
ENV_CONTROL = "HEADWAY_CONTROL"
ENV_OUTPUT_DIR = "HEADWAY_OUTPUT_DIR"
"""Output folder, the same on every node of the job; its contents survive moves and restarts."""
ENV_PROJECT = "HEADWAY_PROJECT"
ENV_TRACKERS = "HEADWAY_TRACKERS"
"""Trackers that receive values of `run.report` besides the service: `TrackerName`s separated by commas."""
ENV_JOINS = "HEADWAY_JOINS"
"""Set for a new member, which joins the running training as of `HEADWAY_GENERATION`."""
ENV_MEMBER = "HEADWAY_MEMBER"
"""`member_id` of the process. Its children inherit the variable, by which the agent finds leftover processes."""

STORAGE_FILE = "storage.json"
"""File in the control folder with checkpoint keys: `contract.credentials.StorageCredentials` as JSON.

The file exists where the service gives out keys. The agent replaces it before the keys expire.
"""

EXIT_DONE = 0
"""Exit code of a rank that finished, or was released by a resize."""
EXIT_STOPPED = 143
"""Exit code of a rank that stopped on request (128 + SIGTERM); with the library, after a checkpoint."""
EXIT_RETRY = 75
"""EX_TEMPFAIL, with which the script asks for a restart."""
EXIT_NEVER_RETRY = 78
"""EX_CONFIG, with which the script says that a restart cannot help."""

KILLED_FOR_MEMORY = "The kernel killed this rank: there was no memory left"
"""Line that an agent adds to a rank's output when the kernel counts an out-of-memory kill for it."""
STACKS_SIGNAL = signal.SIGURG
"""Signal that makes a rank write its stacks to `stacks_file`. A process without a handler ignores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Fields of every message of a rank. `at_s` is Unix time on the rank's host."""

    TYPE: ClassVar[str]

    rank: int
    generation: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Envelope):
    """A call of `headway.init()`: this rank understands a request to stop."""

    TYPE: ClassVar[str] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep(Envelope):
    """The end of the first optimizer step of this process. `samples` as in `Progress`.

    `live`: the rank follows orders from now on, so its job changes members in place. `sharded`: ranks hold parts of the model,
    so their job does not survive losses. `plain`: the agent sends it for a script without the library.
    """

    TYPE: ClassVar[str] = "first_step"

    samples: int
    live: bool = False
    plain: bool = False
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Envelope):
    """A step of a script without the library (`headway.progress`): `step` of `total`, with metrics in `values`.

    The agent turns it into `FirstStep`, `Progress` and `Metrics` and does not pass it on.
    """

    TYPE: ClassVar[str] = "stepped"

    step: int
    total: int | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Envelope):
    """A new member waits in its training loop to join, `ready_s` seconds after `headway.init()`."""

    TYPE: ClassVar[str] = "ready"

    ready_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched(Envelope):
    """Message of a member of a new generation that holds the same state as its peers and continues training.

    `pause_s`: seconds from the end of the last step to the resumption. `lost_steps`: optimizer steps that
    were computed at least in part and are repeated; 0 unless a peer was lost. `sync_bytes`: bytes of state
    received over the network.
    """

    TYPE: ClassVar[str] = "switched"

    samples: int
    world_size: int
    pause_s: float
    lost_steps: int
    sync_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Envelope):
    """A rank that is no member of generation `joined` ends, as ordered; its peers continue at `samples`."""

    TYPE: ClassVar[str] = "left"

    samples: int
    joined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Envelope):
    """Sufficient statistics of the steps since the last `Progress` of this generation (rank 0).

    `samples` counts committed samples since the job began (epochs x dataset length + position).
    `total_samples` is the count at which the job ends, or None if the script does not say. `step_s_sum` and
    `step_s_squares` are the sum and the sum of squares of `steps` step times, in seconds. `sync_s_sum` is the
    part of that sum in which rank 0 waited for its peers. `local_batches` are the samples that each rank
    takes in a step. `rank_sample_s` are seconds per sample of each rank, without waiting (0: not reported);
    empty unless a rank takes much longer than the others.

    `gradient_sqr` and `gradient_var` are smoothed estimates of the squared norm of the true gradient and of
    the trace of the covariance of one sample's gradient; None while noise is not measured. `global_batch` 0:
    the samples of a step are not known, and each step counts as one. `max_global_batch`: largest global
    batch, at most the length of the dataset. `lr_rule`: rule by which the learning rate follows the batch.
    Both are None if the batch is fixed.

    `progress` is the training progress in reference samples, those of steps of the job's own batch. It equals
    `samples` where it is None, as with a fixed batch. The job ends when it reaches `total_progress`, if that is
    not None; `samples` may then exceed `total_samples`. `dataset_samples` is the length of an epoch.
    `train_step` of `train_steps` is the progress of a script that counts steps, in steps of the job's own batch; None for
    others. `draws`: the samples are random draws without epochs.
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
    progress: float | None = None
    total_progress: float | None = None
    dataset_samples: int | None = None
    lr_rule: str | None = None
    train_step: int | None = None
    train_steps: int | None = None
    draws: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChanged(Envelope):
    """A change of the batch to `global_batch` samples, at the script's learning rate times `lr_factor`."""

    TYPE: ClassVar[str] = "batch_changed"

    samples: int
    global_batch: int
    lr_factor: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Envelope):
    """Values from `run.report(...)`. Decisions read the metric of `goal.target`; the policy `optimus` and adaptive
    batches read `loss`.
    """

    TYPE: ClassVar[str] = "metrics"

    epoch: int
    samples: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Envelope):
    """A complete checkpoint, `total_s` after the start of its save, of which `save_s` paused training.

    `every_s` is the present interval between periodic checkpoints; None from older libraries.
    """

    TYPE: ClassVar[str] = "checkpointed"

    uri: str
    samples: int
    size_bytes: int
    save_s: float
    total_s: float
    every_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Envelope):
    """A failure to save a checkpoint at `samples`. Earlier checkpoints are unchanged, and training continues."""

    TYPE: ClassVar[str] = "checkpoint_failed"

    samples: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochClosed(Envelope):
    """The audit of one epoch: `samples_seen` of `dataset_samples`, and whether each came exactly once.

    `exact_so_far` counts the epochs up to this one with each sample exactly once, in the history of the
    current state. It repeats earlier counts because the rank that reported them may be lost. Random draws have one
    audit, as epoch 0 at the end of training, of their numbers in the sequence.
    """

    TYPE: ClassVar[str] = "epoch_closed"

    epoch: int
    samples_seen: int
    dataset_samples: int
    exactly_once: bool
    exact_so_far: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Envelope):
    """The resumption of training from a checkpoint at `samples`, written by `from_generation`.

    `progress` is that of the checkpoint in reference samples; None: `samples`.
    """

    TYPE: ClassVar[str] = "restored"

    samples: int
    from_generation: int
    progress: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Envelope):
    """Message of a rank that stops on request; nothing up to `samples` is lost."""

    TYPE: ClassVar[str] = "stopped"

    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Envelope):
    """The end of the training loop. It overrides the exit code: an interpreter may crash during its shutdown."""

    TYPE: ClassVar[str] = "completed"

    samples: int


Message: TypeAlias = (
    Hello
    | FirstStep
    | Stepped
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

_TYPES: dict[str, type[Any]] = {kind.TYPE: kind for kind in get_args(Message)}


def message_file(rank: int) -> str:
    """Return the name of the file in the control folder that `rank` appends its messages to."""
    return f"rank-{rank}.jsonl"


def stacks_file(rank: int) -> str:
    """Return the name of the stack file, in the control folder, of the process started as `rank`."""
    return f"stacks-{rank}.txt"


def to_line(message: Message) -> str:
    """Return the message as one JSON line, newline included."""
    return json.dumps({"type": message.TYPE, **asdict(message)}, separators=(",", ":")) + "\n"


def from_line(line: str) -> Message:
    """Read the message in `line`. Unknown fields are ignored, so that an older agent reads a newer rank.

    Raises:
        ValueError: the line is not JSON, or `from_fields` refuses it.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply for a message of a rank") from error
    if not isinstance(fields, dict):
        raise ValueError(f"not a message of a rank: {line[:80]!r}")  # noqa: TRY004 - one kind of error
    return from_fields(fields)


def from_fields(fields: dict[str, Any]) -> Message:
    """Return the message with these fields, as parsed from JSON.

    A script may write anything into its control folder, so every value is checked: accepted values can be
    stored and added up. Reported values that are not finite are left out, because JSON has no NaN.

    Raises:
        ValueError: the type is unknown, or a field is missing or has a wrong value.
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
    if kind in (Metrics, Stepped) and "values" in known:
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
    kind.TYPE: tuple((one.name, check_of(one.name, str(one.type))) for one in fields(kind))
    for kind in _TYPES.values()
}
"""Checks of the fields by type of message, built once because ranks report progress many times a second."""
