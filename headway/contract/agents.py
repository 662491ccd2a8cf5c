"""Messages between the service and an agent: joining, commands (over Redis) and reports (over HTTP).

Every command and every report entry names the generation that it concerns. Redis may deliver a command more than once, and
the agent handles it idempotently. The service counts a repeated report entry once, by its sequence number.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, Field, TypeAdapter, model_validator

from headway.contract.changes import ChangeReason
from headway.contract.executions import ExecutionInput, Terminal
from headway.contract.health import DeviceFault, DeviceHealth, DeviceProbed
from headway.contract.links import HostFacts, LinksProbed, PeerProbe
from headway.contract.output import OutputHandover, OutputPlan
from headway.contract.run_facts import LossRate
from headway.contract.spec import NAME_PATTERN
from headway.contract.spec_after import MOST_AFTER
from headway.contract.values.devices import DEVICE_KIND_PATTERN
from headway.contract.values.sequences import SequenceNumber
from headway.contract.values.text import PrintedText
from headway.contract.values.topology import TopologyLabels

DEVICE_CPU = "cpu"
FOLLOWED_HEADER = "Headway-Followed"
"""Response header to an output report: a client follows the output, so the agent should send the next part soon."""


class NodeState(StrEnum):
    """States of a node: CORDONED takes no new jobs, DRAINING moves jobs away, LOST has let its lease expire."""

    READY = "READY"
    CORDONED = "CORDONED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    LOST = "LOST"


class SlotInfo(BaseModel):
    """One slot of a host. `uuid` identifies the GPU and is None for a CPU slot."""

    index: Annotated[int, Field(ge=0, le=4095)]
    device_kind: Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)]
    memory_bytes: int | None = None
    uuid: str | None = None
    health: DeviceHealth = DeviceHealth()
    withheld: Annotated[PrintedText, Field(max_length=1000)] = ""
    """Reason why the agent starts no job on this slot; empty when the slot is usable."""


class JoinRequest(BaseModel):
    """The slots that a host offers. `instance` identifies the agent's state folder, which outlives a restart.

    The service refuses a name that another live instance uses.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    instance: Annotated[str, Field(min_length=8, max_length=64)]
    address: Annotated[str, Field(min_length=1, max_length=255)]  # at which other nodes reach this node
    first_port: Annotated[int, Field(ge=1024, le=65535)]
    last_port: Annotated[int, Field(ge=1024, le=65535)]
    """Ports of this host that jobs may use for their rendezvous (inclusive)."""
    slots: Annotated[list[SlotInfo], Field(min_length=1, max_length=4096)]
    agent_version: str
    cpus: int | None = None
    memory_bytes: int | None = None
    container_engine: Literal["docker", "podman"] | None = None
    """Container engine that runs jobs with an image on this host; None if no engine answers."""
    labels: TopologyLabels = Field(default_factory=dict)  # see `contract.values.topology`
    host: HostFacts | None = None


class JoinReply(BaseModel):
    """Settings and credentials of a node that has joined. `node_token` authorises its later requests."""

    node_id: str
    node_token: str
    redis_url: str
    stream: str
    lease_s: float
    """Seconds without a delivered report after which the agent must stop its ranks."""
    report_every_s: float
    renew_credentials_s: float  # between requests for new credentials


class RankSlot(BaseModel):
    """One rank on this node and the slot assigned to it."""

    rank: int
    local_rank: int
    slot: int


class RunCommand(BaseModel):
    """Command to start this node's ranks of one generation of a job.

    `live`: the service handles lost and leaving ranks, so the end of one rank does not end the others. `joins`: the ranks are
    new members of a running job; processes of older generations continue.
    """

    kind: Literal["run"] = "run"
    command_id: str
    job_id: str
    job_name: str
    generation: int
    attempt: int
    restart_count: int
    run: str
    bundle: str | None
    env: dict[str, str]
    ranks: list[RankSlot]
    world_size: int
    node_rank: int
    node_count: int
    master_addr: str
    master_port: int
    hosts_store: bool
    """True if this node hosts a TCPStore of the job on `store_port`: the node of rank 0, and every node of a live job."""
    store_port: int = 0
    live: bool = False
    joins: bool = False
    losses: LossRate | None = None
    global_batch: int | None
    start_global_batch: int | None = None
    """Global batch of the first steps, if not `global_batch`, which remains the reference for the learning rate."""
    batch_effect: float = 1.0  # see `contract.orders.BatchPlan`
    max_global_batch: int | None = None
    max_local_batch: int | None = None
    lr_rule: str = "none"
    balance: str | None = None  # see `contract.values.balance`
    speeds: list[float] = Field(default_factory=list)  # expected and relative, by rank; empty for equal ones
    checkpoint_uri: str
    checkpoint_name: str | None = None
    """Last checkpoint that the ranks reported, which they find even if the lists of the store lack it."""
    checkpoint_every_s: float | None
    checkpoint_keep: int
    grace_s: float
    launch: Literal["plain", "torchrun"] = "torchrun"  # the environment of each rank
    progress_regex: str | None = None  # see `contract.spec.ProgressRule`, as for the next two
    progress_batch: Literal["global", "per-rank"] = "global"
    progress_total: Annotated[int, Field(ge=1)] | None = None
    hung_after_s: float | None = None
    """Seconds without a step after which ranks are hung, or `hung_factor` median steps if longer; None: no detection."""
    hung_factor: float = 0.0
    hung_when_still: bool = False
    """Treat only ranks whose main threads do not move as hung: a rank that evaluates takes no step either."""
    cpus_per_slot: float | None = None
    memory_per_slot_bytes: int | None = None
    """Memory limit per rank of this node; the ranks share the total. None: no limit below that of the host."""
    image: str | None = None  # container image that the ranks run in; None: they are processes of the host
    requirements: str | None = None  # see `contract.spec_parts.PythonEnvironment`, as for the next one
    lock: str | None = None
    output: OutputPlan = OutputPlan()
    after: Annotated[list[str], Field(max_length=MOST_AFTER)] = Field(default_factory=list)
    """Names or ids of the jobs whose copied files the ranks find in folders (`contract.spec_after`)."""
    secrets: list[str] = Field(default_factory=list)
    """Names of environment variables whose values the agent requests at launch (`contract.credentials.SecretsRequest`)."""
    traceparent: str | None = None  # parent span of this command (W3C Trace Context), if the job is traced


class Member(BaseModel):
    """One process of a generation: its rank, its slot, and the generation and rank that it was started with.

    `device_kind` is empty where all members have the same kind. Only the ratios of the expected `speed`s matter.
    """

    rank: int
    node_id: str
    slot: int
    born_generation: int
    born_rank: int
    device_kind: str = ""
    speed: float = 1.0
    pid: int | None = None  # on its node; None until the agent reports it


class BatchOrder(BaseModel):
    """The batch plan of an order, see `contract.orders.BatchPlan`."""

    global_batch: int
    effect: float = 1.0


class OrderCommand(BaseModel):
    """Command that announces the members of `generation` of a live job.

    The agent writes it as `contract.orders.Order` for the job's runs on this node. A repeat changes only the losses.
    """

    kind: Literal["order"] = "order"
    command_id: str
    job_id: str
    generation: int
    store_addr: str
    store_port: int
    members: list[Member]
    lost: bool
    mesh: str | None = None  # see `contract.values.meshes`
    batch: BatchOrder | None = None
    losses: LossRate | None = None
    output: OutputHandover | None = None
    why: ChangeReason | None = None
    traceparent: str | None = None


class StopCommand(BaseModel):
    """Command to stop this node's ranks of this generation and of older ones, down to `oldest`.

    `checkpoint`: SIGTERM, then `grace_s` seconds to save, then SIGKILL. `kill`: SIGKILL at once.
    """

    kind: Literal["stop"] = "stop"
    command_id: str
    job_id: str
    generation: int
    oldest: int = 0
    mode: Literal["checkpoint", "kill"]
    grace_s: float
    dump_stacks: bool = False  # before other signals, the ranks write their stacks to their logs
    why: ChangeReason | None = None
    traceparent: str | None = None


class ExecCommand(BaseModel):
    """Command to run `argv` beside the process that was started as `rank` of `generation` (`contract.executions`).

    The agent claims the execution before it starts the command, so that a repeated message starts it once.
    """

    kind: Literal["exec"] = "exec"
    command_id: str
    job_id: str
    generation: int
    rank: int
    execution: str
    argv: list[str]
    timeout_s: float
    stdin: bool = False
    """True if the input of the command follows in `ExecInput`."""
    terminal: Terminal | None = None
    traceparent: str | None = None


class ExecInput(BaseModel):
    """Chunk of the input of a command beside a rank. It is not acknowledged by its id, but by reports about the command."""

    kind: Literal["exec_input"] = "exec_input"
    command_id: str
    job_id: str
    generation: int
    execution: str
    chunk: ExecutionInput


AnyCommand: TypeAlias = RunCommand | OrderCommand | StopCommand | ExecCommand | ExecInput
Command: TypeAlias = Annotated[AnyCommand, Field(discriminator="kind")]
COMMANDS: TypeAdapter[AnyCommand] = TypeAdapter(Command)
COMMAND_FIELD = "command"
"""Field of a Redis stream entry that holds the command as JSON."""


class Entry(BaseModel):
    """Fields of every report entry. `sequence` grows within an agent instance, restarts included.

    `generation` is the generation whose `RunCommand` started the processes. A process that has since joined newer generations
    keeps this generation, and its first rank, as its identity.
    """

    sequence: SequenceNumber
    job_id: str
    generation: int
    at: datetime


class RanksStarted(Entry):
    """All ranks of this generation on this node have a process."""

    kind: Literal["ranks_started"] = "ranks_started"
    how: Literal["zygote", "spawn"]
    pids: dict[int, int] = Field(default_factory=dict)  # process ids on the node, by rank


class RankExited(Entry):
    """The end of one rank's process. Exit code and signal are separate; both None means unknown."""

    kind: Literal["rank_exited"] = "rank_exited"
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    stopped_by_agent: bool = False  # the agent had sent this rank a signal before it ended
    completed: bool = False  # the library reported the end of the training loop
    log_tail: list[PrintedText] = Field(default_factory=list)
    """Last lines of the rank's output, if it failed or ended without reporting a step."""


class StartFailed(Entry):
    """A failed start of the ranks on this node: missing bundle, port in use, command not found."""

    kind: Literal["start_failed"] = "start_failed"
    message: PrintedText
    retryable: bool


class Released(Entry):
    """The end of every process of this generation (and older ones) on this node; its slots are free.

    With `slots`: only the processes on these slots for exactly this generation are gone, and these slots are free.
    """

    kind: Literal["released"] = "released"
    slots: list[int] | None = None


class RankMessage(Entry):
    """A line that a rank wrote to its control folder, see `contract.runtime`.

    `rank` is the rank that the process was started with. The message itself names the generation and the rank in that
    generation that the process reports for.
    """

    kind: Literal["rank_message"] = "rank_message"
    rank: int
    message: dict[str, Any]


class RanksHung(Entry):
    """A hang: no step by this node's ranks of this generation for `silent_s`; `usual_s` is the median step."""

    kind: Literal["ranks_hung"] = "ranks_hung"
    silent_s: float
    usual_s: float
    stacks: list[PrintedText] = Field(default_factory=list)
    """Stacks of the threads of these ranks, as their interpreters print them."""


class OutputReport(Entry):
    """An event of the job's output folder on this node. Counts are of the whole folder, `paths` the first affected files.

    `saved`, `fetched`, `failed`: one transfer. `lost`: the last save was lost. `conflict`: two nodes wrote the same files.
    `elsewhere`: ranks wrote outside of the folder. `stale`: rank 0 goes on here without its previous node's last files.
    """

    kind: Literal["output"] = "output"
    what: Literal["saved", "fetched", "failed", "lost", "conflict", "elsewhere", "stale"]
    message: PrintedText = ""
    paths: Annotated[list[PrintedText], Field(max_length=100)] = Field(default_factory=list)
    files: Annotated[int, Field(ge=0)] = 0
    size_bytes: Annotated[int, Field(ge=0)] = 0
    moved_bytes: Annotated[int, Field(ge=0)] = 0  # transferred to or from storage
    last: bool = False  # True if the ranks had ended


class InterruptionKind(StrEnum):
    """TERMINATE: the provider takes the machine away at a known time. REBALANCE: it probably will, at an unknown time."""

    TERMINATE = "terminate"
    REBALANCE = "rebalance"


class InterruptionNotice(BaseModel):
    """A provider's announcement that it reclaims the machine. It concerns the node, not a job."""

    kind: Literal["interruption_notice"] = "interruption_notice"
    sequence: SequenceNumber
    at: datetime  # when the agent saw the notice, by its own clock
    what: InterruptionKind
    action: Annotated[str, Field(max_length=64)]
    """The provider's name for the action: `terminate`, `stop`, `hibernate` or `rebalance`."""
    reclaim_at: datetime | None = None  # when the provider takes the machine away; None for REBALANCE


RankEntry: TypeAlias = (
    RanksStarted | RankExited | StartFailed | Released | RankMessage | RanksHung | OutputReport
)
"""Report entries that concern processes of a job."""
NodeEntry: TypeAlias = InterruptionNotice | DeviceFault | DeviceProbed | LinksProbed
"""Report entries that concern the node."""
AnyEntry: TypeAlias = RankEntry | NodeEntry
ReportEntry: TypeAlias = Annotated[AnyEntry, Field(discriminator="kind")]
ENTRY_KINDS = frozenset(
    get_args(kind.model_fields["kind"].annotation)[0] for kind in (*get_args(RankEntry), *get_args(NodeEntry))
)


class Holding(BaseModel):
    """A generation of a job with processes on the node."""

    job_id: str
    generation: int


def _is_newer(entry: object) -> bool:
    """Return True for an entry of a kind that this version does not know."""
    if not isinstance(entry, dict):
        return False
    kind, sequence = entry.get("kind"), entry.get("sequence")
    return isinstance(kind, str) and isinstance(sequence, int) and kind not in ENTRY_KINDS


class ReportRequest(BaseModel):
    """A batch of report entries, which also renews the lease; sent at least every `report_every_s` seconds."""

    instance: str
    acknowledged: list[str] = Field(default_factory=list)  # ids of commands that the agent has accepted
    entries: Annotated[list[ReportEntry], Field(max_length=10_000)] = Field(default_factory=list)
    holding: list[Holding] = Field(default_factory=list)
    slots: list[SlotInfo] = Field(default_factory=list)
    """Inventory with health, sent from time to time; empty means unchanged."""
    unread: list[str] = Field(default_factory=list)
    """Kinds of entries of a newer agent that the service left out, so that the rest is stored; agents do not send this."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown_kinds(cls, value: Any) -> Any:
        entries = value.get("entries") if isinstance(value, dict) else None
        if not isinstance(entries, list):
            return value
        newer = [one for one in entries if _is_newer(one)]
        if not newer:
            return value
        known = [one for one in entries if not _is_newer(one)]
        return {**value, "entries": known, "unread": sorted({str(one["kind"])[:64] for one in newer})}


class ReportReply(BaseModel):
    """The service's answer to a report.

    `stop` lists generations that have ended and that the node must kill. `probe` lists slots whose devices the agent is to
    test until it reports a result, `reach` the hosts that it is to probe. `report_every_s` replaces the interval of joining.
    """

    lease_s: float
    stop: list[Holding] = Field(default_factory=list)
    probe: list[int] = Field(default_factory=list)
    reach: list[PeerProbe] = Field(default_factory=list)
    report_every_s: float | None = None
