"""Interface for the connections between hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.links import HostFacts
from headway.contract.views.hosts import HostView, LinkView
from service.domain.nodes.links import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A node that is not LOST and whose agent makes probes. It answers them if it has a port."""

    id: str
    address: str
    probe_port: int | None
    probe_key: str
    kinds: str = ""
    """Device kinds of its slots; hosts of the same kinds are compared."""
    slow_link: str = ""
    """Text on its slow link; empty if it has none."""
    suspected_at: datetime | None = None
    """Last time at which a job had cause to have its link measured."""
    doubted_at: datetime | None = None
    """Time at which its link was first measured as slow; None if it is not, or if it is marked."""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """Knowledge of one direction of a connection. Measurements are None where this probe made none."""

    source_id: str
    target_id: str
    address: str
    port: int
    failure: str
    since: datetime
    probed_at: datetime
    job_at: datetime | None = None
    transferred_at: datetime | None = None
    connect_s: float | None = None
    bytes_per_s: float | None = None


class HostLinks(Protocol):
    """Facts about hosts, and the connections between them."""

    async def executes(self, node_id: str, *, with_input: bool = False) -> bool:
        """Return True if the node's agent knows commands beside ranks, and their input if that is wanted."""

    async def save_facts(
        self, node_id: str, facts: HostFacts | None, source_address: str, now: datetime
    ) -> None:
        """Store the facts of a node that joins, and forget its connections that worked: they are probed anew."""

    async def slow(self) -> dict[str, str]:
        """Return what was measured of the slow links of nodes that are not LOST, by node id."""

    async def save_slow(self, targets: Sequence[ProbeTarget]) -> None:
        """Store the sentence about the slow link of each node, and the time of its doubt."""

    async def relabel(self, node_ids: Collection[str]) -> None:
        """Store the level that running allocations with one of these nodes cross now, for their next measurements."""

    async def suspect(self, node_ids: Sequence[str], now: datetime) -> None:
        """Have the links of these nodes measured anew, of each at most once a minute."""

    async def save_clock(self, node_id: str, clock_ahead_s: float) -> None:
        """Store the lead of a node's clock over the service's."""

    async def targets(self) -> list[ProbeTarget]:
        """Return the nodes that take part in probes."""

    async def all(self) -> list[Link]:
        """Return every known connection between nodes that are not LOST."""

    async def of_source(self, node_id: str) -> list[Link]:
        """Return the connections from a node."""

    async def concerning_failures(self) -> list[Link]:
        """Return the connections from and to each node of a failing one; nothing, by one short query, if none fails."""

    async def save(self, links: Sequence[LinkRecord]) -> None:
        """Store connections. Targets that are no nodes are left out; measurements that are None keep their last value."""

    async def forget_before(self, moment: datetime) -> None:
        """Delete connections that nobody has probed since."""

    async def hosts(self) -> list[HostView]:
        """Return the hosts of all nodes that are not LOST, by name."""

    async def views(self) -> list[LinkView]:
        """Return every known connection between nodes that are not LOST, as the API shows it."""
