"""Facts about a host's network and limits, and probes of the connections between hosts."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from headway.contract.isolation import IsolationFacts
from headway.contract.values.sequences import SequenceNumber
from headway.contract.values.text import PrintedText

PROBE_VERB = "HEADWAY-PROBE"
MAX_PROBE_BYTES = 4 << 20
"""Largest answer of a probe. It is transferred at most once an hour between two hosts, for 0.1 s at most."""
SMALL_PROBE_BYTES = 64 << 10
"""Answer of an ordinary probe: more than a packet of any MTU, so that packets of full size must arrive."""
_Short = Annotated[PrintedText, Field(max_length=200)]


class HostFacts(BaseModel):
    """A host as its agent sees it. None means unknown, except for limits, where it means that there is none."""

    probe_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port on which the agent answers probes of other agents; None if it does not listen."""
    probe_key: Annotated[str, Field(max_length=128)] = ""
    """Key from which the service derives the token of each probe of this host."""
    interface: _Short = ""
    """Network interface that owns the node's address; empty if none does."""
    mtu: int | None = None
    shm_bytes: int | None = None
    """Size of /dev/shm."""
    open_files: int | None = None
    locked_memory_bytes: int | None = None
    driver: _Short = ""
    nccl: _Short = ""
    executes: bool = False
    """True if the agent knows commands beside ranks (`contract.executions`)."""
    executes_with_input: bool = False
    """True if the agent also knows the standard input and the terminal of such commands."""
    kill_wait_s: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Seconds from SIGTERM to SIGKILL when the host's engine ends this agent; None if no engine runs it."""
    isolation: IsolationFacts | None = None
    """Result of the self-test; None if it could not be made."""


class PeerProbe(BaseModel):
    """Order to an agent to probe one other host. The service repeats it until it has the result."""

    peer: str
    """Id of the node to reach."""
    address: str
    port: int
    nonce: int
    """Milliseconds of the service's clock when it made the token."""
    size_bytes: Annotated[int, Field(ge=0, le=MAX_PROBE_BYTES)]
    token: str


class LinkProbe(BaseModel):
    """Result of one probe. An empty `failure` means that the peer was reached."""

    peer: Annotated[str, Field(max_length=64)]
    address: Annotated[PrintedText, Field(max_length=255)]
    port: Annotated[int, Field(ge=1, le=65535)]
    failure: Annotated[PrintedText, Field(max_length=500)] = ""
    """Sentence with both ends: `host-a cannot reach 10.1.0.2:41000: no answer`."""
    connect_s: Annotated[float, Field(ge=0)] | None = None
    """Time of the TCP handshake, which is one round trip."""
    bytes_per_s: Annotated[float, Field(ge=0)] | None = None
    """Rate from the peer to this host; None for a probe that measures no bandwidth."""


class LinksProbed(BaseModel):
    """Results of probes. They concern the node, not a job."""

    kind: Literal["links_probed"] = "links_probed"
    sequence: SequenceNumber
    at: datetime
    clock_ahead_s: float | None = None
    """Seconds by which the agent's clock is ahead of the service's; None if unknown."""
    pairs: Annotated[list[LinkProbe], Field(max_length=64)]


def probe_token(key: str, source: str, nonce: int, size_bytes: int) -> str:
    """Return the token with which node `source` may probe the host of this key once, for an answer of this size."""
    return hmac.new(key.encode(), f"{source} {nonce} {size_bytes}".encode(), hashlib.sha256).hexdigest()
