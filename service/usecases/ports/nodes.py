"""Interfaces for nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from headway.contract.agents import NodeState, SlotInfo
from headway.contract.values.markets import Market
from headway.contract.views.nodes import NodeView
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.health import Quarantine
from service.domain.nodes.silence import SilenceRule
from service.domain.nodes.stragglers import StragglerMark


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node row of the database."""

    id: str
    name: str
    instance: str
    token_sha256: str
    state: NodeState
    wanted_state: NodeState
    """The state that an operator asked for last: READY, CORDONED or DRAINING. A LOST node returns to it."""
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
    """The rented machine that the node runs on; None for a host that is not rented."""
    usd_per_slot_h: float | None = None
    """The price of a slot-hour; None where the prices by device kind apply."""
    reclaim_at: datetime | None = None
    """The moment at which the provider takes a spot machine away; None while it is not known."""
    join_token_id: str | None = None
    """The join token with which the agent joined; None for the permanent join token."""
    container_engine: str | None = None
    """The program that starts containers on the node; None if there is none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Topology labels by level."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The part common to all reports: the node, the job ids and generations that it runs, and its slots if it reports them."""

    node_id: str
    token_sha256: str
    instance: str
    holding: frozenset[tuple[str, int]]
    slots: tuple[SlotInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """A node and the indices of its slots. `device_kind` is that of its first slot."""

    id: str
    name: str
    state: NodeState
    message: str
    device_kind: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A grant of a slot.

    `job_id` is empty if the job belongs to a project that the reader may not see. `generation` is the one
    that the slot was granted to; later generations may keep the slot. `released_at` is None while the slot is
    held.
    """

    node_id: str
    slot: int
    job_id: str
    job_name: str
    generation: int
    granted_at: datetime
    released_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobTurn:
    """An event of a job that begins or ends a phase of training. `kind` is one of
    `service.domain.jobs.lifecycle.JobEvent`, or `first_step`.
    """

    job_id: str
    at: datetime
    kind: str
    generation: int
    message: str


@dataclass(frozen=True, slots=True)
class QuarantinePeriod:
    """A period in which a slot was kept from jobs. `released_at` is None while the quarantine lasts."""

    node_id: str
    slot: int
    since: datetime
    released_at: datetime | None
    message: str


class Nodes(Protocol):
    """Nodes, their leases, the detection of silent nodes, and the quarantines of their slots."""

    async def lock(self, node_id: str) -> NodeRecord:
        """Return the node, locked. `node_id` may be a name. Raise NotFound if no such node exists."""

    async def find(self, name: str) -> NodeRecord | None:
        """Return the node of that name, locked, or None."""

    async def save(self, node: NodeRecord) -> None:
        """Insert or update a node row."""

    async def seen(self, node: NodeRecord) -> None:
        """Store only `seen_at` and `last_sequence` of a locked node."""

    async def device_kinds(self) -> set[str]:
        """Return the device kinds of the slots of all nodes."""

    async def many(self, node_ids: Sequence[str]) -> dict[str, NodeRecord]:
        """Return the nodes with these ids, by id."""

    async def renew_leases(self, heartbeats: Sequence[Heartbeat], now: datetime) -> frozenset[str]:
        """Renew the leases of nodes whose heartbeats require no other action. Return their ids. The token must be right, the
        node must hold slots for all that it runs, and it must not be LOST or have a slot in quarantine.
        """

    async def lock_renewable(self, heartbeats: Sequence[Heartbeat]) -> dict[str, int]:
        """Lock the nodes that `renew_leases` would renew. Return, by node id, the sequence number of the last entry processed."""

    async def keep_leases(self, heartbeats: Sequence[tuple[Heartbeat, int]], now: datetime) -> None:
        """Renew the leases of locked nodes, whose entries were processed up to these sequence numbers."""

    async def count(self) -> int:
        """Return the number of nodes that are not LOST."""

    async def silent_since(self, moment: datetime) -> list[str]:
        """Return ids of nodes last seen before `moment` that are not LOST yet, without locking them. Include LOST nodes that
        hold slots: a round that did not see the loss granted these slots meanwhile.
        """

    async def lock_silent(self, node_id: str, moment: datetime) -> NodeRecord | None:
        """Return the node, locked, if `silent_since` still lists it and no other transaction has locked it; else None."""

    async def reset_future_contacts(self, now: datetime, slack_s: float) -> None:
        """Set the last contact of nodes to `now` if it lies more than `slack_s` in the future because a clock was set back.
        Otherwise their silence would go unnoticed until that time.
        """

    async def reachable_since(self, now: datetime, gap_s: float) -> datetime | None:
        """Return the moment since which agents could report without delay: an API process has been up ever since, and none was
        late. Return None if none is up now. A process is up if its last beat is at most `gap_s` from `now`.
        """

    async def beat(self, process_id: str, now: datetime, gap_s: float, *, late: bool = False) -> None:
        """Store that this API process is up. If its last beat is more than `gap_s` from `now`, its uptime starts again. `late`
        says that it delayed or refused reports since its last beat.
        """

    async def quarantines_of(self, slot: SlotKey, since: datetime) -> list[Quarantine]:
        """Return the quarantines of a slot that are open or began after a moment, oldest first."""

    async def open_quarantines(self, node_ids: Sequence[str] | None = None) -> list[Quarantine]:
        """Return the open quarantines by node and slot: those of these nodes, or (None) of all nodes."""

    async def save_quarantine(self, quarantine: Quarantine) -> bool:
        """Store a new quarantine (without an id) or a known one.

        Return False, and store nothing, if the slot is already in another one.
        """

    async def mark_straggler(self, mark: StragglerMark) -> None:
        """Store the mark of a slot in place of any earlier one."""

    async def unmark_stragglers(self, slots: Sequence[SlotKey]) -> None:
        """Delete the marks of these slots."""

    async def stragglers(self, now: datetime) -> list[StragglerMark]:
        """Return the marks that count now."""


class NodeQueries(Protocol):
    """Nodes, and the holders of their slots over time, as the API and the console show them."""

    async def list_nodes(
        self, now: datetime, silence: SilenceRule, *, seen: frozenset[str] | None
    ) -> list[NodeView]:
        """Return every node with the holders of its slots, by name, without the nodes of returned machines.

        Holders are left out for jobs of projects that are not in `seen` (None: all are).
        """

    async def slots(self) -> list[NodeSlots]:
        """Return every node by name, except those whose rented machines were given back."""

    async def releases(self, node_ids: Sequence[str], since: datetime) -> dict[str, int]:
        """Return how many grants ended since a moment, by id of the node; nodes without any are left out."""

    async def held(
        self, node_ids: Sequence[str], since: datetime, *, seen: frozenset[str] | None, limit: int
    ) -> list[HeldSlot]:
        """Return grants that are open or ended since a moment: open ones first, then the latest to end, at most `limit`.

        Args:
            node_ids: the nodes to read.
            since: grants that ended before this moment are left out.
            seen: projects whose jobs are named; None: all of them.
            limit: rows to return at most.
        """

    async def turns(self, job_ids: Sequence[str], since: datetime) -> list[JobTurn]:
        """Return the events of these jobs since a moment that begin or end a phase of training, oldest first."""

    async def quarantined(self, node_ids: Sequence[str], since: datetime) -> list[QuarantinePeriod]:
        """Return the quarantines on these nodes that are open or ended since a moment."""
