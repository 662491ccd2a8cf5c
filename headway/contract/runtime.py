"""The interface between an agent and the ranks it starts: environment, exit codes, messages.

Standard library only, because every rank imports it. A rank finds its *control folder* in `HEADWAY_CONTROL`. It appends
one JSON line per message to `rank-<RANK>.jsonl` there, which survives a restart of the agent. In the other direction the agent
writes `order.json`, the latest membership that the service ordered, and `stop.json` before it stops the rank, see `orders` and `changes`.

To stop a rank, the agent sends SIGTERM. The library then saves a checkpoint, sends `Stopped` and exits with `EXIT_STOPPED`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

ENV_JOB_ID = "HEADWAY_JOB_ID"
ENV_JOB_NAME = "HEADWAY_JOB_NAME"
ENV_ATTEMPT = "HEADWAY_ATTEMPT"
ENV_GENERATION = "HEADWAY_GENERATION"
ENV_GLOBAL_BATCH = "HEADWAY_GLOBAL_BATCH"
ENV_MAX_GLOBAL_BATCH = "HEADWAY_MAX_GLOBAL_BATCH"
"""Largest global batch that the service may set; unset if it may not change the batch."""
ENV_START_GLOBAL_BATCH = "HEADWAY_START_GLOBAL_BATCH"
"""Global batch that the job had reached before a restart; unset if equal to `HEADWAY_GLOBAL_BATCH`."""
ENV_BATCH_EFFECT = "HEADWAY_BATCH_EFFECT"  # see `contract.orders.BatchPlan`; unset for 1
ENV_MAX_LOCAL_BATCH = "HEADWAY_MAX_LOCAL_BATCH"
ENV_LR_RULE = "HEADWAY_LR_RULE"
ENV_BALANCE = "HEADWAY_BALANCE"  # `contract.values.balance.BalanceRule` as text; unset for its default
ENV_SPEEDS = "HEADWAY_SPEEDS"
"""Expected relative speeds of the ranks at the start, by rank, separated by commas; unset for equal speeds."""
ENV_MESH = "HEADWAY_MESH"  # of a sharded model, see `contract.values.meshes`; unset: all ranks are `fsdp`
ENV_MIN_DEPTH = "HEADWAY_MIN_DEPTH"  # least share of the layers that a rank computes gradients of; unset: all
ENV_AUDIT = "HEADWAY_AUDIT"  # `none`: ranks do not compare their replicas
ENV_HOST_SIGNALS = (
    "HEADWAY_HOST_SIGNALS"  # `1`: the host's batch system sends SIGTERM to ranks too, beside the agent
)
ENV_AUDIT_NEAR = (
    "HEADWAY_AUDIT_NEAR"  # `1`: they do, up to rounding; older libraries read only `HEADWAY_AUDIT`
)
ENV_REDUNDANCY = "HEADWAY_REDUNDANCY"  # `elastic.redundancy`; unset for `none`
ENV_EXIT_WITHIN_S = "HEADWAY_EXIT_WITHIN_S"
"""Seconds after the end of the script within which its threads and exit functions must end."""
ENV_CHECKPOINT_URI = "HEADWAY_CHECKPOINT_URI"
ENV_CHECKPOINT_NAME = "HEADWAY_CHECKPOINT_NAME"
"""Name of the last checkpoint that ranks of the job reported; unset without one."""
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
ENV_REACH = "HEADWAY_REACH"
"""Stores (`host:port`) of the present members' nodes, separated by commas, which a new member must reach to start."""
ENV_MEMBER = "HEADWAY_MEMBER"
"""`member_id` of the process. Its children inherit the variable, by which the agent finds leftover processes."""
ENV_BESIDE = "HEADWAY_BESIDE"
"""Control folder of the ranks, in a command that a user runs beside one (`headway exec`); such a process is no rank."""
ENV_COMMAND = "HEADWAY_COMMAND"
"""Id of the command that a user runs beside a rank. Its children inherit the variable, by which they are found."""
MEMBERSHIP_VARIABLES = frozenset(
    {
        ENV_CONTROL, ENV_MEMBER, ENV_GENERATION, ENV_JOINS, ENV_REACH, ENV_CHECKPOINT_URI, ENV_CHECKPOINT_NAME,
        ENV_TRACKERS, "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
    }
)  # fmt: skip
"""Variables through which a process acts as its rank: joins the others, reports for it, and saves its checkpoints."""

STORAGE_FILE = "storage.json"
"""File in the control folder with `contract.credentials.StorageCredentials`, which the agent replaces before they expire."""

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
CANNOT_REACH = "cannot reach"  # in the error of a rank without a connection: HOST cannot reach HOST:PORT
REPLICAS_DIFFER = "REPLICAS_DIFFER: "
"""Beginning of the line by which each rank says what differs between ranks that must be equal; it leaves with `EXIT_RETRY`."""
GRADIENTS_LOST = "GRADIENTS_LOST"
"""Code of a warning about samples that count as trained, and whose gradients were lost."""
BATCH_LEFT_OUT = "BATCH_LEFT_OUT"
"""Code of a warning about a batch that counts as trained and took no step, because the script called no `backward()` for a part."""
COUNTER_BEGAN_ANEW = "COUNTER_BEGAN_ANEW"
"""Code of a warning about a script that accumulates by its own counter, which a restart has set to its beginning."""
STATE_NOT_PREPARED = "STATE_NOT_PREPARED"
"""Code of a warning about a module that changes in training, and was not given to `prepare`."""
STORAGE_AWAY = "object storage does not answer"
"""Part of every message, of the service, an agent or a rank, that says that storage refused connections, timed out, or
answered 5xx or 429. A start that fails with it is not counted; an answer 403 or 404 has another message."""
PEER_LOST = "a peer was lost"
"""Beginning of the line by which a rank says that it leaves with `EXIT_RETRY` because another one has ended."""
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

    `live`: from now on the rank follows orders, so its job changes members in place and survives lost ranks. `sharded`: each
    rank holds a part of the model; parts have copies with `elastic.redundancy`, or on a mesh with replicas if the script
    `replicates` the model (HSDP). `plain`: the message is the agent's, for a script without the library.
    """

    TYPE: ClassVar[str] = "first_step"

    samples: int
    live: bool = False
    plain: bool = False
    sharded: bool = False
    replicates: bool = False


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
class CannotMeet(Envelope):
    """A member of generation `meeting` that could not connect to the others in time: `why` names them if it can.

    Ranks of the running generation wait for an order of members that they can go on with.
    """

    TYPE: ClassVar[str] = "cannot_meet"

    meeting: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched(Envelope):
    """Message of a member of a new generation that holds the same state as its peers and continues training.

    `pause_s`: seconds from the last step to the resumption. `lost_steps`: repeated steps; 0 unless a peer was lost.
    `sync_bytes`: bytes of state received over the network.
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

    `samples` counts committed samples since the job began; it ends at `total_samples`, None if the script does not say.
    `step_s_sum` and `step_s_squares` are the sum and the sum of squares of `steps` step times, in seconds. `sync_s_sum` is the
    part in which rank 0 waited for its peers. `local_batches` are the samples of each rank in a step. `rank_sample_s` are its
    seconds per sample without waiting (0: unknown); empty unless one takes much longer than the others. `straggler_times` are
    ratios to the median of ranks that stay slower (0: others); empty while that does not change. `sync_times` says, in one
    message, how many times as long rank 0 waits for its peers as before (0: not longer).

    `gradient_sqr` and `gradient_var` are smoothed estimates of the squared norm of the true gradient and of the trace
    of the covariance of one sample's gradient; None while noise is not measured. `global_batch` 0: the samples of a
    step are not known, and each step counts as one. `max_global_batch`: largest global batch, at most the length of
    the dataset. `lr_rule`: rule by which the learning rate follows the batch. Both are None if the batch is fixed.
    `progress` is the training progress in reference samples, those of steps of the job's own batch; None: `samples`. The job
    ends when it reaches `total_progress`, if that is not None. `dataset_samples` is the length of an epoch. `train_step` of
    `train_steps` is the progress of a script that counts steps, in steps of the job's own batch; None for others.
    `draws`: the samples are random draws without epochs. `shards` counts those of a stream that were read to their end (None:
    other data). `repeated_samples` of `repeated_shards` of them were trained twice after the loss of a rank. `memory` of a sharded
    model on an accelerator: most bytes of rank 0 in a step, its part of the state, bytes of the device, groups of the model.
    `unit` names what `samples` counts, if that is not samples: `steps`, or `batches` of a rank.
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
    straggler_times: tuple[float, ...] = ()
    sync_times: float = 0.0
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
    shards: int | None = None
    repeated_samples: int = 0
    repeated_shards: int = 0
    memory: tuple[int, ...] = ()
    unit: str | None = None


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
    current state. It repeats earlier counts because the rank that reported them may be lost. Random draws and streams
    have one audit, as epoch 0 at the end of training: of the numbers of the draws, or of each shard's samples.
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
class StandsStill(Envelope):
    """A rank that waits for its peers has taken no step for `silent_s`; a step usually takes `usual_s`.

    `unanswered` are addresses of hosts that acknowledge none of its data. With `over`, the next step came after `silent_s`.
    Rank 0 sends it for every standstill, the other ranks where they know such hosts.
    """

    TYPE: ClassVar[str] = "stands_still"

    silent_s: float
    usual_s: float
    unanswered: tuple[str, ...] = ()
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Envelope):
    """A fact by which the result may differ from that of an undisturbed run: `text` says what happened, and what to do.

    Several ranks may send it with the same `text`; the service records it once. `code` is `GRADIENTS_LOST`,
    `BATCH_LEFT_OUT`, `COUNTER_BEGAN_ANEW` or `STATE_NOT_PREPARED`.
    """

    TYPE: ClassVar[str] = "warned"

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Envelope):
    """Message of a rank that stops on request; nothing up to `samples` is lost."""

    TYPE: ClassVar[str] = "stopped"

    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Envelope):
    """The end of the training loop, which overrides the exit code. It may be within `epoch`, after `epoch_samples` of it."""

    TYPE: ClassVar[str] = "completed"

    samples: int
    epoch: int | None = None
    epoch_samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingers(Envelope):
    """The script ended `ended_s` ago with `exit_code`, and its process waits for `waits_for`, such as `thread uploader`.

    The launcher's code in the process writes it, with the rank and generation that the process was started with. `within_s` after
    the end of the script it ends the process; `over` says that it does so now.
    """

    TYPE: ClassVar[str] = "lingers"

    ended_s: float
    within_s: float
    exit_code: int
    waits_for: tuple[str, ...] = ()
    over: bool = False


Message: TypeAlias = (
    Hello
    | FirstStep
    | Stepped
    | Ready
    | CannotMeet
    | Switched
    | Left
    | Progress
    | BatchChanged
    | Metrics
    | Checkpointed
    | CheckpointFailed
    | EpochClosed
    | Restored
    | StandsStill
    | Warned
    | Stopped
    | Completed
    | Lingers
)


def message_file(rank: int) -> str:
    """Return the name of the file in the control folder that `rank` appends its messages to."""
    return f"rank-{rank}.jsonl"


def stacks_file(rank: int) -> str:
    """Return the name of the stack file, in the control folder, of the process started as `rank`."""
    return f"stacks-{rank}.txt"
