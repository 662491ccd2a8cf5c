"""Between the service and an agent: joining, commands (Redis), reports (HTTP).

Every command and every report entry names the generation it is about. A command is delivered at least once and handled
idempotently; a report entry carries a sequence number so that a repeated batch is counted once.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from headway.contract.devices import DEVICE_KIND_PATTERN
from headway.contract.health import DeviceFault, DeviceProbed
from headway.contract.spec import NAME_PATTERN
from headway.contract.text import PrintedText

DEVICE_CPU = "cpu"
FOLLOWED_HEADER = "Headway-Followed"
"""Of the answer to a piece of output: somebody waits for the next ones, so they should come soon."""


class NodeState(StrEnum):
    """READY takes jobs; CORDONED keeps its jobs and takes no new ones; DRAINING moves them away;
    DRAINED is empty; LOST has let its lease run out.
    """

    READY = "READY"
    CORDONED = "CORDONED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    LOST = "LOST"


class DeviceHealth(BaseModel):
    """What NVML says of a GPU; all None on a CPU slot. Frozen, so that thousands of slots share one default."""

    model_config = ConfigDict(frozen=True)

    temperature_c: int | None = None
    memory_used_bytes: int | None = None
    ecc_uncorrected: int | None = None


class SlotInfo(BaseModel):
    """One slot of a host. `uuid` is the GPU's, or None for a CPU slot."""

    index: Annotated[int, Field(ge=0, le=4095)]
    device_kind: Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)]
    memory_bytes: int | None = None
    uuid: str | None = None
    health: DeviceHealth = DeviceHealth()


class JoinRequest(BaseModel):
    """A host offers its slots. `instance` identifies the agent's state folder: an agent that was
    restarted keeps it, so the same name with another live instance is refused.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    instance: Annotated[str, Field(min_length=8, max_length=64)]
    address: Annotated[str, Field(min_length=1, max_length=255)]
    """Where the other nodes reach this one."""
    first_port: Annotated[int, Field(ge=1024, le=65535)]
    last_port: Annotated[int, Field(ge=1024, le=65535)]
    """Ports of this host that jobs may use for their rendezvous (inclusive)."""
    slots: Annotated[list[SlotInfo], Field(min_length=1, max_length=4096)]
    agent_version: str
    cpus: int | None = None
    memory_bytes: int | None = None
    container_engine: Literal["docker", "podman"] | None = None
    """What starts the ranks of jobs with an image here; None where no engine answers."""


class JoinReply(BaseModel):
    """What an agent needs to work. `node_token` authorises its later requests."""

    node_id: str
    node_token: str
    redis_url: str
    stream: str
    lease_s: float
    """The agent must stop its ranks when no report got through for this long."""
    report_every_s: float
    renew_credentials_s: float | None = None
    """How often to ask for new credentials; None: the service gives none but when joining."""


class RankSlot(BaseModel):
    """One rank on this node and the slot it gets."""

    rank: int
    local_rank: int
    slot: int


class RunCommand(BaseModel):
    """Start this node's ranks of one generation of a job.

    `live`: the service takes care of losses and of leavers, so one rank's end is no reason to end the others.
    `joins`: the ranks are newcomers that train with processes of older generations; these go on.
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
    """Whether this node keeps a TCPStore of the job, on `store_port`: the node of rank 0, and of a live job each."""
    store_port: int = 0
    live: bool = False
    joins: bool = False
    global_batch: int | None
    start_global_batch: int | None = None
    """What steps take at first, if not `global_batch`: that stays the reference for the learning rate."""
    max_global_batch: int | None = None
    max_local_batch: int | None = None
    lr_rule: str = "none"
    checkpoint_uri: str
    checkpoint_every_s: float | None
    checkpoint_keep: int
    grace_s: float
    hung_after_s: float | None = None
    """Ranks that have taken no step for so long are hung, or for `hung_factor` times the median step if that is longer.
    None: nobody looks.
    """
    hung_factor: float = 0.0
    hung_when_still: bool = False
    """Only ranks whose main threads stay where they are count as hung: one that evaluates takes no step either."""
    cpus_per_slot: float | None = None
    memory_per_slot_bytes: int | None = None
    """What the ranks on this node may take together is so much for each of them; None: what the host has."""
    image: str | None = None
    """The container image that ranks run in; None: they are processes of the host."""
    secrets: list[str] = Field(default_factory=list)
    """Names of environment variables whose values the agent asks for at launch, see `contract.credentials.SecretsRequest`."""
    traceparent: str | None = None
    """The span that this is part of (W3C Trace Context); None: nobody traces the job."""


class Member(BaseModel):
    """One process of a generation: the rank that it has in it, where it runs, and which start it comes from."""

    rank: int
    node_id: str
    slot: int
    born_generation: int
    born_rank: int


class BatchOrder(BaseModel):
    """The batch plan that goes with an order, see `contract.orders.BatchPlan`."""

    global_batch: int


class OrderCommand(BaseModel):
    """The members of `generation` of a live job: written, as `contract.orders.Order`, into the control folder of
    each of the job's runs on this node, unless a newer order is there.
    """

    kind: Literal["order"] = "order"
    command_id: str
    job_id: str
    generation: int
    store_addr: str
    store_port: int
    members: list[Member]
    lost: bool
    batch: BatchOrder | None = None
    traceparent: str | None = None


class StopCommand(BaseModel):
    """Stop this node's ranks of this generation and of older ones, down to `oldest`.

    `checkpoint`: SIGTERM, `grace_s` to save, then SIGKILL. `kill`: SIGKILL at once.
    """

    kind: Literal["stop"] = "stop"
    command_id: str
    job_id: str
    generation: int
    oldest: int = 0
    mode: Literal["checkpoint", "kill"]
    grace_s: float
    dump_stacks: bool = False
    """Have every rank write where its threads are to its log, before it is sent anything else."""
    traceparent: str | None = None


AnyCommand: TypeAlias = RunCommand | OrderCommand | StopCommand
Command: TypeAlias = Annotated[AnyCommand, Field(discriminator="kind")]
COMMANDS: TypeAdapter[AnyCommand] = TypeAdapter(Command)
COMMAND_FIELD = "command"
"""The field of a Redis stream entry that holds the command as JSON."""


class Entry(BaseModel):
    """What every report entry carries. `sequence` grows within an agent instance, restarts included.

    `generation` is the one whose `RunCommand` started the processes that the entry is about; a process that has
    since become a member of newer generations is still named by it, and by the rank that it was started with.
    """

    sequence: int
    job_id: str
    generation: int
    at: datetime


class RanksStarted(Entry):
    """All ranks of this generation on this node have a process."""

    kind: Literal["ranks_started"] = "ranks_started"
    how: Literal["zygote", "spawn"]


class RankExited(Entry):
    """One rank's process ended. Code and signal are kept apart; both None means unknown."""

    kind: Literal["rank_exited"] = "rank_exited"
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    stopped_by_agent: bool = False
    """The agent had sent this rank a signal before it ended."""
    completed: bool = False
    """The library said that the training loop is over."""
    log_tail: list[PrintedText] = Field(default_factory=list)
    """The last lines of its output, when it failed."""


class StartFailed(Entry):
    """The ranks could not be started here: bundle missing, port taken, command not found."""

    kind: Literal["start_failed"] = "start_failed"
    message: PrintedText
    retryable: bool


class Released(Entry):
    """Every process of this generation (and older ones) on this node is gone; its slots are free.

    With `slots`: only what ran on these slots for exactly this generation is gone, and they are free.
    """

    kind: Literal["released"] = "released"
    slots: list[int] | None = None


class RankMessage(Entry):
    """A line that a rank wrote to its control folder, see `contract.runtime`.

    `rank` is the one that the process was started with. The message names the generation and the rank in it that
    the process speaks for.
    """

    kind: Literal["rank_message"] = "rank_message"
    rank: int
    message: dict[str, Any]


class RanksHung(Entry):
    """The ranks of this generation on this node have taken no step for `silent_s`; a step takes `usual_s` as a rule."""

    kind: Literal["ranks_hung"] = "ranks_hung"
    silent_s: float
    usual_s: float
    stacks: list[PrintedText] = Field(default_factory=list)
    """Where the threads of these ranks are, as their interpreters say."""


class InterruptionKind(StrEnum):
    """TERMINATE: the machine is taken away at a known time. REBALANCE: it probably will be, nobody knows when."""

    TERMINATE = "terminate"
    REBALANCE = "rebalance"


class InterruptionNotice(BaseModel):
    """The provider has told the host that it is going to take it away. It is about the node, not about a job."""

    kind: Literal["interruption_notice"] = "interruption_notice"
    sequence: int
    at: datetime
    """When the agent saw it, on its clock."""
    what: InterruptionKind
    action: Annotated[str, Field(max_length=64)]
    """The provider's word for what it does: `terminate`, `stop`, `hibernate`, `rebalance`."""
    reclaim_at: datetime | None = None
    """When the machine is gone. None for REBALANCE."""


RankEntry: TypeAlias = RanksStarted | RankExited | StartFailed | Released | RankMessage | RanksHung
"""What is about the processes of a job."""
NodeEntry: TypeAlias = InterruptionNotice | DeviceFault | DeviceProbed
"""What is about the node."""
AnyEntry: TypeAlias = RankEntry | NodeEntry
ReportEntry: TypeAlias = Annotated[AnyEntry, Field(discriminator="kind")]
ENTRY_KINDS = frozenset(
    get_args(kind.model_fields["kind"].annotation)[0] for kind in (*get_args(RankEntry), *get_args(NodeEntry))
)


class Holding(BaseModel):
    """A generation of a job that has processes on the node."""

    job_id: str
    generation: int


def _is_newer(entry: object) -> bool:
    """Whether it is an entry of a kind that this version does not know."""
    if not isinstance(entry, dict):
        return False
    kind, sequence = entry.get("kind"), entry.get("sequence")
    return isinstance(kind, str) and isinstance(sequence, int) and kind not in ENTRY_KINDS


class ReportRequest(BaseModel):
    """A batch of news, and the renewal of the lease. Sent when there is news, at least every `report_every_s`."""

    instance: str
    acknowledged: list[str] = Field(default_factory=list)
    """Ids of commands that were taken up."""
    entries: Annotated[list[ReportEntry], Field(max_length=10_000)] = Field(default_factory=list)
    holding: list[Holding] = Field(default_factory=list)
    slots: list[SlotInfo] = Field(default_factory=list)
    """Inventory with health, sent now and then; empty means unchanged."""
    unread: list[str] = Field(default_factory=list)
    """Kinds of entries that this version does not know, which an agent of a newer one has sent: they are left out, since
    its other news must not wait for an upgrade of the service. Agents do not send this.
    """

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
    """`stop` lists what the node holds and must not: generations that are over. Kill them.

    `probe` lists slots whose devices are to be tried out, again and again until the agent says what it found.
    `report_every_s` is how often to report from here on, if not as often as agreed on when joining.
    """

    lease_s: float
    stop: list[Holding] = Field(default_factory=list)
    probe: list[int] = Field(default_factory=list)
    report_every_s: float | None = None
