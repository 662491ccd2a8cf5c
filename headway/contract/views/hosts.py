"""Hosts and the connections between them, as the API shows them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from headway.contract.agents import NodeState
from headway.contract.isolation import IsolationFacts
from headway.contract.views.diagnosis import Check


class HostView(BaseModel):
    """A host as its agent described it when it joined. None means unknown, and for limits that there is none."""

    node_id: str
    name: str
    state: NodeState
    address: str
    source_address: str = ""
    """Address from which its agent joined, as the service saw it; another one than `address` behind NAT."""
    agent_version: str
    probe_port: int | None = None
    interface: str = ""
    mtu: int | None = None
    clock_ahead_s: float | None = None
    shm_bytes: int | None = None
    open_files: int | None = None
    locked_memory_bytes: int | None = None
    driver: str = ""
    nccl: str = ""
    isolation: IsolationFacts | None = None
    """Reach of a confined program when the agent started; None if an older agent did not say."""
    slow_link: str = ""
    """Measured rates of a link that is far slower than those of its peers; empty if it is not.

    Jobs of several nodes get the host last.
    """


class LinkView(BaseModel):
    """One direction of a connection between two hosts, as last probed or met by a job."""

    source_id: str
    source: str
    target_id: str
    target: str
    address: str
    port: int
    failure: str = ""
    """Sentence that names both ends; empty if the target was reached."""
    by_job: bool = False
    """True if a job met the failure."""
    slow: str = ""
    """Comparison with the median; empty if the connection is not slow."""
    connect_s: float | None = None
    bytes_per_s: float | None = None
    since: datetime
    """Begin of the present failure, or of the time without one."""
    probed_at: datetime


class HostsView(BaseModel):
    """Hosts, the connections between them that fail or are slow, and what to do."""

    hosts: list[HostView]
    links: list[LinkView]
    links_probed: int
    latency_s: float | None = None
    """Median over the probed connections; None if there are fewer than four."""
    bytes_per_s: float | None = None
    """Median over the probed connections; None if there are fewer than four."""
    checks: list[Check]
