"""What the use cases need of the world. Adapters fulfil these; `service/main.py` chooses them.

A `Transaction` is one unit of work: it commits as a whole when its block ends without an error, and
only then are the bells rung that were asked for in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from headway.contract.agents import AnyCommand
from headway.contract.decisions import RoundView
from service.domain.access import Principal
from service.domain.cluster import PolicySetting, Snapshot
from service.domain.failures import RankExit
from service.domain.jobs import Allocation, Job
from service.domain.membership import Born
from service.usecases.audit_ports import Audit
from service.usecases.console_ports import ConsoleQueries
from service.usecases.diagnosis_ports import Diagnostics
from service.usecases.facts import CommandTaken, Fact
from service.usecases.health_ports import Quarantines
from service.usecases.identity_ports import AccessQueries, Bearers, Members, Projects, Tokens, Users
from service.usecases.money_ports import Budgets, Ledger, MoneyQueries
from service.usecases.monitoring_ports import Monitoring
from service.usecases.node_ports import HeldRuns, JoinTokens, NodeCredentials, StorageTickets
from service.usecases.query_ports import DecisionQueries, HistoryQueries, JobQueries, NodeQueries
from service.usecases.records import (
    AllocationRecord,
    Bell,
    BundleRecord,
    DecisionRecord,
    Event,
    Heartbeat,
    Measured,
    NodeRecord,
    PendingCommand,
    Reported,
    Submitted,
)
from service.usecases.rental_ports import Machines
from service.usecases.retention_ports import Owners, Retention, Thinning
from service.usecases.secret_ports import SecretRotation, Secrets
from service.usecases.sign_in_ports import SignIns
from service.usecases.simulation_ports import Simulations


class Jobs(Protocol):
    """Job rows."""

    async def insert(self, job: Job, *, idempotency_key: str | None, request_digest: str) -> Submitted:
        """Store a new job and its first event. Raises NameTaken, and InvalidField for a project that is not there."""
        ...

    async def lock(self, job_id: str) -> Job:
        """The job, locked until the transaction ends. `job_id` may be a name. Raises NotFound."""
        ...

    async def save(self, job: Job) -> None:
        """Store a locked job."""
        ...

    async def save_priority(self, job: Job) -> None:
        """Store the priority of a locked job: all else of its spec stays as it was submitted."""
        ...

    async def save_progress(self, jobs: Sequence[Job]) -> None:
        """Store the progress of locked jobs, and nothing else."""
        ...

    async def lock_many(self, job_ids: Sequence[str], *, wait: bool = True) -> dict[str, Job]:
        """Those of the jobs that exist, locked in one order (no dead-locks); if not to `wait`, without those that somebody
        else has locked.
        """
        ...

    async def switching(self) -> list[Job]:
        """Jobs with a switch under way, locked; without those that somebody else has locked."""
        ...


class Grants(Protocol):
    """Who holds which slot."""

    async def grant(self, job_id: str, generation: int, slots: Allocation, now: datetime) -> bool:
        """Hold free slots for a generation. False, and nothing held, if one is not free."""
        ...

    async def held(self, job_id: str) -> dict[int, Allocation]:
        """What the job holds, by the generation that it is held for."""
        ...

    async def on_node(self, node_id: str) -> set[tuple[str, int]]:
        """(job id, generation) of everything that holds slots on the node."""
        ...

    async def release(
        self,
        job_id: str,
        generation: int,
        node_id: str | None,
        carry_over: Allocation,
        now: datetime,
        *,
        slots: Collection[int] | None = None,
        next_generation: int | None = None,
    ) -> bool:
        """Free what the start of `generation` holds (on one node, or all; all slots, or some); whether there was
        any. Slots in `carry_over` pass to `next_generation` (None: the following one) at once, so that nobody else
        can get them in between.
        """
        ...


class Allocations(Protocol):
    """The history of allocations."""

    async def add(self, allocation: AllocationRecord) -> None:
        """A generation starts."""
        ...

    async def get(self, job_id: str, generation: int) -> AllocationRecord | None:
        """The allocation of one generation."""
        ...

    async def load(self, generations: Collection[tuple[str, int]]) -> None:
        """Read the allocations of these jobs and generations at once, so that `get` asks for none of them."""
        ...

    async def stores(self, job_id: str) -> dict[tuple[str, int], int]:
        """Ports of the stores that nodes keep for the job now, by node id and the generation of the start."""
        ...

    async def node_started(self, job_id: str, generation: int) -> int:
        """One more node has started its ranks. Returns how many have."""
        ...

    async def end(self, job_id: str, generation: int, now: datetime) -> None:
        """The generation trains no longer."""
        ...

    async def ports_in_use(self, node_ids: Sequence[str]) -> dict[str, set[int]]:
        """By node, the ports on which stores of jobs are kept."""
        ...


class Nodes(Protocol):
    """Node rows."""

    async def lock(self, node_id: str) -> NodeRecord:
        """The node, locked. `node_id` may be a name. Raises NotFound."""
        ...

    async def find(self, name: str) -> NodeRecord | None:
        """The node of that name, locked."""
        ...

    async def save(self, node: NodeRecord) -> None:
        """Insert or update."""
        ...

    async def seen(self, node: NodeRecord) -> None:
        """Store when a locked node was seen and what was taken in of its news, and nothing else."""
        ...

    async def device_kinds(self) -> set[str]:
        """Kinds of slots of all nodes."""
        ...

    async def many(self, node_ids: Sequence[str]) -> dict[str, NodeRecord]:
        """Nodes by id."""
        ...


class Leases(Protocol):
    """The leases of nodes, many at a time."""

    async def renew(self, heartbeats: Sequence[Heartbeat], now: datetime) -> frozenset[str]:
        """Renew the leases of those (each of another node) about whom nothing else is to be said or done: the token is
        right, they hold what they run, they were not LOST and no slot of theirs is in quarantine. Returns their ids.
        """
        ...

    async def lock(self, heartbeats: Sequence[Heartbeat]) -> dict[str, int]:
        """The nodes of those that `renew` would renew, locked: by id, what was taken in last of their news."""
        ...

    async def keep(self, heartbeats: Sequence[tuple[Heartbeat, int]], now: datetime) -> None:
        """Renew the leases of locked nodes, whose news were taken in up to these sequence numbers."""
        ...

    async def count(self) -> int:
        """Nodes that are not LOST."""
        ...


class Silence(Protocol):
    """Who has not been heard of."""

    async def silent_since(self, moment: datetime) -> list[str]:
        """Ids of nodes that were last seen before `moment` and are not yet LOST, not locked; and of those that are, but hold
        slots: a round that did not see it yet gave them out meanwhile.
        """
        ...

    async def lock_silent(self, node_id: str, moment: datetime) -> NodeRecord | None:
        """The node, locked, if it is still one of those that `silent_since` tells of, and nobody else has locked it."""
        ...

    async def not_before_its_time(self, now: datetime, slack_s: float) -> None:
        """Nodes that were last seen more than `slack_s` after `now`, by a clock that has been set back since, were seen
        now: else nobody would notice for as long that they are silent.
        """
        ...

    async def heard_since(self, now: datetime, gap_s: float) -> datetime | None:
        """Since when an API has been up without a break, and all that are up have been in time with reports; None when none
        is up now. Up is one that has said so within `gap_s`: if later than `now`, it goes by another clock, and says nothing.
        """
        ...

    async def beat(self, process_id: str, now: datetime, gap_s: float, *, late: bool = False) -> None:
        """This API process is up. A gap longer than `gap_s` since its last beat starts anew, be it forward or back. `late`:
        it has been late with reports, or has refused some, since its last beat.
        """
        ...


class Commands(Protocol):
    """The outbox."""

    async def add(self, commands: Sequence[tuple[str, AnyCommand]], now: datetime) -> None:
        """Commands by the ids of their nodes, to be pushed after commit in this order."""
        ...

    async def acknowledge(
        self, command_ids: Mapping[str, Sequence[str]], now: datetime
    ) -> list[CommandTaken]:
        """Nodes, by id, have taken these up; those that they have not said of before."""
        ...

    async def take_due(self, now: datetime, push_again_s: float, limit: int) -> list[PendingCommand]:
        """Unacknowledged commands that were never pushed, or not for `push_again_s`; marked pushed."""
        ...


class History(Protocol):
    """Append-only records of a job."""

    async def event(self, event: Event) -> None:
        """Something happened."""
        ...

    async def vacated_at(self, job_id: str) -> datetime | None:
        """When the job was asked to leave its slots for others, if it has not trained, failed or waited since."""
        ...

    async def exit(self, job_id: str, generation: int, exit_: RankExit, now: datetime) -> None:
        """A rank ended. The first report of a rank counts."""
        ...

    async def exits(self, job_id: str, oldest: int) -> dict[Born, RankExit]:
        """How processes ended, so far, that were started for generation `oldest` or newer ones."""
        ...

    async def measure(self, measured: Sequence[Measured], now: datetime) -> None:
        """Add steps to the statistics of their generations."""
        ...

    async def report(self, reported: Sequence[Reported]) -> None:
        """Values that scripts reported."""
        ...


class Decisions(Protocol):
    """What rounds decided."""

    async def snapshot(
        self, now: datetime, usd_per_slot_h: Mapping[str, float] = MappingProxyType({})
    ) -> Snapshot:
        """The picture to decide on, with what an hour of a slot costs by device kind."""
        ...

    async def store(self, decisions: Sequence[DecisionRecord], round_id: str, now: datetime) -> None:
        """The last decisions about jobs."""
        ...

    async def record_round(self, round_: RoundView) -> None:
        """A round, in the place of the one before if that changed nothing."""
        ...


class ClusterSettings(Protocol):
    """What operators choose at run time."""

    async def policy(self) -> PolicySetting:
        """The policy to follow."""
        ...

    async def choose_policy(self, setting: PolicySetting, now: datetime) -> None:
        """Follow another policy, or the same with other parameters. What the one before carried over is forgotten."""
        ...

    async def carry_over(self, setting: PolicySetting, state: Mapping[str, Any], now: datetime) -> None:
        """What the policy is to find in the next snapshot; nothing is stored once another setting was chosen."""
        ...


class Bundles(Protocol):
    """Bundle rows; their bytes are in object storage."""

    async def get(self, digest: str, reader: Principal | None = None) -> BundleRecord | None:
        """A bundle that was uploaded, and that the reader may read: who uploaded it, or sees a job that starts from it. It is
        not deleted before the transaction ends.
        """
        ...

    async def uploaded(self, digest: str, uploader: Principal) -> None:
        """Somebody has shown that they have its bytes."""
        ...

    async def add(self, bundle: BundleRecord, now: datetime) -> None:
        """An upload. The same one again is as if it had been made now."""
        ...


class Transaction(Protocol):
    """One unit of work over everything in Postgres."""

    jobs: Jobs
    grants: Grants
    allocations: Allocations
    nodes: Nodes
    node_credentials: NodeCredentials
    join_tokens: JoinTokens
    held_runs: HeldRuns
    storage_tickets: StorageTickets
    machines: Machines
    leases: Leases
    silence: Silence
    commands: Commands
    history: History
    decisions: Decisions
    cluster_settings: ClusterSettings
    bundles: Bundles
    simulations: Simulations
    job_queries: JobQueries
    history_queries: HistoryQueries
    node_queries: NodeQueries
    decision_queries: DecisionQueries
    retention: Retention
    thinning: Thinning
    owners: Owners
    quarantines: Quarantines
    ledger: Ledger
    budgets: Budgets
    money_queries: MoneyQueries
    diagnostics: Diagnostics
    monitoring: Monitoring
    sign_ins: SignIns
    console_queries: ConsoleQueries
    audit: Audit
    secrets: Secrets
    secret_rotation: SecretRotation
    bearers: Bearers
    tokens: Tokens
    users: Users
    members: Members
    projects: Projects
    access_queries: AccessQueries

    def ring(self, bell: Bell, about: str = "") -> None:
        """Ring after commit. `about` names the job that events or logs are about."""
        ...

    def tell(self, fact: Fact) -> None:
        """Tell whoever watches after commit."""
        ...


class Transactions(Protocol):
    """Where transactions come from. Raises Unavailable when the database does not answer."""

    def begin(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that commits when its block ends without an error."""
        ...
