"""The picture that a round decides on: nodes, jobs, measurements, taken in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from headway.contract.agents import NodeState
from headway.contract.identity import ProjectQuota
from headway.contract.markets import Market
from service.domain.jobs import Job
from service.domain.pools import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host. `slots` maps slot index to device kind. `usd_per_slot_h` is None where the prices by device kind hold;
    `reclaim_at` is when a spot machine is taken away, once that is known.

    `containers`: whether it has a container engine, which jobs with an image need.

    `quarantined` slots have a bad device, and the sentence says what is wrong with it. They are not among `slots`, as if
    the node had them no more: nobody gets them, and whoever is there must leave.
    """

    id: str
    name: str
    state: NodeState
    slots: Mapping[int, str]
    market: Market = Market.ON_DEMAND
    usd_per_slot_h: float | None = None
    reclaim_at: datetime | None = None
    containers: bool = True
    quarantined: Mapping[int, str] = field(default_factory=dict)

    @property
    def takes_jobs(self) -> bool:
        """Whether a round may give out its slots."""
        return self.state is NodeState.READY and self.reclaim_at is None

    @property
    def keeps_jobs(self) -> bool:
        """Whether jobs may stay on the slots of it that they hold."""
        return self.state in {NodeState.READY, NodeState.CORDONED} and self.reclaim_at is None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Samples per second of a job at a size on a device kind, over `steps` steps of one batch plan; `generation` is the
    latest that had it.

    `step_s` and `step_s_spread` are mean and standard deviation of a step, `sync_s` the part in which rank 0 waited for
    its peers (None: unknown). `local_batch` is what a rank takes at once, `accumulation` how often before it steps.
    `gradient_sqr` and `gradient_var`: what was known of the gradient noise in the end, as ranks report it.
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

    @property
    def believable(self) -> bool:
        """Whether it can be true. Scripts report what they like, and one absurd number must not spoil a round."""
        return 1e-9 <= self.samples_per_s <= 1e15 and self.steps > 0


@dataclass(frozen=True, slots=True)
class Served:
    """What a job has had so far: seconds on each device kind, and slot-seconds in all."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    slot_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """The policy that the cluster was told to follow, and the parameters that differ from the policy's own."""

    name: str = "goodput"
    parameters: Mapping[str, float | list[float]] = field(default_factory=dict)


BUDGET_ROWS = "budget/"
"""What the names of rows begin with that keep to a budget."""


QUOTA_ROWS = "quota/"
"""The same of rows that keep a project to its `max_slots`."""
LENT_ROWS = "lent/"
"""The same of rows that keep all others to what a project does not claim of its guarantee."""
FIRM_ROWS = "firm/"
"""The same of rows that keep others' jobs that never change from what is guaranteed to a project."""


def budget_row(name: str) -> str:
    """The name of a budget's row in a round."""
    return f"{BUDGET_ROWS}{name}"


def quota_row(project: str) -> str:
    """The name of the row of a project's `max_slots`."""
    return f"{QUOTA_ROWS}{project}"


def lent_row(project: str) -> str:
    """The name of the row of what others may borrow of a project."""
    return f"{LENT_ROWS}{project}"


@dataclass(frozen=True, slots=True)
class Cap:
    """A hard limit on dollars per hour of all slots that are held together: of one project, or (None) of all."""

    name: str
    project: str | None
    usd_per_h: float

    @property
    def row(self) -> str:
        """The name of its row in a round."""
        return budget_row(self.name)


_NO_QUOTA = ProjectQuota()


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a project is promised and where it ends, and what its jobs have used: slot-seconds, of which those that lie back
    by a half-life count half.
    """

    quota: ProjectQuota = _NO_QUOTA
    used_slot_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """What a job may still spend until its end, in dollars, and what it does where that is not enough."""

    left_usd: float
    on_budget: Literal["shrink", "pause", "stop"] = "shrink"


@dataclass(frozen=True, slots=True)
class Spent:
    """Dollars that the ledger has of everything that is paid for, in the hours from `since` on."""

    since: datetime
    usd: float


@dataclass(frozen=True, slots=True)
class SlotKey:
    """One slot of one node."""

    node_id: str
    slot: int


def allocation_of(keys: Iterable[SlotKey]) -> dict[str, tuple[int, ...]]:
    """Slots by node, ascending."""
    allocation: dict[str, list[int]] = {}
    for key in keys:
        allocation.setdefault(key.node_id, []).append(key.slot)
    return {node: tuple(sorted(allocation[node])) for node in sorted(allocation)}


def _pools_of(nodes: Iterable[Node], jobs: Iterable[Job]) -> dict[tuple[str, Market, bool], Pool]:
    """The pools of nodes. Where only some nodes of a kind can start containers, they are a pool of their own as long as a job
    needs that: any other job could not lie in both.
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
    """How nodes and service keep up: commands that nodes which are there have not taken up, and whether reports of theirs
    were just refused, or answered too late.
    """

    untaken: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent picture of the cluster at `now`. `held` says which job holds a slot."""

    now: datetime
    nodes: Mapping[str, Node]
    jobs: Mapping[str, Job]
    """All jobs that are not terminal."""
    held: Mapping[SlotKey, str]
    measurements: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """By job id."""
    class_measurements: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """By `class_of` a spec: what other jobs of the class have measured, ended ones too."""
    served: Mapping[str, Served] = field(default_factory=dict)
    """By job id."""
    usd_per_slot_h: Mapping[str, float] = field(default_factory=dict)
    """By device kind; a kind that is not here costs nothing."""
    hazard_per_h: Mapping[str, float] = field(default_factory=dict)
    """By name of a pool (`a100 (spot)`): how often an hour one of its machines is taken away; not here: never."""
    caps: tuple[Cap, ...] = ()
    projects: Mapping[str, Tenant] = field(default_factory=dict)
    """By name; empty while no project has a quota: then all jobs are alike to a round. One that is not here has none."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """By job id; a job that is not here may spend what it takes."""
    spent: Spent | None = None
    """Since the hour that the policy asked for when it last carried something over (`ledger`); None where it needs none."""
    orders: Orders = Orders()
    policy: PolicySetting = PolicySetting()
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    """What the policy has carried over from earlier rounds, as JSON; empty at first, and when the policy was changed."""
    holdings: Mapping[str, tuple[SlotKey, ...]] = field(init=False)
    """`held` the other way round: job id to its slots, in a stable order."""
    free: tuple[SlotKey, ...] = field(init=False)
    """Slots that nobody holds of nodes that take jobs, in a stable order."""
    pools: Mapping[tuple[str, Market, bool], Pool] = field(init=False)
    """By device kind, market, and whether a node can start containers."""

    def __post_init__(self) -> None:
        holdings: dict[str, list[SlotKey]] = {}
        for key in sorted(self.held, key=lambda key: (key.node_id, key.slot)):
            holdings.setdefault(self.held[key], []).append(key)
        object.__setattr__(self, "holdings", {job: tuple(keys) for job, keys in holdings.items()})
        object.__setattr__(self, "pools", _pools_of(self.nodes.values(), self.jobs.values()))
        # Once: a round looks at them several times, and thousands of nodes have many.
        taking = sorted((node for node in self.nodes.values() if node.takes_jobs), key=lambda node: node.id)
        slots = (SlotKey(node.id, slot) for node in taking for slot in sorted(node.slots))
        object.__setattr__(self, "free", tuple(key for key in slots if key not in self.held))

    def slots_held_by(self, job_id: str) -> tuple[SlotKey, ...]:
        """The slots that a job holds, in a stable order."""
        return self.holdings.get(job_id, ())

    def kind_of(self, key: SlotKey) -> str:
        """Device kind of a slot; empty for a slot that its node no longer reports."""
        node = self.nodes.get(key.node_id)
        return node.slots.get(key.slot, "") if node is not None else ""

    def pool_of(self, key: SlotKey) -> Pool | None:
        """The pool of a slot; None for a slot that its node no longer reports."""
        kind = self.kind_of(key)
        return self.pool_on(self.nodes[key.node_id], kind) if kind else None

    def pool_on(self, node: Node, kind: str) -> Pool:
        """The pool of the slots of a kind on a node."""
        return self.pools[kind, node.market, node.containers]

    def usd_per_slot_h_of(self, node: Node, kind: str) -> float:
        """Dollars per hour of a slot of a kind on a node; 0 where nobody gave a price."""
        usd = node.usd_per_slot_h
        return max(0.0, self.usd_per_slot_h.get(kind, 0.0) if usd is None else usd)

    def usd_per_slot_h_of_key(self, key: SlotKey) -> float:
        """Dollars per hour of a slot; 0 for one that its node no longer reports."""
        kind = self.kind_of(key)
        return self.usd_per_slot_h_of(self.nodes[key.node_id], kind) if kind else 0.0
