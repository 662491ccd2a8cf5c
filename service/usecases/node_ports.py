"""What the use cases about the credentials of agents need of the world."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.credentials import StorageCall, StorageCredentials
from headway.contract.identity import JoinTokenView
from service.domain.credentials import NodeTokens


class NodeCredentials(Protocol):
    """The tokens of nodes, as digests."""

    async def of(self, node_id: str) -> NodeTokens | None:
        """Those of a node; None when there is no such node."""
        ...

    async def node_of(self, sha256: str) -> tuple[str, NodeTokens] | None:
        """The node that has, or had, this token."""
        ...

    async def used(self, node_id: str, sha256: str, now: datetime) -> None:
        """The node's newest token is this one, and is used now for the first time: the previous one is over."""
        ...

    async def made(self, node_id: str, previous_sha256: str | None) -> None:
        """The newest token of the node was made just now; the one before it, if any, works until it is used."""
        ...

    async def replace(self, node_id: str, presented_sha256: str, new_sha256: str) -> bool:
        """Make a new token the newest, in exchange for one that is valid; False when that is not valid."""
        ...


class JoinTokens(Protocol):
    """Tokens with which agents join, as digests."""

    async def add(self, token: JoinTokenView, sha256: str) -> None:
        """A new one. Those that expired long ago go."""
        ...

    async def all(self) -> list[JoinTokenView]:
        """Every one that can still be used, or expired not long ago; the newest first."""
        ...

    async def find(self, sha256: str) -> JoinTokenView | None:
        """The one with this digest."""
        ...

    async def take(self, token_id: str, now: datetime) -> bool:
        """Use it once; False when it has no use left, or has expired. Of those who take the last use at once, one gets it."""
        ...

    async def remove(self, token_id: str) -> bool:
        """It works no more; False when there was none."""
        ...


class HeldRuns(Protocol):
    """What nodes run, and have run."""

    async def holds(self, node_id: str, job_id: str, generation: int) -> bool:
        """Whether the node has a slot now for this generation of the job."""
        ...

    async def held(self, node_id: str, job_id: str, generation: int) -> bool:
        """Whether it has one or had one, as far as is remembered."""
        ...

    async def needs_bundle(self, node_id: str, digest: str) -> bool:
        """Whether a job that has a slot of the node now starts from this bundle."""
        ...

    async def known(self, node_ids: Collection[str]) -> set[str]:
        """Those of the nodes that exist."""
        ...


class QueueAccess(Protocol):
    """Who may read which command stream."""

    async def grant(self, node_id: str) -> str:
        """The URL by which this node alone reads its stream. The one before is void for whoever connects anew.

        Never fails: where the queue does not answer now, the agent finds the URL refused, and asks again.
        """
        ...

    async def granted(self) -> list[str]:
        """Ids of the nodes that have access. Raises Unavailable."""
        ...

    async def revoke(self, node_ids: Sequence[str]) -> None:
        """These have no access any more. Raises Unavailable."""
        ...


class StorageKeys(Protocol):
    """Makes keys for parts of the object storage."""

    async def keys_for(self, prefix: str, session: str) -> StorageCredentials | None:
        """Short-lived keys for what lies under a prefix that ends in `/`, and nothing else; `session` says to the provider's
        audit who has them. None where nothing can be narrowed down: a folder, or a store for which no role is set.

        Raises:
            Unavailable: the provider does not answer.
        """
        ...


class StorageSigner(Protocol):
    """Signs requests to the object storage with keys that stay here."""

    async def sign(self, prefix: str, calls: Sequence[StorageCall], valid_s: int) -> list[str]:
        """The URL of each request, for what lies under a prefix that ends in `/`. Raises Unavailable: there are no keys now."""
        ...

    def uri_of(self, prefix: str) -> str:
        """Where the prefix is, as ranks name it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """For what somebody may have requests signed: the checkpoints of a job, as long as the node runs this generation of it."""

    node_id: str
    job_id: str
    generation: int
    expires_at: datetime


class StorageTickets(Protocol):
    """Tickets, as digests."""

    async def add(self, sha256: str, ticket: Ticket, now: datetime) -> None:
        """A new one. Those that have expired go."""
        ...

    async def find(self, sha256: str) -> Ticket | None:
        """The one with this digest, expired or not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """What agents reach besides the API."""

    queue: QueueAccess
    storage: StorageKeys
    signer: StorageSigner | None = None
    """Where ranks have their requests signed, in place of keys."""
