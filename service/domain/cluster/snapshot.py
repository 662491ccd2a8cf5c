"""Snapshot on which a round decides: nodes, jobs and measurements, read in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.identity import ProjectQuota
from service.domain.cluster.apart import NOTHING_APART, Apart
from service.domain.cluster.contention_rules import USUAL, ContentionRules
from service.domain.cluster.market_limits import MarketLimit
from service.domain.cluster.pools import Pool
from service.domain.jobs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host. `slots` maps slot index to device kind.

    `usd_per_slot_h` is None if the prices by device kind apply. `reclaim_at` is the time at which the
    provider takes a spot machine away, once known. `containers` is True if the node has a container engine,
    which jobs with an image need.

    `hazard_per_h` are the interruptions per hour that the place of a rented spot machine expects in the coming
    hours; None: those of its pool. `together` is the share of them that take all machines of its zone, None if unknown.

    `quarantined` maps slots with a bad device to a description of the fault. These slots are not among
    `slots`: no job gets them, and a job that holds one must leave it. `labels` are topology labels by level, among
    them that of a slow link; `slow_link` says what was measured of it.
    """

    id: str
    name: str
    state: NodeState
    slots: Mapping[int, str]
    market: Market = Market.ON_DEMAND
    usd_per_slot_h: float | None = None
    reclaim_at: datetime | None = None
    hazard_per_h: float | None = None
    together: float | None = None
    containers: bool = True
    quarantined: Mapping[int, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    slow_link: str = ""

    @property
    def takes_jobs(self) -> bool:
        """True if a round may grant slots of the node."""
        return self.state is NodeState.READY and self.reclaim_at is None

    @property
    def keeps_jobs(self) -> bool:
        """True if jobs may keep the slots of the node that they hold."""
        return self.state in {NodeState.READY, NodeState.CORDONED} and self.reclaim_at is None


LEAST_STEPS: Final = 10
"""Minimum number of steps of a measurement that counts, since the first steps are slow."""
CLASS_JOBS: Final = 20
"""Number of jobs of a class, the latest that started, whose measurements predict the next job of the class."""
LATEST_ARRIVALS: Final = 20
"""Number of the latest submits whose intervals predict the next one."""
LATEST_RESTARTS: Final = 64
"""Number of the latest ended jobs whose starts and stops predict those of jobs without a measurement."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured samples per second of a job at a size on a device kind, over `steps` steps of one batch plan.

    `generation` is the latest one with this measurement. `step_s` and `step_s_spread` are the mean and
    standard deviation of a step in seconds. `sync_s` is the part in which rank 0 waited for its peers (None:
    unknown). `local_batch` is the number of samples that a rank takes at once, `accumulation` the number of
    such passes before a step. `gradient_sqr` and `gradient_var` are the last known terms of the gradient
    noise, as ranks report them. `log_noise_sum` has the logarithm of the noise scale in samples, added up over
    `noise_steps`; for a class, over those of succeeded jobs. `reference_batch` is the global batch in the job file, of measurements of a class.
    `min_depth` is that of a job with partial back-propagation. `crossed` is the largest topology level at which the nodes
    differ, empty for none.
    """

    device_kind: str
    slots: int
    samples_per_s: float
    steps: int
    nodes: int = 1
    generation: int = 0
    global_batch: int = 0
    local_batch: int = 0
    accumulation: int = 1
    step_s: float = 0.0
    step_s_spread: float = 0.0
    sync_s: float | None = None
    gradient_sqr: float | None = None
    gradient_var: float | None = None
    noise_steps: int = 0
    log_noise_sum: float = 0.0
    reference_batch: int | None = None
    min_depth: float | None = None
    crossed: str = ""

    @property
    def believable(self) -> bool:
        """True if the measurement is plausible. Scripts may report any number, and an absurd one must not
        spoil a round.
        """
        return 1e-9 <= self.samples_per_s <= 1e15 and self.steps > 0


@dataclass(frozen=True, slots=True)
class LossPoint:
    """Mean loss of a few reports of a job, at its mean number of samples, in steps of `global_batch`."""

    samples: float
    loss: float
    global_batch: int


@dataclass(frozen=True, slots=True)
class LossHistory:
    """Losses that a job reported as the metric `loss`, oldest first.

    `reference_batch` is the global batch in its job file, and `lr_rule` the rule of its learning rate, both None where
    unknown.
    """

    job_id: str
    reference_batch: int | None
    lr_rule: str | None
    points: tuple[LossPoint, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """Service that a job has had so far: seconds on each device kind, and slot-seconds in total."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    slot_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """The policy that the cluster follows, and the parameters that differ from the policy's defaults."""

    name: str = "goodput"
    parameters: Mapping[str, float | list[float]] = field(default_factory=dict)


BUDGET_ROWS = "budget/"
"""Prefix of the names of rows that limit dollars to a budget."""


QUOTA_ROWS = "quota/"
"""Prefix of the names of rows that limit a project to its `max_slots`."""
LENT_ROWS = "lent/"
"""Prefix of the names of rows that limit all other projects to the unclaimed part of a project's guarantee."""
FIRM_ROWS = "firm/"
"""Prefix of the names of rows that keep other projects' jobs of fixed size off slots guaranteed to a project."""


def budget_row(name: str) -> str:
    """Return the name of a budget's row in a round."""
    return f"{BUDGET_ROWS}{name}"


def quota_row(project: str) -> str:
    """Return the name of the row of a project's `max_slots`."""
    return f"{QUOTA_ROWS}{project}"


def lent_row(project: str) -> str:
    """Return the name of the row of the slots that others may borrow from a project."""
    return f"{LENT_ROWS}{project}"


@dataclass(frozen=True, slots=True)
class Cap:
    """A hard limit on dollars per hour of all slots held together: of one project, or (None) of all."""

    name: str
    project: str | None
    usd_per_h: float

    @property
    def row(self) -> str:
        """Name of the cap's row in a round."""
        return budget_row(self.name)


_NO_QUOTA = ProjectQuota()


SHARE_HALF_LIFE_S: Final = 7 * 86_400.0
"""Default time in seconds after which slot use counts half in a project's share."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Quota of a project, and the slot-seconds that its jobs have used. Usage decays by half in each half-life."""

    quota: ProjectQuota = _NO_QUOTA
    used_slot_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """Dollars that a job may still spend until its end, and the action when they are not enough."""

    left_usd: float
    on_budget: Literal["shrink", "pause", "stop"] = "shrink"


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Dollars in the ledger for all paid slots, in the hours from `since` on."""

    since: datetime
    usd: float


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that succeeded since the previous round, with the samples that it had processed."""

    job_class: str
    samples: int


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job that succeeded: its work in samples (`JobProgress.work_done`), and the seconds from its first start to its end.

    `converged_samples` is the work at which its loss curve had converged (`JobProgress.loss_curve`); None if unknown. `run`
    is its command.
    """

    job_class: str
    samples: float
    run_s: float
    converged_samples: float | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredRestart:
    """Seconds of the latest stop, and of the latest start to the first step, of an ended job; None if not measured."""

    stop_s: float | None = None
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlotKey:
    """Key of one slot of one node."""

    node_id: str
    slot: int


def allocation_of(keys: Iterable[SlotKey]) -> dict[str, tuple[int, ...]]:
    """Return slots by node, in ascending order."""
    allocation: dict[str, list[int]] = {}
    for key in keys:
        allocation.setdefault(key.node_id, []).append(key.slot)
    return {node: tuple(sorted(allocation[node])) for node in sorted(allocation)}


def _pools_of(nodes: Iterable[Node], jobs: Iterable[Job]) -> dict[tuple[str, Market, bool], Pool]:
    """Return the pools of nodes by device kind, market and support for containers.

    If only some nodes of a kind can start containers, they form a pool of their own while a job needs
    containers: otherwise such a job's slots could lie on nodes that cannot start it.
    """
    able: dict[tuple[str, Market], set[bool]] = {}
    present: dict[tuple[str, Market], set[bool]] = {}
    for node in nodes:
        for kind in set(node.slots.values()):
            able.setdefault((kind, node.market), set()).add(node.containers)
            if node.state is not NodeState.LOST:
                present.setdefault((kind, node.market), set()).add(node.containers)
    with_image = [job.spec for job in jobs if job.spec.image is not None]
    found: dict[tuple[str, Market, bool], Pool] = {}
    for (kind, market), known in able.items():
        here = present.get((kind, market), known)
        apart = len(here) > 1 and any(Pool(kind, market).serves(spec) for spec in with_image)
        for containers in (False, True):
            together = Pool(kind, market, containers=all(here))
            found[kind, market, containers] = (
                Pool(kind, market, containers=containers, apart=containers) if apart else together
            )
    return found


@dataclass(frozen=True, slots=True)
class Orders:
    """Load of the command and report paths.

    `untaken` is the number of commands that present nodes have not taken up. `late` is True if the service
    has just refused reports, or answered them too late.
    """

    untaken: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Consistent state of the cluster at `now`. `held` maps slots to the jobs that hold them."""

    now: datetime
    nodes: Mapping[str, Node]
    jobs: Mapping[str, Job]
    """All jobs that are not terminal."""
    held: Mapping[SlotKey, str]
    measurements: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """Measurements by job id."""
    class_measurements: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """Measurements of other jobs of the class, including ended ones, by `class_of` the spec."""
    loss_histories: Mapping[str, tuple[LossHistory, ...]] = field(default_factory=dict)
    """Losses of the latest jobs of each class that has a job with an adaptive batch, by `class_of` the spec."""
    ended_samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Samples that ended jobs took, by class, for the classes of jobs with a deadline."""
    ended_runs: tuple[EndedRun, ...] = ()
    """The latest succeeded jobs, of the classes of live jobs of unknown length and of any class, oldest first."""
    arrivals: tuple[datetime, ...] = ()
    """Submit times of the latest jobs, ended ones included, in any order."""
    restarts: tuple[MeasuredRestart, ...] = ()
    """Measured stops and starts of the latest ended jobs (`LATEST_RESTARTS`), in any order."""
    served: Mapping[str, Served] = field(default_factory=dict)
    """Service so far by job id."""
    usd_per_slot_h: Mapping[str, float] = field(default_factory=dict)
    """Dollars per slot-hour by device kind; a kind that is missing costs nothing."""
    hazard_per_h: Mapping[str, float] = field(default_factory=dict)
    """Rate per hour at which machines of a pool are reclaimed, by pool name (`a100 (spot)`); a missing pool
    has none.
    """
    caps: tuple[Cap, ...] = ()
    projects: Mapping[str, Tenant] = field(default_factory=dict)
    """Tenants by project name; a project that is missing has no quota. Empty while no project has a quota: a
    round then treats all jobs alike.
    """
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """Limits by job id; a job that is missing has no limit on its dollars."""
    market_limits: Mapping[str, MarketLimit] = field(default_factory=dict)
    """Limits by job id for jobs whose machines the rule of the spot market chooses."""
    spent: LedgerTotals | None = None
    """Ledger since the hour that the policy asked for when it last stored state (`ledger`); None if it needs
    none.
    """
    ended: tuple[EndedJob, ...] = ()
    """Jobs that succeeded since the previous round, of those whose length was unknown then; only for a policy with
    state.
    """
    stragglers: Mapping[SlotKey, str] = field(default_factory=dict)
    """Descriptions of the slots whose ranks were lately slower than the others of their jobs."""
    orders: Orders = Orders()
    apart: Apart = NOTHING_APART
    contention: ContentionRules = USUAL
    policy: PolicySetting = PolicySetting()
    keeps_batch: bool = False
    """True if the policy keeps every job at the batch of its job file."""
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    """State that the policy stored in earlier rounds, as JSON; empty at first and after a change of policy."""
    holdings: Mapping[str, tuple[SlotKey, ...]] = field(init=False)
    """Inverse of `held`: job id to its slots, in a stable order."""
    free: tuple[SlotKey, ...] = field(init=False)
    """Free slots of nodes that take jobs, in a stable order."""
    pools: Mapping[tuple[str, Market, bool], Pool] = field(init=False)
    """Pools by device kind, market, and whether a node can start containers."""

    def __post_init__(self) -> None:
        holdings: dict[str, list[SlotKey]] = {}
        for key in sorted(self.held, key=lambda key: (key.node_id, key.slot)):
            holdings.setdefault(self.held[key], []).append(key)
        object.__setattr__(self, "holdings", {job: tuple(keys) for job, keys in holdings.items()})
        object.__setattr__(self, "pools", _pools_of(self.nodes.values(), self.jobs.values()))
        # Computed once: a round reads them several times, and thousands of nodes have many slots.
        taking = sorted((node for node in self.nodes.values() if node.takes_jobs), key=lambda node: node.id)
        slots = (SlotKey(node.id, slot) for node in taking for slot in sorted(node.slots))
        object.__setattr__(self, "free", tuple(key for key in slots if key not in self.held))

    def slots_held_by(self, job_id: str) -> tuple[SlotKey, ...]:
        """Return the slots that a job holds, in a stable order."""
        return self.holdings.get(job_id, ())

    def kind_of(self, key: SlotKey) -> str:
        """Return the device kind of a slot; empty for a slot that its node no longer reports."""
        node = self.nodes.get(key.node_id)
        return node.slots.get(key.slot, "") if node is not None else ""

    def pool_of(self, key: SlotKey) -> Pool | None:
        """Return the pool of a slot; None for a slot that its node no longer reports."""
        kind = self.kind_of(key)
        return self.pool_on(self.nodes[key.node_id], kind) if kind else None

    def pool_on(self, node: Node, kind: str) -> Pool:
        """Return the pool of the slots of a kind on a node."""
        return self.pools[kind, node.market, node.containers]

    def usd_per_slot_h_of(self, node: Node, kind: str) -> float:
        """Return the dollars per hour of a slot of a kind on a node; 0 without a price."""
        usd = node.usd_per_slot_h
        return max(0.0, self.usd_per_slot_h.get(kind, 0.0) if usd is None else usd)

    def usd_per_slot_h_of_key(self, key: SlotKey) -> float:
        """Return the dollars per hour of a slot; 0 for one that its node no longer reports."""
        kind = self.kind_of(key)
        return self.usd_per_slot_h_of(self.nodes[key.node_id], kind) if kind else 0.0
