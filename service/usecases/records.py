"""The records that use cases and adapters exchange, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from headway.contract.agents import NodeState, SlotInfo
from headway.contract.jobs import JobState, Reason, SizeOption
from headway.contract.markets import Market
from headway.contract.runtime import Metrics, Progress
from headway.contract.simulations import SimulationRequest, SimulationView
from service.domain.jobs import Allocation, Job
from service.domain.membership import Members


class Bell(StrEnum):
    """Who is woken after a commit. A lost ring only delays: everybody looks by itself now and then."""

    ROUND = "round"
    COMMANDS = "commands"
    EVENTS = "events"
    LOGS = "logs"
    SIMULATIONS = "simulations"
    ACCESS = "access"
    """Somebody may less than before: what is remembered of tokens is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job, for its history."""

    job_id: str
    at: datetime
    kind: str
    message: str
    generation: int
    state: JobState | None = None
    reason: Reason | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """An allocation of a job: how many slots, why, and from when to when. `ended_at` is None for those that go on."""

    generation: int
    size: int
    device_kind: str
    reason: str
    message: str
    granted_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobRef:
    """Which job is meant."""

    id: str
    project: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node as stored."""

    id: str
    name: str
    instance: str
    token_sha256: str
    state: NodeState
    wanted_state: NodeState
    """READY, CORDONED or DRAINING: what an operator asked for last. A node that was LOST returns to it."""
    message: str
    address: str
    first_port: int
    last_port: int
    slots: tuple[SlotInfo, ...]
    agent_version: str
    joined_at: datetime
    seen_at: datetime
    last_sequence: int = 0
    market: Market = Market.ON_DEMAND
    machine_id: str | None = None
    """The rented machine that it is; None for a host that nobody rented."""
    usd_per_slot_h: float | None = None
    """None where the prices by device kind hold."""
    reclaim_at: datetime | None = None
    """When a spot machine is taken away, once that is known."""
    join_token_id: str | None = None
    """The join token with which its agent joined, if it was not the permanent one."""
    container_engine: str | None = None
    """What starts containers there; None: nothing."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What every report says: who sent it, what it runs, and its slots if it said what they are now."""

    node_id: str
    token_sha256: str
    instance: str
    holding: frozenset[tuple[str, int]]
    slots: tuple[SlotInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """The speed that a round expected of a generation, in samples per second: median, P10 and P90."""

    samples_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What a round decided about a job, and why."""

    job_id: str
    action: str
    reason: Reason
    message: str
    options: Sequence[SizeOption]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """An allocation that a generation runs on, with its members and where they meet."""

    job_id: str
    generation: int
    slots: Allocation
    device_kind: str
    first_node: str
    master_port: int
    reason: Reason
    message: str
    round_id: str | None
    granted_at: datetime
    members: Members
    stores: Mapping[str, int] = field(default_factory=dict)
    """Node id to the port of the store that it keeps for the processes that were started for this generation."""
    predicted: Prediction | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps that a rank has taken on an allocation of a job."""

    job_id: str
    allocation: AllocationRecord
    progress: Progress


@dataclass(frozen=True, slots=True)
class Reported:
    """Values that a job's script has reported."""

    job_id: str
    metrics: Metrics
    at: datetime


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """An outbox row that is due to be pushed to its node's stream."""

    id: str
    node_id: str
    body: str


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; None means any. `projects` are those that the reader may see."""

    state: JobState | None = None
    name: str | None = None
    project: str | None = None
    live_only: bool = False
    projects: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """Of so many predictions: quantiles of predicted / measured, as many as were asked for, and the share of measurements
    that lay in their intervals. NaN without any.
    """

    count: int
    ratios: tuple[float, ...]
    coverage: float


@dataclass(frozen=True, slots=True)
class SlotCount:
    """Slots of one device kind on nodes in one state, on one market and at one price, and how many of them jobs hold.
    `usd_per_slot_h` is None where the prices by device kind hold.
    """

    node_state: NodeState
    device_kind: str
    slots: int
    held: int
    market: Market = Market.ON_DEMAND
    usd_per_slot_h: float | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What the one statement of a submit found: the job stored under this request, or an older
    one under the same idempotency key.
    """

    job: Job
    request_digest: str
    created: bool


@dataclass(frozen=True, slots=True)
class AskedSimulation:
    """The simulation stored under a request, or an older one under the same idempotency key."""

    view: SimulationView
    request_digest: str
    created: bool


@dataclass(frozen=True, slots=True)
class TakenSimulation:
    """A simulation that is to run now. `attempt` counts how often it was taken up, from 1; `request` is None where it was
    stored by a version that knew other changes; `seen` are the projects that whoever asked could see, None: all.
    """

    id: str
    request: SimulationRequest | None
    attempt: int
    seen: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """An uploaded bundle and the paths in it."""

    digest: str
    size_bytes: int
    files: tuple[str, ...]
